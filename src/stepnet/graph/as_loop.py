"""A recurrence of an exported program as torch's own while loop, for tools that do not know stepnet.

    while t < the longest length:
        x_t = x[start + t * stride];  y_t, h = step(x_t, h);  y[start + t * stride] = y_t

A sequence that has ended keeps its state, and what its step gives goes to a row that is cut off. That step is
of its own last row: it has no gradient, unless it gives NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from stepnet.errors import StepError

from .recurrence import Recurrence


def as_loop(call: Recurrence, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The leaves of y and of the final state, by a loop over the steps of all sequences."""
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch._subclasses.functional_tensor import dispatch_functionalize

    way, (n_x, n_state, n_static, _) = call.way, call.counts
    begin = n_x + n_state + n_static
    x, state = tensors[:n_x], tensors[n_x : n_x + n_state]
    static, reads = tensors[n_x + n_state : begin], tensors[begin + n_x * way.levels :]
    if way.levels:
        lie = _ragged(x, tensors[begin + way.levels - 1], (*state, *static))
    else:
        lie = _dense(x, way.axis)
    if way.reverse:
        lie = lie.backwards()
    rows, starts, lengths, stride = lie
    count, device = rows[0].shape[0], x[0].device
    # torch's backward calls the body where there is no step, too: then of a row of zeros
    rows = [torch.cat([t, t.new_zeros(1, *t.shape[1:])]) for t in rows]
    tables = [
        torch.zeros((count + 1, *leaf.shape), dtype=dtype, device=device)
        for leaf, dtype in zip(call.y, call.types_of(tensors), strict=True)
    ]
    longest = torch.cat([lengths, lengths.new_zeros(1)]).max()
    n_y = len(tables)

    def goes_on(t: Tensor, *given: Tensor) -> Tensor:
        return t < given[n_y + n_state]

    def body(t: Tensor, *given: Any) -> tuple[Tensor, ...]:
        tables = given[:n_y]
        state = [old.clone() for old in given[n_y : n_y + n_state]]  # for steps that write to it
        _, starts, lengths, *rest = given[n_y + n_state :]
        rows, static, reads = rest[:n_x], rest[n_x : n_x + n_static], rest[n_x + n_static :]
        runs = t < lengths
        row = starts + t * stride
        last = starts + torch.minimum(t, lengths - 1) * stride
        here = [table.index_select(0, torch.where(lengths > 0, last, 0)) for table in rows]
        with _Written(way.name):
            results = call.step(*here, *state, *static, *reads)
        to = torch.where(runs, row, rows[0].shape[0] - 1)
        y = [
            table.index_copy(0, to, value.to(table.dtype))
            for table, value in zip(tables, results[:n_y], strict=True)
        ]
        new = [
            torch.where(runs.view(-1, *[1] * (old.dim() - 1)), value.to(old.dtype), old).contiguous()
            for old, value in zip(state, results[n_y:], strict=True)
        ]
        return (t + 1, *y, *new)

    begin_with = [t.clone(memory_format=torch.contiguous_format) for t in state]
    # as views: of a leaf, autocast would keep the cast that torch's loop makes where gradients are off, for
    # what is outside of the loop, too
    same = (longest, starts, lengths, *rows, *[t.view(t.shape) for t in (*static, *reads)])
    carried = _differentiable_once([*tables, *begin_with], [*begin_with, *same])
    first: Any = (torch.zeros((), dtype=torch.int64, device=device), *carried)
    # nothing in place, as the body of a loop has to be
    _, *last = while_loop_op(goes_on, dispatch_functionalize(body), first, same)
    y = [table[:count].clone() for table in last[:n_y]]
    if not way.levels:
        axis = way.axis % x[0].dim()
        one, two = x[0].shape[axis], x[0].shape[0 if axis else 1]
        y = [t.reshape(one, two, *t.shape[1:]).movedim(0, axis).contiguous() for t in y]
    return [*y, *last[n_y:]]


class _Rows(NamedTuple):
    """Rows of x, of which sequence b has `starts[b] + t * stride` at step t."""

    rows: list[Tensor]
    starts: Tensor
    lengths: Tensor
    stride: Any

    def backwards(self) -> _Rows:
        """Each sequence from its end."""
        starts = self.starts + (self.lengths - 1) * self.stride
        return self._replace(starts=starts, stride=-self.stride)


def _ragged(x: Sequence[Tensor], offsets: Tensor, others: Sequence[Tensor]) -> _Rows:
    """Sequences one after the other; `others` have a row for each."""
    offsets = offsets.to(x[0].device)
    starts, lengths = offsets[:-1], offsets.diff()
    for t in others:  # torch does not find it out from the offsets
        torch._check(starts.shape[0] == t.shape[0])
        torch._check(lengths.shape[0] == t.shape[0])
    return _Rows([*x], starts, lengths, 1)


def _dense(x: Sequence[Tensor], axis: int) -> _Rows:
    """Sequences side by side, steps along an axis."""
    cut = [t.movedim(axis % x[0].dim(), 0) for t in x]
    one, two = cut[0].shape[:2]
    starts = torch.arange(two, device=x[0].device)
    rows = [t.reshape(one * two, *t.shape[2:]) for t in cut]
    return _Rows(rows, starts, torch.full_like(starts, one), two)


def _differentiable_once(carried: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """What a loop carries, as it is, that needs a gradient where an input does.

    Torch's loop drops the gradients of what needs none before its first step, and gives wrong second
    derivatives: the sum of segments here, which is chosen nowhere, has none in any torch (2.6 to 2.14).
    """
    floats = [t for t in inputs if t.is_floating_point()]
    if not floats:
        return [*carried]
    no = torch.zeros((), dtype=torch.bool, device=floats[0].device)
    zeros = torch.stack([torch.where(no, t.sum(dtype=torch.float32), 0.0) for t in floats])
    lengths = torch.full((1,), len(floats), device=floats[0].device)
    total = torch.segment_reduce(zeros, "sum", lengths=lengths, unsafe=True).reshape(())
    return [torch.where(no, total.to(t.dtype), t) if t.is_floating_point() else t for t in carried]


class _Written(TorchFunctionMode):
    """Writes out what `functionalize` leaves in place: torch's cells; a constant's making. What is computed
    where gradients are off, of which the operators of a trace tell nothing, is detached."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.recorded = name, True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is torch._C._set_grad_enabled:
            (self.recorded,) = args
            return func(*args)
        written = {
            aten.gru_cell.default: _gru,
            aten.lstm_cell.default: _lstm,
            aten.detach_.default: aten.detach.default,
        }
        out = written.get(func, func)(*args, **(kwargs or {}))
        if self.recorded:
            return out
        if str(func).split(".")[1].endswith("_") and func is not aten.detach_.default:
            raise StepError(
                f"step '{self.name}' cannot be written as torch's while_loop",
                got=f"it writes in place ({func}) under no_grad",
                remedy="compute a new tensor there, or leave the recurrence as it is: without "
                "stepnet.graph.decompositions()",
            )
        return tree_map_only(Tensor, aten.detach.default, out)


def _gru(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    x_r, x_z, x_n = linear(x, w_ih, b_ih).chunk(3, 1)
    h_r, h_z, h_n = linear(h, w_hh, b_hh).chunk(3, 1)
    reset, update = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    new = torch.tanh(x_n + reset * h_n)
    return new + update * (h - new)


def _lstm(
    x: Tensor, state: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    h, c = state
    i, f, g, o = (linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c
