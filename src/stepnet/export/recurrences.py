"""Recurrences in a module that is traced: one node each, and a loop by their plan or around the step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.api import recurrent
from stepnet.checks import checked
from stepnet.compiler.capture import Replaced
from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.reach import reach
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.sequence import INSTEAD as SEQUENCES
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.engine import find_plan
from stepnet.errors import IRError, Unsupported
from stepnet.executors.naive import PLAIN
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.front.step import StepBody, as_loop
from stepnet.user_line import user_line
from stepnet.watchers import replaced

from .aten import AtenNet, rule
from .body_trace import no_lengths
from .calls import (
    KINDS,
    Calls,
    Kind,
    Lengths,
    Recorder,
    Tracer,
    answered,
    call_of,
    inner_calls,
    places_of,
    traced_op,
    unanswered,
)
from .graph import Target, Value
from .ragged_step import write_ragged_step
from .reads import tensors_read
from .rows import unwritable
from .scans import Steps, write_plan
from .whole_step import write_step


@dataclass
class Call:
    """A call of `recurrent`, as it was made for real: what it was given, what it gave, and its plan."""

    body: StepBody
    x: list[Any]
    state: list[Tensor]
    reverse: bool
    axis: int
    places: list[int]  # of the tensors the step uses, among those it reaches
    weights: list[Tensor]
    compiled: Compiled | None
    refusal: Unsupported | None
    y: list[Any]
    y_spec: Spec
    line: str
    alone: bool = False  # whether its one row is all there ever is
    inner: Calls | None = None  # those that one step makes
    known: list[Any] = field(default_factory=list)  # sizes of time and batch, in its trace

    above: bool = False  # whether its steps are whole sequences

    @property
    def ragged(self) -> bool:
        """Whether it runs over sequences of different lengths."""
        return isinstance(self.x[0], LoDTensor)

    @property
    def parts(self) -> list[Any]:
        """What one step is given of x."""
        return _parts(self.x, self.axis, self.above, len(self.state[0]) if self.state else 0)


@traced_op
def recurrence(
    call: int, x: list[Tensor], state: list[Tensor], weights: list[Tensor], lengths: list[Tensor]
) -> list[Tensor]:
    made = call_of(call)
    first = x[0]
    if made.ragged:
        lead, batch = [first.shape[0]], state[0].shape[0] if state else 0
    else:
        lead, batch = list(first.shape[:2]), first.shape[int(made.axis != 1)]
    made.known += [*lead, batch]
    for leaf in state if not made.ragged else ():
        torch._check(leaf.shape[0] == batch)
    for leaf in x[1:]:
        for own, other in zip(leaf.shape, lead, strict=False):
            torch._check(own == other)
    rows = _row_shapes(made, x, state, weights)
    leads = [lengths[1].shape if made.above and leaf.lod_level == 1 else lead for leaf in made.y]
    out = [
        first.new_empty([*own, *shape], dtype=dtype) for own, (shape, dtype) in zip(leads, rows, strict=True)
    ]
    return out + [s.new_empty([batch, *s.shape[1:]]) for s in state]


def _row_shapes(
    made: Call, x: list[Tensor], state: list[Tensor], weights: list[Tensor]
) -> list[tuple[Any, torch.dtype]]:
    """Shape of one row and dtype of each leaf of y."""
    known = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in made.y]
    if made.axis > 1 and not made.ragged:
        known = [leaf.movedim(made.axis, 0) for leaf in known]
    skip = 1 if made.ragged else 2
    fixed = [*(t.shape[skip:] for t in x), *(s.shape[1:] for s in state), *(w.shape for w in weights)]
    if made.ragged or all(isinstance(size, int) for shape in fixed for size in shape):
        return [(t.shape[skip:], t.dtype) for t in known]
    swap = {id(t): fake for t, fake in zip(made.weights, weights, strict=True)}
    with Replaced(swap), unanswered() if made.inner is None else made.inner.traced(no_lengths):
        y, _ = StepBody(made.body.step, made.body.x_spec, made.body.state_spec).call(
            [t.select(int(made.axis == 1), 0) for t in x], state
        )
    return [(t.shape[1:], t.dtype) for t in flatten(y)[0]]


class RecurrenceRecorder(Recorder):
    """Answers `recurrent` by running it, and keeps what was asked."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._alone = False

    def alone(self, decide: Callable[[], bool]) -> bool:
        """Whether the next recurrence runs over values that are no batches."""
        self._alone = decide()
        return self._alone

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        line = user_line().short
        if scopes:
            raise IRError(
                f"the recurrence at {line} cannot be written: it keeps scopes", remedy="scopes=False"
            )
        with unanswered():
            body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
            first = x_leaves[0]
            ragged = isinstance(first, LoDTensor)
            above = ragged and level % first.lod_level != first.lod_level - 1
            if above and (self.target.nested is not None or any(v.lod_level != 2 for v in x_leaves)):
                raise IRError(
                    f"the recurrence of step '{body.name}' ({line}) cannot be written: "
                    "its steps are whole sequences",
                    got=f"level={level} of {first.lod_level}",
                    expected="a recurrence over the rows of each sequence",
                )
            compiled = refusal = None
            found = reach(body.step, everything=True)
            places: list[int] = []
            try:
                loop, feeds = as_loop(body, x_leaves, state_leaves, reverse=reverse, level=level, axis=axis)
                entry, reads, _ = find_plan(loop, feeds, backend=TORCH_OPS.name)
                compiled = entry.compiled
                read = [reads.tensors[p] for p in entry.weights] if compiled is not None else []
                places = places_of(read, body.step, f"step '{body.name}' ({line})", owner="step")
                if entry.ready is None:
                    compiled, refusal = None, entry.refusals[-1][1]
            except Unsupported as error:
                refusal = error
            parts = _parts(x_leaves, axis, above, len(state_leaves[0]) if state_leaves else 0)
            if compiled is None:
                places = _used(body, parts, state_leaves, line) if above or not ragged else []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y, final = recurrent(
                    step, x, state, reverse=reverse, level=level, axis=axis,
                    backend=TORCH_OPS.name if compiled is not None else PLAIN.name,
                )  # fmt: skip
            inner = None
            if above or not ragged:
                inner = inner_calls(self.target, lambda: body.fresh().call(parts, state_leaves))
        y_leaves, y_spec = flatten(y)
        self.keep(Call(
            body, x_leaves, state_leaves, reverse, axis if ragged else axis % first.dim(), places,
            [found.tensors[p] for p in places], compiled, refusal, y_leaves, y_spec, line, self._alone, inner,
            above=above,
        ))  # fmt: skip
        self._alone = False
        return y, final


