"""Shapes, bounds and counts that numbers of the inputs decide: ops of a trace that take them as tensors, for
torch asks of a number that it knows nothing of whether it is negative, 0 or 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .aten import AtenNet, rule
from .calls import traced_op
from .graph import Value


def _with_open(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Like x, of these sizes: -1 is one that nothing says."""
    known: Any = torch.library.get_ctx()
    return x.new_empty([known.new_dynamic_size() if isinstance(n, int) and n < 0 else n for n in sizes])


def _with_axis(x: Tensor, axis: int) -> Tensor:
    return _with_open(x, [*x.shape[:axis], -1, *x.shape[axis + 1 :]])


@traced_op("(Tensor x, Tensor sizes, SymInt[] known, bool zero_keeps) -> Tensor")
def laid_out_by(x: Tensor, sizes: Tensor, known: Sequence[Any], zero_keeps: bool) -> Tensor:
    return _with_open(x, known)


@traced_op("(Tensor x, int axis, Tensor start, Tensor stop, Tensor step) -> Tensor")
def cut_by(x: Tensor, axis: int, start: Tensor, stop: Tensor, step: Tensor) -> Tensor:
    return _with_axis(x, axis)


@traced_op("(Tensor x, Tensor before, Tensor after, Tensor fill, SymInt[] known) -> Tensor")
def padded_by(x: Tensor, before: Tensor, after: Tensor, fill: Tensor, known: Sequence[Any]) -> Tensor:
    return _with_open(x, known)


@traced_op("(Tensor x, Tensor count, int axis, bool smallest) -> (Tensor, Tensor)")
def largest_by(x: Tensor, count: Tensor, axis: int, smallest: bool) -> tuple[Tensor, Tensor]:
    values = _with_axis(x, axis)
    return values, torch.empty_like(values, dtype=torch.int64)


def _given(b: AtenNet, x: Any) -> Value:
    if b.is_ragged(x):
        raise b.refuse("numbers that it computes lay out, cut or pad rows of ragged sequences")
    return b.out(x)


@rule("stepnet.laid_out_by")
def _laid_out(b: AtenNet, x: Any, sizes: Any, known: Any, zero_keeps: bool) -> Value:
    return b.emit.call("reshape", _given(b, x), b.out(sizes), zero_keeps=zero_keeps)


@rule("stepnet.cut_by")
def _cut(b: AtenNet, x: Any, axis: int, start: Any, stop: Any, step: Any) -> Value:
    bounds = [b.out(bound) for bound in (start, stop, step)]
    return b.emit.call("slice", _given(b, x), *bounds, b.emit.ints([axis]))


@rule("stepnet.padded_by")
def _padded(b: AtenNet, x: Any, before: Any, after: Any, fill: Any, known: Any) -> Value:
    return b.emit.call("pad", _given(b, x), b.out(before), b.out(after), b.out(fill))


@rule("stepnet.largest_by")
def _largest(b: AtenNet, x: Any, count: Any, axis: int, smallest: bool) -> tuple[Value, ...]:
    return b.emit.top(_given(b, x), b.out(count), axis, "min" if smallest else "max")
