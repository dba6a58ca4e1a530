"""Whether a step draws noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .calls import Call, find


class Drawn(TorchDispatchMode):
    """Whether any operator that is called in here draws noise, by torch's own tags."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= torch.Tag.nondeterministic_seeded in func.tags or _draws_inside(func, args)
        return func(*args, **(kwargs or {}))


def draws(call: Call, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool]) -> bool:
    """Whether a call draws noise, so that another run of it gives something else."""
    flow = call.flow(tensors, sizes, needs)
    return call.random if flow is None else flow.draws


def _draws_inside(func: Any, args: Any) -> bool:
    """Whether it is a recurrence, of an exported step, that does."""
    if func not in (torch.ops.stepnet.run.default, torch.ops.stepnet.run_keeping.default):
        return False
    tensors, sizes, *_, what = args
    return draws(find(what), tensors, sizes, [False] * len(tensors))
