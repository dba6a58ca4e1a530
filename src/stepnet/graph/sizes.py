"""Sizes that a graph does not know."""

from __future__ import annotations

from typing import Any

import torch
from torch._library.fake_impl import allocate_size


def open_size(least: int = 0) -> Any:
    """A size of a result of an operator that is known as it runs.

    Torch's own way breaks graphs unless `fullgraph=True`, since what comes later may ask for the number. What
    does breaks the graph there.
    """
    context: Any = torch.library.get_ctx()
    return allocate_size(context._shape_env, least)