def _parts(x: Sequence[Any], axis: int, above: bool, batch: int) -> list[Any]:
    """An example of what one step is given: a row of each sequence, or a short sequence for each."""
    if not isinstance(x[0], LoDTensor):
        return [leaf.select(axis, 0) for leaf in x]
    if not above:
        return [leaf.values for leaf in x]
    offsets = LoD.from_lengths([[2] * batch]).levels
    parts = []
    for leaf in x:
        rows, some = leaf.values, torch.arange(2 * batch)
        rows = rows[some % len(rows)] if len(rows) else rows.new_zeros(2 * batch, *rows.shape[1:])
        parts.append(LoDTensor._make(rows, LoD.trusted(offsets, 2 * batch)))
    return parts


def _used(body: StepBody, parts: list[Any], state: list[Tensor], line: str) -> list[int]:
    """Places of the tensors that a step without a plan reads."""
    known = [*(leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in parts), *state]
    used = tensors_read(lambda: body.fresh().call(parts, state), known)
    if isinstance(parts[0], LoDTensor):  # offsets, and what follows from them, are made out of sight
        reached = {id(t) for t in reach(body.step, everything=True).tensors}
        used = [t for t in used if id(t) in reached]
    return places_of(used, body.step, f"step '{body.name}' ({line})", owner="step")


class RecurrenceTracer(Tracer):
    """Answers `recurrent` by one node of the graph that is being traced."""

    what = "makes another number of recurrences"

    def __init__(self, calls: Sequence[int], lengths: Lengths) -> None:
        super().__init__(calls)
        self.lengths = lengths

    def alone(self, decide: Callable[[], bool]) -> bool:
        """What was decided when the next recurrence was made for real."""
        return bool(self.waiting) and call_of(self.waiting[0]).alone

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        with unanswered():
            body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
        number, made = self.next()
        tensors = reach(body.step, everything=True).tensors
        weights = [tensors[p] for p in made.places]
        lengths: list[Tensor] = []
        given = x_leaves
        if made.ragged:
            given, levels = [leaf.values for leaf in x_leaves], x_leaves[0]._lod.levels
            lengths = [self.lengths(level) for level in (levels if made.above else levels[-1:])]
        else:
            given = [leaf if made.axis <= 1 else leaf.movedim(made.axis, 0) for leaf in given]
        out = torch.ops.stepnet.recurrence(number, list(given), list(state_leaves), weights, lengths)
        y = list(out[: len(made.y)])
        if made.ragged:
            lods = [x_leaves[0]._lod] * len(y)
            if made.above:
                lods = [
                    lods[0] if old.lod_level == 2 else LoD.trusted(lods[0].levels[:1], leaf.shape[0])
                    for old, leaf in zip(made.y, y, strict=True)
                ]
            y = [LoDTensor._make(leaf, lod) for leaf, lod in zip(y, lods, strict=True)]
        elif made.axis > 1:
            y = [leaf.movedim(0, made.axis) for leaf in y]
        return unflatten(made.y_spec, y), unflatten(body.state_spec, list(out[len(made.y) :]))

    def sequences(self, kind: str, of: LoDTensor, x: Tensor, pad: float) -> Tensor:
        """An operation on whole sequences as one node."""
        lengths = self.lengths(of._lod.levels[-1])
        return torch.ops.stepnet.sequences(kind, of.values, x, lengths, float(pad))


