"""Whether a step draws noise."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .calls import find


class Drawn(TorchDispatchMode):
    """Whether any operator that is called in here draws noise, by torch's own tags."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= torch.Tag.nondeterministic_seeded in func.tags or _draws_inside(func, args)
        return func(*args, **(kwargs or {}))


def _draws_inside(func: Any, args: Any) -> bool:
    """Whether it is a recurrence, of an exported step, that does."""
    if func not in (torch.ops.stepnet.run.default, torch.ops.stepnet.run_keeping.default):
        return False
    tensors, sizes, *_, what = args
    return find(what).draws(tensors, sizes, [False] * len(tensors))
