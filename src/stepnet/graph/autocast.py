"""Recurrences of exported programs under autocast.

A program has autocast where `forward` enters it. What was around the export is not in it: torch's operators
in there follow what is around the run. So does a recurrence: where torch comes to autocast in the dispatch of
its operator, its text becomes one that has this autocast in it, as a graph that is traced has casts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.data.in_graph import not_followed

from .calls import find
from .ops import LIBRARY
from .recurrence import Recurrence, rounded
from .recurrence_text import under

_KEYS = torch._C.DispatchKey
_below: Any = torch._C._dispatch_keyset_full_after(_KEYS.AutocastCPU)
for _key in ("AutocastCUDA", "AutocastCPU"):
    _below = _below & torch._C._dispatch_keyset_full_after(getattr(_KEYS, _key))


@not_followed
def _autocast(keys: Any, tensors: list[Tensor], sizes: list[int] | None, what: str) -> list[Tensor]:
    call = find(what)
    run, below = torch.ops.stepnet.run.default.redispatch, keys & _below
    if not isinstance(call, Recurrence) or call.way.autocast is not None:
        return run(below, tensors, sizes or [], what)
    return rounded(call.way, run(below, tensors, sizes or [], under(what, call, tensors)))


for _name in ("AutocastCPU", "AutocastCUDA"):
    LIBRARY.impl("run", _autocast, _name, with_keyset=True)
