"""Operations on whole sequences of a ragged batch, which is written padded: [batch, time, ...]."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .aten import AtenNet, rule
from .calls import traced_op
from .graph import Value
from .scans import StepAxis, last_row, mask_of, per_sequence

# The places of rows in the longest sequence, of offsets: as many as what is padded is long.
PLACES: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("stepnet_places", default=None)


@traced_op("(Tensor x, Tensor lengths, Tensor places) -> Tensor")
def padded(x: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    return x.new_empty([lengths.shape[0], places.shape[0], *x.shape[1:]])


@rule("stepnet.padded")
def _with_zeros(b: AtenNet, x: Any, lengths: Any, _: Any) -> Value:
    table, rank = b.out(x), len(b.shape()) - 2
    mask = mask_of(b.emit, StepAxis(1, False, b.flat(lengths)), table, rank)
    return b.emit.call("where", mask, table, b.emit.number(0, b.dtype()))


@traced_op("(str kind, Tensor rows, Tensor x, Tensor lengths, float pad) -> Tensor")
def sequences(kind: str, rows: Tensor, x: Tensor, lengths: Tensor, pad: float) -> Tensor:
    if kind in ("softmax", "reverse"):
        return torch.empty_like(x)
    return x.new_empty([(rows if kind == "expand" else lengths).shape[0], *x.shape[1:]])


@rule("stepnet.sequences")
def _written(b: AtenNet, kind: str, rows: Any, x: Any, lengths: Any, pad: float) -> Value:
    emit, dtype = b.emit, b.dtype()
    table, counts = b.out(rows), b.flat(lengths)
    rank = len(b.shape()) - 1  # of the features
    if kind == "expand":
        lead = emit.slice(emit.shape(table), 0, 0, 2)
        shape = emit.concat([lead, b.sizes(b.shape()[1:])], 0) if rank else lead
        return emit.broadcast(emit.unsqueeze(b.flat(x), 1), shape)
    if kind == "reverse":
        places = emit.range(emit.squeeze(emit.size(table, 1), 0))
        back = emit.call(
            "sub", emit.unsqueeze(counts, 1), emit.unsqueeze(emit.call("add", places, emit.scalar(1)), 0)
        )
        return emit.take(table, emit.call("maximum", back, emit.scalar(0)), 1, batch_dims=1)
    mask = mask_of(emit, StepAxis(1, False, counts), table, rank)
    if kind in ("softmax", "max"):
        lowest = emit.number(float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)
        kept = emit.call("where", mask, table, lowest)
        if kind == "softmax":
            return emit.call("softmax", kept, axis=1)
        pooled = emit.call("amax", kept, emit.ints([1]), keepdim=False)
    elif kind == "first":
        pooled = emit.take(table, emit.scalar(0), 1)
    elif kind == "last":
        pooled = last_row(emit, table, counts)
    else:
        kept = emit.call("where", mask, emit.cast(table, dtype), emit.number(0, dtype))
        pooled = emit.call("sum", kept, emit.ints([1]), keepdim=False)
        if kind != "sum":
            count = emit.cast(emit.call("maximum", counts, emit.scalar(1)), dtype)
            if kind == "sqrt":
                count = emit.call("sqrt", count)
            pooled = emit.call("div", pooled, per_sequence(emit, count, rank))
    some = per_sequence(emit, emit.call("gt", counts, emit.scalar(0)), rank)
    return b.table(emit.call("where", some, pooled, emit.number(pad, dtype)), b.node)
