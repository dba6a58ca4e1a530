"""Recurrences in a module that is traced: one node each, and a loop by their plan or around the step."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.api import recurrent
from stepnet.checks import checked
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.rewritten.inner_loops import is_guarded
from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.control import both_branches
from stepnet.compiler.trace.iteration import code_of, iteration
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.tree import flatten
from stepnet.engine import ChangesObjects, find_plan, run, without_leaving
from stepnet.errors import IRError, Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.front.recorded_step import RecordedStep
from stepnet.front.template import literals
from stepnet.ir.loop import Loop
from stepnet.user_line import user_line
from stepnet.watchers import SEQUENCES, Instead, during, replaced

from .aten import AtenNet, rule
from .body_trace import BY_SIZES, no_lengths
from .calls import (
    KINDS,
    AsLoop,
    Kind,
    Lengths,
    Places,
    Recorder,
    Tracer,
    at_places,
    call_of,
    noted_calls,
    over_packed,
    places_of,
    traced_op,
    unanswered,
)
from .captured_state import AsCalled, loop_as_called
from .graph import Target, Value
from .keeping_sizes import KeepingSizes
from .questions import questions_of
from .ragged_step import write_ragged_step
from .recurrence_call import RecurrenceCall
from .scans import PlanWriter, StepAxis
from .sequences import PLACES
from .size_inputs import as_tensors, plain_values, sizes_in
from .tensors_read import tensors_read
from .whole_step import write_step

# The lengths of sequences that are padded at their end, batch first: the recurrences here go by them.
PADDED: ContextVar[Tensor | None] = ContextVar("stepnet_padded_lengths", default=None)
# Why a plan is not written: the padding would answer, too; a file has no generator; a plan is of known sizes.
_GUARDED = Unsupported(
    "numbers of its rows decide how often it loops, or which branch all of them take",
    remedy="loop a fixed number of times, choose by torch.where; or save it on dense tensors",
)
_DRAWS = Unsupported(
    "it draws random numbers, which a file does not", remedy="module.eval(), or what is drawn as an input"
)
_OPEN = Unsupported(
    "a size that it reads is left open", remedy="dynamic=... says which dimensions of the inputs stay open"
)


@traced_op(
    "(int call, Tensor[] x, Tensor[] state, Tensor[] weights, Tensor[] lengths, Tensor[] sizes) -> Tensor[]"
)
def recurrence(
    call: int, x: list[Tensor], state: list[Tensor], weights: list[Tensor], lengths: list[Tensor],
    sizes: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    made = call_of(call)
    first = x[0]
    if made.ragged:
        lead, batch = [first.shape[0]], state[0].shape[0] if state else 0
    else:
        lead, batch = list(first.shape[:2]), first.shape[int(made.axis != 1)]
    made.known += [*lead, batch]
    of_rows = [_by_row(made, *leaf) for leaf in zip(made.state, state, strict=True)]
    for leaf in itertools.compress(state, of_rows) if not made.ragged else ():
        torch._check(leaf.shape[0] == batch)
    for leaf in x[1:]:
        for own, other in zip(leaf.shape, lead, strict=False):
            torch._check(own == other)
    rows = _row_shapes(made, x, state, weights)
    leads = [lengths[1].shape if made.above and leaf.lod_level == 1 else lead for leaf in made.y]
    out = [
        first.new_empty([*own, *shape], dtype=dtype) for own, (shape, dtype) in zip(leads, rows, strict=True)
    ]
    finals = [[batch, *s.shape[1:]] if rows else s.shape for s, rows in zip(state, of_rows, strict=True)]
    return out + [s.new_empty(shape) for s, shape in zip(state, finals, strict=True)]


def _by_row(made: RecurrenceCall, example: Tensor, state: Tensor) -> bool:
    """Whether a state has a row for each sequence: of a step that runs plainly it may be any tensor, also one
    with as many rows by chance."""
    if made.compiled is None and isinstance(next(iter(state.shape), 0), int) and not made.ragged:
        return False
    return made.ragged or example.shape[:1] == made.x[0].shape[int(made.axis == 0) :][:1]


def _row_shapes(
    made: RecurrenceCall, x: list[Tensor], state: list[Tensor], weights: list[Tensor]
) -> list[tuple[Any, torch.dtype]]:
    """Shape of one row and dtype of each leaf of y."""
    known = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in made.y]
    if made.axis > 1 and not made.ragged:
        known = [leaf.movedim(made.axis, 0) for leaf in known]
    skip = 1 if made.ragged else 2
    fixed = [*(t.shape[skip:] for t in x), *(s.shape[1:] for s in state), *(w.shape for w in weights)]
    whole = all(isinstance(size, int) for shape in fixed for size in shape)
    if whole or (made.ragged and (made.compiled is None or not made.pads)):
        return [(t.shape[skip:], t.dtype) for t in known]
    batch = state[0].shape[0] if state else 0
    step = [
        t.new_empty([batch, *t.shape[1:]]) if made.ragged else t.select(int(made.axis == 1), 0) for t in x
    ]
    traced = unanswered() if made.inner is None else made.inner.traced(no_lengths)
    with Replaced.by(made.weights, weights) as fed, KeepingSizes(), traced:
        _, y, _ = iteration(made.loop_with(made.open), step, state, ())
    return [(t.shape[1:], t.dtype) for t in fed.results(y)]


class RecurrenceRecorder(Recorder, Instead):
    """Answers for recurrences by running them, and keeps what was asked."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._alone = ""

    def alone(self, decide: Callable[[], str]) -> str:
        with unanswered():
            self._alone = decide()
        return self._alone

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        out = over_packed(self, step, x, state, reverse=reverse, level=level, scopes=scopes)
        if out is not None:
            return out
        line = user_line().short
        if scopes:
            raise IRError(
                f"the recurrence at {line} cannot be written: it keeps scopes",
                remedy="scopes=False",
                got="scopes=True",
                expected="a recurrence that keeps none",
            )
        with unanswered():
            body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
            loop, feeds = body.as_loop(x_leaves, state_leaves, reverse=reverse, level=level, axis=axis)
            call = self._noted(loop, feeds, line)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y, final = recurrent(
                    step, x, state, reverse=reverse, level=level, axis=axis,
                    backend=PLAIN.name if call.compiled is None or call.leaves else TORCH_OPS.name,
                )  # fmt: skip
        call.y, call.y_spec = flatten({"y": y})
        self.keep(call)
        return y, final

    def loop(self, loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with unanswered():
            call = self._noted(loop, feeds, user_line().short)
            if call.compiled is None or call.leaves:
                out = naive.run(loop, feeds)
            else:
                out = run(loop, feeds, backend=TORCH_OPS.name, warn=False)
        call.y, call.y_spec = flatten({port.output: out[port.output] for port in loop.joined})
        self.keep(call)
        return out

    def _noted(self, loop: Loop, feeds: Mapping[str, Any], line: str) -> RecurrenceCall:
        """What is known of a recurrence before it runs."""
        x, state, _ = ([feeds[source] for source in part] for part in loop.sources)
        own = loop_as_called(loop)
        then = AsCalled(_code(own))
        call = RecurrenceCall(own, x, state, Places([], []), [], None, None, line, self._alone, then)
        self._alone = ""
        if call.above and any(leaf.lod_level != 2 for leaf in x):
            raise IRError(
                f"the recurrence of {call.where} cannot be written: its steps are whole sequences",
                got=f"level={call.sweep.level} of {x[0].lod_level}",
                expected="a recurrence over the rows of each sequence",
                remedy="a recurrence over the rows inside it, saved by itself",
            )
        code = _code(loop)
        met = reach(code, everything=True).met_tensors
        try:
            known: Unsupported | None = getattr(code_of(loop).function, "refusal", None)
            if known is not None:
                raise known
            entry, reads, rows = find_plan(loop, feeds, backend=TORCH_OPS.name, lifts=False)
            left = None
            if entry.ready is None and isinstance(entry.refusals[-1][1], ChangesObjects):
                left = without_leaving(loop, reads, rows)
            if left is not None:  # no file has what steps leave in attributes
                entry, reads, _ = find_plan(left[1], feeds, backend=TORCH_OPS.name, lifts=False)
                call.leaves = True
            call.compiled = entry.compiled
            read = [reads.tensors[p] for p in entry.weights] if entry.compiled is not None else []
            call.places = places_of(read, code, call.where, owner="step")
            if entry.ready is None:
                call.compiled, call.refusal = None, entry.refusals[-1][1]
            elif entry.compiled is not None and (is_guarded(entry.compiled.y_spec) or entry.compiled.draws):
                call.compiled, call.refusal = None, _DRAWS if entry.compiled.draws else _GUARDED
        except Unsupported as error:
            call.refusal = error
        whole = call.above or not call.ragged or call.compiled is not None  # so may its step be written
        parts = call.parts if whole else []
        if call.compiled is None:
            call.places = _used(call) if whole else Places([], [])
        if whole:
            with both_branches(), questions_of([*parts, *state]) as asks:
                call.inner = noted_calls(self.target, lambda: iteration(own, parts, state, ()))
            call.asks = asks()
        call.weights = [met[p] for p in call.places.at]
        return call


def _code(loop: Loop) -> Any:
    """What all that a body reads is found from: of a frame, also what the calls in it are given."""
    code = code_of(loop).function
    if not isinstance(code, RecordedStep):
        return code
    return [code, *(leaf for call in code.step.calls for leaf in literals((call.args, call.kwargs)))]


def _used(call: RecurrenceCall) -> Places:
    """Places of the tensors that a step without a plan reads."""
    parts, code = call.parts, _code(call.loop)
    state = [leaf.detach().clone() for leaf in call.state]  # it may read the first one besides
    known = [*(leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in parts), *state]
    used = tensors_read(lambda: iteration(call.loop, parts, state, ()), known)
    if call.above:  # offsets, and what follows from them, are made out of sight
        reached = {id(t) for t in reach(code, everything=True).tensors}
        used = [t for t in used if id(t) in reached]
    return places_of(used, code, call.where, owner="step")


class RecurrenceTracer(Tracer, AsLoop):
    """Answers for recurrences by one node each of the graph that is being traced."""

    what = "makes another number of recurrences"

    def __init__(self, calls: Sequence[int], lengths: Lengths) -> None:
        super().__init__(calls)
        self.lengths = lengths

    def alone(self, decide: Callable[[], str]) -> str:
        """What was decided when the next recurrence was made for real."""
        return call_of(self.waiting[0]).alone if self.waiting else ""

    def loop(self, loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
        number, made = self.next()
        x, state, _ = ([feeds[source] for source in part] for part in loop.sources)
        padded = PADDED.get()
        where = f"the recurrence of {made.where}"
        code = code_of(loop).function
        if made.refusal is None or not made.ragged:  # else that is what the user is told
            self._refuse_inputs(code, where)
        made.sizes, sizes = as_tensors(code, where, [*x, *state])
        made.open = [size for _, size in sizes_in(code)]
        made.read = plain_values(_code(loop))
        weights = at_places(made.places, _code(loop), made.where, owner="step")
        rows, lengths = x, list[Tensor]() if padded is None else [padded]
        if made.ragged:
            rows, levels = [leaf.values for leaf in x], x[0].structure.levels
            lengths = [self.lengths(level) for level in (levels if made.above else levels[-1:])]
        elif made.axis > 1:
            rows = [leaf.movedim(made.axis, 0) for leaf in x]
        out = torch.ops.stepnet.recurrence(number, rows, state, weights, lengths, sizes)
        y, final = out[: len(made.y)], out[len(made.y) :]
        if made.ragged:
            lods = [x[0].structure] * len(y)
            if made.above:
                lods = [
                    lods[0] if old.lod_level == 2 else LoD.trusted(lods[0].levels[:1], leaf.shape[0])
                    for old, leaf in zip(made.y, y, strict=True)
                ]
            y = [LoDTensor.of(leaf, lod) for leaf, lod in zip(y, lods, strict=True)]
        elif made.axis > 1:
            y = [leaf.movedim(0, made.axis) for leaf in y]
        return made.outputs([*y, *final])

    def _refuse_inputs(self, code: Any, where: str) -> None:
        """A plan has the offsets that its step reads as numbers, those of the example."""
        held = [each for each in reach(code).holders if type(each) is LoDTensor]
        if any(type(each.values) is not Tensor for each in held):  # of the trace
            raise IRError(
                f"{where} cannot be written: its step refers to sequences that are an input",
                got="a LoDTensor in its closure or attributes",
                expected="tensors, what the step is given, and static=",
                remedy="take what it needs of them outside of the step: n = x.lengths()",
            )

    def sequences(self, kind: str, of: LoDTensor, x: Tensor, pad: float) -> Tensor:
        """An operation on whole sequences as one node."""
        offsets = of.structure.levels[-1]
        lengths = self.lengths(offsets)
        if kind in ("padded", "mask"):
            places_of_rows = PLACES.get()
            if places_of_rows is None:  # as it is of each module that pads
                raise IRError(
                    "a ragged memory is made inside a step over whole sequences, and cannot be written",
                    got="static= that is the step's own sequences",
                    expected="static= that the outer recurrence is given",
                    remedy="attend by sequence_expand, sequence_softmax and sequence_pool",
                )
            places = places_of_rows(offsets)
            if kind == "mask":
                return places[None] < lengths[:, None]
            return torch.ops.stepnet.padded(x, lengths, places)
        return torch.ops.stepnet.sequences(kind, of.values, x, lengths, float(pad))


@contextmanager
def _answered(instead: Any) -> Iterator[None]:
    sequences = getattr(instead, "sequences", None)
    with replaced(instead), during(SEQUENCES, sequences):
        yield


_KIND = Kind(_answered, RecurrenceRecorder, RecurrenceTracer)
KINDS.append(_KIND)


@rule("stepnet.recurrence")
def _written(
    b: AtenNet, number: int, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode],
    lengths: Sequence[FxNode], sizes: Sequence[FxNode],
) -> list[Value]:  # fmt: skip
    call: RecurrenceCall = call_of(number)
    y, finals = _lowered(b, call, x, state, weights, lengths, sizes)
    finals = [b.table(final, node) for node, final in zip(state, finals, strict=True)]
    for node, final in zip(state, finals, strict=True):
        if final != b.out(node):
            b.emit.graph.carried[final] = b.out(node)
    return [*y, *finals]


def _lowered(
    b: AtenNet, call: RecurrenceCall, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode],
    lengths: Sequence[FxNode], sizes: Sequence[FxNode],
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    where = f"the recurrence of {call.where}"
    if call.ragged:
        steps = StepAxis(1, call.sweep.reverse, b.ragged[str(b.shape(x[0])[0])])
    else:
        padded = b.out(lengths[0]) if lengths else None
        steps = StepAxis(int(call.axis == 1), call.sweep.reverse, padded)
    b.refuse_rows(weights if call.ragged else [*x, *state, *weights], where)
    _check_open(b, call, x, where)
    states = [b.flat(node) for node in state]
    given = [b.out(node) for node in x]
    values: list[Tensor | Value] = [
        b.constant(node) if b.is_constant(node) else b.out(node) for node in weights
    ]
    if call.above and sizes:
        raise IRError(
            f"{where} cannot be written over ragged sequences: it reads a size that is left open",
            remedy="torch.tensor(x.shape[0]) in its place",
            got="a size of the example",
            expected="sizes that are computed in the file",
        )
    if call.above:
        return write_ragged_step(b, call, where, (x, state, weights, lengths))
    if call.compiled is not None and not sizes and _fixed(b, x, state, weights, call):
        with suppress(Unsupported):  # the step is written whole
            plan = call.compiled.hoisted
            return PlanWriter(b.emit, plan, call.compiled.constants, given, states, values, steps).write()
    if steps.lengths is not None and call.compiled is None:
        no = call.refusal or _OPEN
        raise IRError(
            f"{where} cannot be written over ragged sequences: {no.reason}"
            + ("" if no.line is None else f" ({no.line})"),
            expected="a step that treats each row alike, whatever the padding holds",
            remedy=no.remedy or "write that part by what compiles, or save it on dense tensors",
        )
    return write_step(b, call, where, given, states, (x, state, weights, sizes, lengths), steps)


def _check_open(b: AtenNet, call: RecurrenceCall, x: Sequence[FxNode], where: str) -> None:
    """Refuse a loop whose number of steps became a fixed number without anyone asking for it."""
    if call.ragged:
        return
    time = int(call.axis == 1)
    for axis, what in ((time, "steps"), (1 - time, "sequences")):
        if call.alone and axis != time:
            continue
        size = b.shape(x[0])[axis]
        if isinstance(size, int) and size in b.not_open:
            line = b.fixed.get(size)
            if line is not None:
                raise IRError(
                    f"{where} cannot be written for any number of {what}: it became {size} in the trace",
                    got=f"Python that decides by a size, or counts by it ({line.short})",
                    expected="calls of torch that are the same for all sizes",
                    remedy=f"{BY_SIZES}; dynamic=... says which dimensions of the inputs stay open",
                )
            raise IRError(
                f"{where} cannot be written for any number of {what}: it became {size} in the trace",
                got=f"an example of {size} {what}",
                expected="at least 2 steps and 2 sequences in the example, and sizes that come from tensors",
                remedy="dynamic=... says which dimensions of the inputs stay open; "
                "those it leaves out are fixed",
            )


def _fixed(
    b: AtenNet, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode], call: RecurrenceCall
) -> bool:
    """Whether all sizes but those of time and batch are plain numbers, as a plan takes them to be."""
    lead = 1 if call.ragged else 2
    shapes: list[list[Any]] = [b.shape(n)[lead:] for n in x]
    shapes += [b.shape(n)[1:] for n in state]
    shapes += [b.shape(n) for n in weights]
    return all(isinstance(size, int) for shape in shapes for size in shape)
