"""Operations on whole sequences of a ragged batch, which is written padded: [batch, time, ...]."""

from __future__ import annotations

from typing import Any

import torch

from .builder import Out
from .loops import Steps, mask_of
from .ops import AtenNet, rule


@rule("stepnet.sequences")
def _sequences(b: AtenNet, kind: str, rows: Any, x: Any, lengths: Any, pad: float) -> Out:
    emit, dtype = b.emit, b.dtype()
    table, counts = b.out(rows), b.out(lengths)
    rank = len(b.shape()) - 1  # of the features
    if kind == "expand":
        lead = emit.slice(emit.shape(table), 0, 0, 2)
        shape = emit.concat([lead, b.sizes(b.shape()[1:])], 0) if rank else lead
        return emit.broadcast(emit.unsqueeze(b.out(x), 1), shape)
    mask = mask_of(emit, Steps(1, False, counts), table)
    if rank != 1:
        mask = emit.reshape(mask, (0, 0, *(1,) * rank))
    if kind in ("softmax", "max"):
        lowest = emit.number(float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)
        kept = emit.call("Select", mask, table, lowest)
        if kind == "softmax":
            return emit.call("SoftMax", kept, axis=1)
        pooled = emit.call("ReduceMax", kept, emit.ints([1]), keep_dims=False)
    elif kind == "first":
        pooled = emit.gather(table, emit.scalar(0), 1)
    elif kind == "last":
        at = emit.call("Maximum", emit.call("Subtract", counts, emit.scalar(1)), emit.scalar(0))
        picked = emit.call("Gather", table, emit.unsqueeze(at, 1), emit.scalar(1), batch_dims=1)
        pooled = emit.squeeze(picked, 1)
    else:
        kept = emit.call("Select", mask, emit.cast(table, dtype, b.dtype(rows)), emit.number(0, dtype))
        pooled = emit.call("ReduceSum", kept, emit.ints([1]), keep_dims=False)
        if kind != "sum":
            count = emit.cast(emit.call("Maximum", counts, emit.scalar(1)), dtype, torch.int64)
            if kind == "sqrt":
                count = emit.call("Sqrt", count)
            pooled = emit.call("Divide", pooled, _per_sequence(b, count, rank))
    some = _per_sequence(b, emit.call("Greater", counts, emit.scalar(0)), rank)
    return emit.call("Select", some, pooled, emit.number(pad, dtype))


def _per_sequence(b: AtenNet, x: Out, rank: int) -> Out:
    return b.emit.unsqueeze(x, *range(1, rank + 1)) if rank else x
