"""Sizes that a graph does not know, and those of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._library.fake_impl import allocate_size


def open_size(least: int = 0) -> Any:
    """A size of a result of an operator that is known as it runs.

    Torch's own way breaks graphs unless `fullgraph=True`, since what comes later may ask for the number. What
    does breaks the graph there.
    """
    context: Any = torch.library.get_ctx()
    return allocate_size(context._shape_env, least)


def row_shape(x: Tensor, axis: int, levels: int) -> tuple[int, ...]:
    """The shape of one row of a leaf of x.

    >>> row_shape(torch.zeros(5, 2, 3), 0, 0), row_shape(torch.zeros(5, 3), 0, 1)
    ((3,), (3,))
    """
    shape = [*x.shape]
    if not levels:
        del shape[axis]
    return tuple(shape[1:])
