"""Values that are right where a truth is as it was for the example; elsewhere what runs the file refuses."""

from __future__ import annotations

import torch
from torch import Tensor

from .aten import AtenNet, rule
from .calls import traced_op
from .graph import Value


@traced_op("(Tensor x, Tensor truth, bool wanted) -> Tensor")
def certain(x: Tensor, truth: Tensor, wanted: bool) -> Tensor:
    return torch.empty_like(x)


@rule("stepnet.certain")
def _written(b: AtenNet, x: Value, truth: Value, wanted: bool) -> Value:
    """A number that is laid out as two where the truth is another, which most runtimes refuse; else NaN."""
    emit, dtype, holds = b.emit, b.dtype(), b.out(truth)
    sizes = emit.ints([1]), emit.ints([2])
    size = emit.call("where", emit.reshape(holds, [1]), *(sizes if wanted else sizes[::-1]))
    laid = emit.call("reshape", emit.ints([1]), size, zero_keeps=False)
    one = emit.call("eq", emit.call("sum", laid, emit.ints([0]), keepdim=False), emit.scalar(1))
    right = emit.call("and", one, holds if wanted else emit.call("not", holds))
    if dtype == torch.bool:
        return emit.call("and", right, b.out(x))
    wrong = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
    return emit.call("where", right, b.out(x), emit.number(wrong, dtype))
