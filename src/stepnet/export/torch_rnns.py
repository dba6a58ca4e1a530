"""torch.nn's LSTM, GRU and RNN in a module that is saved: as recurrences, of which a trace has each step.

What is packed in a trace stays padded: the data of a PackedSequence are rows of ragged sequences, of which
no size of a file says how many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from stepnet.api import recurrent
from stepnet.cells.gru import gru_step
from stepnet.cells.lstm import lstm_step
from stepnet.cells.rnn import rnn_step
from stepnet.compiler.reads.swapped import Swapped
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import IRError
from stepnet.watchers import PACKED, during, instead

from .aten import AtenNet, rule
from .calls import KINDS, Kind, Recorder, Tracer, traced_op
from .graph import Value
from .recurrences import PADDED

_pack: Any = torch._VF._pack_padded_sequence  # pyright: ignore[reportAttributeAccessIssue]
_pad: Any = torch._VF._pad_packed_sequence  # pyright: ignore[reportAttributeAccessIssue]
_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_STEPS: dict[Any, tuple[str, Callable[..., Any]]] = {
    torch.lstm: ("LSTM", lstm_step),
    torch.gru: ("GRU", gru_step),
    torch.rnn_tanh: ("RNN", rnn_step),
    torch.rnn_relu: ("RNN", partial(rnn_step, nonlinearity="relu")),
}


# That states fit the batch, of which torch wants the number; the run of the module itself found it out.
_FITTING = [
    Swapped(owner, "check_forward_args", lambda self, x, hx, sizes: None) for owner in (nn.RNNBase, nn.LSTM)
]


@dataclass
class _Packed:
    """What was packed: its batch sizes and lengths, and how many steps, sequences and rows it has."""

    batch_sizes: Tensor
    lengths: Tensor
    steps: Any
    batch: Any
    count: Any = None

    def packed(self, rows: Tensor) -> Tensor:
        """The data of rows [batch, time, ...]."""
        data = torch.ops.stepnet.rows_of_padded(rows, self.lengths)
        self.count = data.shape[0] if self.count is None else self.count
        torch._check(data.shape[0] == self.count)
        return data

    def rows(self, data: Tensor) -> Tensor:
        """[batch, time, ...] of data."""
        return torch.ops.stepnet.padded_of_rows(data, self.batch, self.steps)


@traced_op("(Tensor x, Tensor lengths) -> Tensor")
def rows_of_padded(x: Tensor, lengths: Tensor) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size(min=2)
    return x.new_empty([count, *x.shape[2:]])


@traced_op("(Tensor rows, SymInt batch, SymInt steps) -> Tensor")
def padded_of_rows(rows: Tensor, batch: int, steps: int) -> Tensor:
    return rows.new_empty([batch, steps, *rows.shape[1:]])


@rule("stepnet.rows_of_padded")
def _rows_written(b: AtenNet, x: Any, lengths: Any) -> Value:
    b.ragged[str(b.shape()[0])] = b.out(lengths)
    return b.out(x)


@rule("stepnet.padded_of_rows")
def _padded_written(b: AtenNet, rows: Any, batch: Any, steps: Any) -> Value:
    return b.out(rows)


class _TorchRNNs(TorchFunctionMode):
    """Answers for the functions behind these modules where something answers for recurrences."""

    def __init__(self) -> None:
        super().__init__()
        self.around = instead()
        self.real = isinstance(self.around, Recorder)
        self.packed: dict[int, _Packed] = {}  # by the id of its batch sizes
        self.entered = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self.entered.enter_context(during(PACKED, self._ours))
        if not self.real:
            for check in _FITTING:
                self.entered.enter_context(check.inside())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.entered.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # the branches of torch.cond
            return func(*args, **(kwargs or {}))
        if instead() is None or kwargs:
            return func(*args, **(kwargs or {}))
        if func is _pack:
            return self._pack(*args)
        known = self.packed.get(id(args[1])) if len(args) > 1 else None
        if known is not None and func is _pad:
            return func(*args) if self.real else _padded(known, args[0], *args[2:])
        if func is Tensor.__getitem__ and id(args[0]) in self.packed and args[1] == 0:
            return self.packed[id(args[0])].batch
        if func not in _STEPS:
            return func(*args)
        if not isinstance(args[3], (list, tuple)):
            return _layers(*_STEPS[func], *args)
        if known is None:
            return func(*args)
        return self._run(known, *_STEPS[func], args[0], *args[2:])

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        rows = x if batch_first else x.movedim(1, 0)
        batch, steps = rows.shape[:2]
        data = None
        if self.real:
            data, sizes = _pack(x, lengths, batch_first)
        else:
            longest: Any = lengths.max().item()
            torch._check(longest >= 2)  # as torch takes it of all open sizes
            torch._check(longest <= steps)
            torch._check(lengths.shape[0] == batch)
            inside = lengths.unsqueeze(0) > torch.arange(steps).unsqueeze(1)
            sizes = inside.sum(1).narrow(0, 0, longest)
        known = self.packed[id(sizes)] = _Packed(sizes, lengths, steps, batch)
        return known.packed(rows) if data is None else data, sizes

    def _ours(
        self,
        packed: PackedSequence,
        state: Any,
        over: Callable[[Tensor, Any], tuple[Any, Any]],
        axis: int = 1,
    ) -> tuple[Any, Any] | None:
        """What a module of `stepnet.nn`, or a recurrence, gives: it runs over padded rows, from a state that
        has its sequences along `axis`. None: it was not packed in here."""
        known = self.packed.get(id(packed.batch_sizes))
        if known is None:
            return None
        with during(PADDED, known.lengths):
            y, final = over(self._rows(known, packed.data), _sorted(state, packed.sorted_indices, axis))
        leaves, spec = flatten(y)
        y = unflatten(spec, [packed._replace(data=self._data(known, rows)) for rows in leaves])
        return y, _sorted(final, packed.unsorted_indices, axis)

    def _rows(self, known: _Packed, data: Tensor) -> Tensor:
        if self.real:
            return _pad(data, known.batch_sizes, True, 0.0, known.steps)[0]
        return known.rows(data)

    def _data(self, known: _Packed, rows: Tensor) -> Tensor:
        return _pack(rows, known.lengths, True)[0] if self.real else known.packed(rows)

    def _run(
        self, known: _Packed, kind: str, function: Callable[..., Any], data: Tensor, *more: Any
    ) -> tuple[Tensor, ...]:
        layers: Any = partial(_layers, kind, function, self._rows(known, data))
        with during(PADDED, known.lengths):
            y, *finals = layers(*more, True)
        return self._data(known, y), *finals


def _answered(by: Any) -> contextlib.AbstractContextManager[Any]:
    """Answered for are they as recurrences, of which this keeps no call of its own."""
    return contextlib.nullcontext() if by is None else _TorchRNNs()


# Behind that of recurrences, which is to answer before this asks who does.
KINDS.append(Kind(_answered, Recorder, lambda calls, lengths: Tracer(calls)))


def _padded(
    known: _Packed, data: Tensor, batch_first: bool, fill: float, total: Any
) -> tuple[Tensor, Tensor]:
    """The rows of packed data, as many as the longest sequence has or as are asked for."""
    rows, longest = known.rows(data).movedim(1, 0), known.batch_sizes.shape[0]
    if str(total) != str(known.steps):
        rows = rows.narrow(0, 0, longest)
    if str(total) not in (str(known.steps), str(longest)):
        rows = functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, total - longest))
    inside = torch.arange(rows.shape[0]).unsqueeze(1) < known.lengths.unsqueeze(0)
    inside = inside.reshape(*inside.shape, *[1] * (rows.dim() - 2))
    rows = torch.where(inside, rows, torch.full((), fill, dtype=rows.dtype))
    return rows.movedim(1, 0) if batch_first else rows, known.lengths


def _sorted(state: Any, order: Tensor | None, axis: int) -> Any:
    """States with the sequences, along an axis, in another order."""
    if state is None or order is None:
        return state
    leaves, spec = flatten(state)
    return unflatten(spec, [leaf.index_select(axis, order) for leaf in leaves])


def _layers(
    kind: str, function: Callable[..., Any], x: Tensor, hx: Any, weights: Sequence[Tensor], biases: bool,
    layers: int, dropout: float, training: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    directions = 2 if bidirectional else 1
    if isinstance(x, LoDTensor):
        raise IRError(
            f"torch.nn.{kind} cannot be written over sequences of lengths of their own",
            remedy=f"stepnet.nn.{kind}, which takes the same arguments and state_dict",
            got="a PackedSequence",
            expected="dense tensors",
        )
    states: Sequence[Tensor] = hx if isinstance(hx, (list, tuple)) else (hx,)
    for value in states:
        torch._check(value.shape[0] == layers * directions)  # in the file, too, it is no size that is open
    each = len(weights) // (layers * directions)
    names = _NAMES if biases else _NAMES[:2]
    names += ("weight_hr",) if each > len(names) else ()
    finals: list[Sequence[Tensor]] = []
    for layer in range(layers):
        ys = []
        for reverse in (False, True)[:directions]:
            k = len(finals)
            own = dict(zip(names, weights[k * each : (k + 1) * each], strict=True))
            state = [value[k] for value in states]
            step = _step(f"{kind} l{layer}", function, own)
            given = state[0] if len(state) == 1 else tuple(state)
            y, last = recurrent(step, x, given, reverse=reverse, axis=int(batch_first))
            ys.append(y)
            finals.append(last if isinstance(last, tuple) else (last,))
        x = torch.cat(ys, -1) if len(ys) > 1 else ys[0]
        if dropout and layer < layers - 1:
            x = functional.dropout(x, dropout, training)
    return x, *map(torch.stack, zip(*finals, strict=True))


def _step(name: str, function: Callable[..., Any], weights: dict[str, Tensor]) -> Callable[..., Any]:
    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        new = function(x, state, **weights)
        return (new[0] if isinstance(new, tuple) else new), new

    step.__name__ = name
    return step
