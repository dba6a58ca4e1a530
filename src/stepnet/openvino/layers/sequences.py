"""LSTMSequence, GRUSequence and RNNSequence: whole recurrences, run as steps.

Source: the OpenVINO operation specifications LSTMSequence-5, GRUSequence-5, RNNSequence-5. After the end
of a sequence Y is zero and the state stays; a reversed sequence starts at its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stepnet.data.dtypes import dtype_name
from stepnet.data.lod import LoDTensor
from stepnet.engine import run
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.setting import check_backend
from stepnet.export.open_sizes import Repeated, Sizes, plain
from stepnet.file_model import LoopReport, not_in_recordings
from stepnet.front.step import failure, next_state
from stepnet.ir.loop import Loop
from stepnet.ir.sweep import over_rows
from stepnet.iterator.rows import show
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer
from stepnet.watchers import Instead, instead

from .cells import GRU, LSTM, RNN, Cell
from .row import Function, Misfit, Row, shape_text


class CellStep:
    """A cell and its weights as the body of a loop."""

    form = None  # the cell and its weights are what it reads
    cut: tuple[str, ...] = ("x",)

    def __init__(self, cell: Cell, w: Tensor, r: Tensor, b: Tensor) -> None:
        self.cell, self.name = cell, cell.kind
        self.w, self.r, self.b = w, r, b
        self.states = tuple(f"state[{i}]" for i in range(cell.states))
        self.new = tuple(f"new_{name}" for name in self.states)
        self.parameters, self.results = (*self.cut, *self.states), ("y", *self.new)

    @property
    def function(self) -> CellStep:
        """Itself: what it reads are its weights."""
        return self

    def fresh(self) -> CellStep:
        """The body: it remembers nothing."""
        return self

    def __call__(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        try:
            new = self.cell.step(x, states, self.w, self.r, self.b)
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            raise failure(self, (x, *states), error) from error
        return new[0], *next_state(self.name, self.states, states, list(new))

    def loop(self, *, level: int | None, reverse: bool) -> Loop:
        """The loop over the steps of [batch, time, ...], or over the rows of a LoD level."""
        return over_rows(self, self.cut, self.states, self.new, ("y",), axis=1, level=level, reverse=reverse)


class PaddedStep(CellStep):
    """The same on padded sequences, as far as they go."""

    cut = ("x", "inside")

    def __call__(self, x: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        inside, *states = more
        y, *new = super().__call__(x, *states)
        kept = (torch.where(inside, a, b) for a, b in zip(new, states, strict=True))
        return torch.where(inside, y, 0.0), *kept


class SequenceRunner:
    """Runs one layer; `reports` says how it ran last."""

    takes_sizes = True
    known: Sequence[int] | None = None  # the lengths, where they are constants

    def __init__(self, kind: type[Cell], layer: Layer, attributes: Attributes) -> None:
        self.cell = kind(layer, attributes)
        self.direction = attributes.choice("direction", ("forward", "reverse", "bidirectional"), "forward")
        self.reports = LoopReport(layer.where)

    def __call__(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        not_in_recordings(sized=True)
        count = self.cell.states
        states, lengths, (w, r, b) = rest[:count], rest[count], rest[count + 1 : count + 4]
        directions = 2 if self.direction == "bidirectional" else 1
        saving = instead()
        if saving is not None:
            return self._saved(saving, x, states, lengths, (w, r, b))
        try:
            self._check(x, states, lengths, (w, r, b), directions)
        except Misfit as misfit:
            if misfit.gives is not None:
                misfit.gives = self._shapes(x, states, directions)
            raise
        if any(t.is_meta for t in (x, *states)):
            return self._shapes(x, states, directions)
        known = [int(n) for n in lengths.reshape(-1).tolist()]
        _check_lengths(known, x.shape[1])
        ys, finals = [], []
        for d in range(directions):
            reverse = self.direction == "reverse" or d == 1
            step = CellStep(self.cell, w[d], r[d], b[d])
            y, final = self._run(step, x, tuple(s[:, d] for s in states), known, reverse)
            ys.append(y)
            finals.append(final)
        return (torch.stack(ys, 1), *(torch.stack(parts, 1) for parts in zip(*finals, strict=True)))

    def _shapes(self, x: Tensor, states: Sequence[Tensor], directions: int) -> tuple[Tensor, ...]:
        """What a call gives, without its numbers."""
        size = (x.shape[0], directions, x.shape[1], self.cell.hidden)
        y = torch.empty(size, dtype=x.dtype, device="meta")
        return (y, *(torch.empty_like(s, device="meta") for s in states))

    def _saved(
        self, saving: Instead, x: Tensor, states: Sequence[Tensor], lengths: Any, weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The same as loops that what writes the model sees."""
        steps = x.shape[1]
        known = [lengths.size] if isinstance(lengths, Repeated) else self.known
        known = lengths.tolist() if isinstance(lengths, Sizes) else known
        whole = known is not None and all(n == steps for n in known)
        inside = () if whole else ((torch.arange(steps) < plain(lengths).unsqueeze(1)).unsqueeze(2),)
        ys, finals = [], []
        for d in range(2 if self.direction == "bidirectional" else 1):
            step = (CellStep if whole else PaddedStep)(self.cell, *(weight[d] for weight in weights))
            loop = step.loop(level=None, reverse=self.direction == "reverse" or d == 1)
            given = (x, *inside, *(s[:, d] for s in states))
            out = saving.loop(loop, dict(zip(step.parameters, given, strict=True)))
            ys.append(out["y"])
            finals.append([out[name] for name in step.new])
        return (torch.stack(ys, 1), *(torch.stack(parts, 1) for parts in zip(*finals, strict=True)))

    def _run(
        self, step: CellStep, x: Tensor, state: tuple[Tensor, ...], lengths: list[int], reverse: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        steps = x.shape[1]
        ragged = any(n != steps for n in lengths)
        rows: Any = LoDTensor.from_padded(x, torch.tensor(lengths)) if ragged else x
        backend = check_backend(None)
        loop = step.loop(level=-1 if ragged else None, reverse=reverse)
        feeds = dict(zip(step.parameters, (rows, *state), strict=True))
        plainly = backend == PLAIN.name or steps == 0 or x.device.type != "cpu"
        out = self.reports.attempt(
            "the backend is 'naive', there are no steps, or the model is not on the CPU" if plainly else None,
            lambda: run(loop, feeds, backend=backend, warn=False),
        )
        show(loop, feeds, backend)
        if out is None:
            out = naive.run(loop, feeds)
        y, final = out["y"], tuple(out[name] for name in step.new)
        if ragged:
            y = y.to_padded()[0]
            y = functional.pad(y, (0, 0, 0, steps - y.shape[1]))
        return y, final

    def _check(
        self, x: Tensor, states: Sequence[Tensor], lengths: Tensor, weights: Sequence[Tensor], directions: int
    ) -> None:
        if x.dim() != 3:
            raise Misfit(
                "X must be [batch, time, input]", got=shape_text(x), expected="three dimensions", dims=x.dim()
            )
        for state in states:
            if state.dim() == 3 and state.shape[0] != x.shape[0]:
                raise Misfit(
                    "X and a state have different batch sizes",
                    got=f"X {shape_text(x)}, a state {shape_text(state)}",
                    expected=f"a state of [{x.shape[0]}, {directions}, {self.cell.hidden}]",
                    dims=(x.shape[0], state.shape[0]),
                )
            if state.dim() != 3 or state.shape[1] != directions:
                got = state.shape[1] if state.dim() == 3 else state.dim()
                raise Misfit(
                    f"a state must be [batch, {directions}, hidden]",
                    got=shape_text(state),
                    expected=f"[{x.shape[0]}, {directions}, {self.cell.hidden}], as it is {self.direction}",
                    dims=(directions, got),
                )
        if lengths.dtype not in (torch.int32, torch.int64):
            raise Misfit(
                "sequence lengths must be whole numbers",
                got=dtype_name(lengths.dtype),
                expected="int32 or int64",
                dims=str(lengths.dtype),
            )
        if lengths.shape != (x.shape[0],):
            raise Misfit(
                f"sequence lengths must be [{x.shape[0]}]",
                got=shape_text(lengths),
                expected=f"[{x.shape[0]}], one for each sequence",
                dims=(lengths.dim(), lengths.shape[0] if lengths.dim() else 0, x.shape[0]),
            )
        if self.known is not None:
            _check_lengths(self.known, x.shape[1])
        rows, hidden = self.cell.gates * self.cell.hidden, self.cell.hidden
        sizes = (rows, x.shape[2]), (rows, hidden), (self.cell.bias_gates * hidden,)
        for name, weight, each in zip("WRB", weights, sizes, strict=True):
            if weight.dim() != len(each) + 1 or weight.shape[0] != directions:
                raise Misfit(
                    f"{name} must have {len(each) + 1} dimensions, the first of {directions},"
                    f" as it is {self.direction}",
                    got=shape_text(weight),
                    expected=[directions, *each],
                    dims=shape_text(weight),
                )
        w, r, b = (t[0] for t in weights)
        self.cell.check(x.select(1, 0) if x.shape[1] else x.new_empty(x.shape[0], x.shape[2]),
                        [s[:, 0] for s in states], w, r, b)  # fmt: skip


def _check_lengths(lengths: Sequence[int], steps: int) -> None:
    if any(not 0 <= n <= steps for n in lengths):
        raise Misfit(
            f"sequence lengths must lie in 0..{steps}",
            got=str(list(lengths[:8])),
            expected=f"0 to {steps}, the steps of X",
            dims=str((lengths, steps)),
        )


def _sequence(kind: type[Cell]) -> Callable[[Layer, Attributes], Function]:
    return lambda layer, attributes: SequenceRunner(kind, layer, attributes)


ROWS = (
    Row("LSTMSequence", _sequence(LSTM), (7, 7), (3, 3)),
    Row("GRUSequence", _sequence(GRU), (6, 6), (2, 2)),
    Row("RNNSequence", _sequence(RNN), (6, 6), (2, 2)),
)