@contextmanager
def _answered(instead: Any) -> Iterator[None]:
    sequences = getattr(instead, "sequences", None)
    with replaced(instead), answered(SEQUENCES, sequences):
        yield


KINDS.append(Kind(_answered, RecurrenceRecorder, RecurrenceTracer))


@rule("stepnet.recurrence")
def _written(
    b: AtenNet, number: int, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode],
    lengths: Sequence[FxNode],
) -> list[Value]:  # fmt: skip
    call: Call = call_of(number)
    y, finals = _lowered(b, call, x, state, weights, lengths)
    finals = [b.table(final, node) for node, final in zip(state, finals, strict=True)]
    for node, final in zip(state, finals, strict=True):
        if final != b.out(node):
            b.emit.graph.carried[final] = b.out(node)
    return [*y, *finals]


def _lowered(
    b: AtenNet, call: Call, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode],
    lengths: Sequence[FxNode],
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    where = f"the recurrence of step '{call.body.name}' ({call.line})"
    steps = Steps(1 if call.ragged or call.axis == 1 else 0, call.reverse, _lengths(b, call, x))
    _check_open(b, call, x, where)
    states = [b.flat(node) for node in state]
    given = [b.out(node) for node in x]
    values: list[Tensor | Value] = [
        b.constant(node) if b.is_constant(node) else b.out(node) for node in weights
    ]
    if call.above:
        return write_ragged_step(b, call, where, (x, state, weights, lengths), call.reverse)
    if call.compiled is not None and _fixed(b, x, state, weights, call):
        try:
            plan = call.compiled.hoisted
            return write_plan(b.emit, plan, call.compiled.constants, given, states, values, steps)
        except Unsupported as error:
            if call.ragged:  # else the step is written whole
                raise unwritable(b.emit.graph.target, where, error.reason, error.line) from error
    if call.ragged:
        raise IRError(
            f"{where} cannot be written over ragged sequences: {call.refusal}",
            expected="a step whose rows are proved not to mix",
        )
    return write_step(b, call, where, given, states, (x, state, weights), steps)


def _lengths(b: AtenNet, call: Call, x: Sequence[FxNode]) -> Value | None:
    return b.ragged[str(b.shape(x[0])[0])] if call.ragged else None


def _check_open(b: AtenNet, call: Call, x: Sequence[FxNode], where: str) -> None:
    """Refuse a loop whose number of steps became a fixed number without anyone asking for it."""
    if call.ragged:
        return
    time = int(call.axis == 1)
    for axis, what in ((time, "steps"), (1 - time, "sequences")):
        if call.alone and axis != time:
            continue
        size = b.shape(x[0])[axis]
        if isinstance(size, int) and b.must_be_open:
            raise IRError(
                f"{where} cannot be written for any number of {what}: it became {size} in the trace",
                got=f"an example of {size} {what}",
                expected="at least 2 steps and 2 sequences in the example, and sizes that come from tensors",
                remedy="dynamic=... says which dimensions of the inputs stay open; "
                "those it leaves out are fixed",
            )


def _fixed(
    b: AtenNet, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode], call: Call
) -> bool:
    """Whether all sizes but those of time and batch are plain numbers, as a plan takes them to be."""
    lead = 1 if call.ragged else 2
    shapes: list[list[Any]] = [b.shape(n)[lead:] for n in x]
    shapes += [b.shape(n)[1:] for n in state]
    shapes += [b.shape(n) for n in weights]
    return all(isinstance(size, int) for shape in shapes for size in shape)
