"""If: one of two graphs; or both, where each row of a compiled loop takes its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.file_model import decided
from stepnet.watchers import during

from .info import Info, Run, body_of, one_value, op

_BOTH: ContextVar[bool] = ContextVar("whether both branches run", default=False)


def both_ways() -> AbstractContextManager[None]:
    """In here both graphs of an If run, and its condition says which results are taken."""
    return during(_BOTH, True)


@op("If")
def _if(node: Info) -> Run:
    branches = {True: body_of(node, "then_branch", 0), False: body_of(node, "else_branch", 0)}

    def run(condition: Tensor, *outer: Any) -> Sequence[Any]:
        around = dict(zip(node.outer, outer, strict=True))
        if not _BOTH.get():
            return branches[bool(decided(one_value(condition, "condition")))].run((), around)
        which = one_value(condition, "condition")
        results = zip(branches[True].run((), around), branches[False].run((), around), strict=True)
        return tuple(_chosen(which, *pair) for pair in results)

    return run


def _chosen(which: Tensor, a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
        raise Unsupported("a branch in its body gives other shapes or types than the other one")
    return torch.where(which, a, b)
