"""A run like one before: its plan without the record of its loop, which takes as long to make and
to look through as a step of a small cell.

What tells two calls apart is what tells two plans apart (`plans.lookup`): all that the body's Python reads,
and what its inputs look like. The step is walked anew, unless it is known to read what it read (see
`walked_steps`); of such a step calls on equal shapes are found at once (`warm`). Whatever is out of the
ordinary (modes, transforms, traces) goes the long way, and so does the first call of each kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stepnet.compiler.reads.reach import Reach, reach
from stepnet.compiler.rewritten.inner_loops import is_guarded
from stepnet.compiler.trace.iteration import own_classes
from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype, is_kept_twice, nothing_around, sees_saved_tensors, settings
from stepnet.data.tensor_guards import alike
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.data.unpatched_torch import contiguous, is_contiguous
from stepnet.errors import Unsupported
from stepnet.executors.autograd import is_copied, run_direct, run_plan, run_real
from stepnet.executors.base import Executor
from stepnet.executors.call import Call, goes_by_places, not_asked_for
from stepnet.executors.direct import Lately
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.setting import only_plain
from stepnet.ir.loop import Body, Loop
from stepnet.watchers import is_noted, note_run

from . import open_steps
from .code_in_backward import check_backward
from .entries import Entry
from .executor_choice import about_as_many
from .inputs import inputs_of
from .jvp_plan import Find, RunsAlong
from .one_step_plans import is_one_step, plan_of_one_step
from .plain import plain_loop
from .reads import Reads, looks
from .refused_steps import clock, rests
from .rows import Sequences
from .single_step_timing import is_faster, one_step
from .trial import apart
from .walked_steps import Found, boots, forget_steps, is_closed, note, unchanged_step

_LIMIT = 512
_known = Bounded[Any, Entry](_LIMIT)
_declined = Bounded[Any, Entry](_LIMIT)
_LONG_WAY = 3e-4  # seconds that a plan takes more that may not hold: it is asked for by its loop


class Way(NamedTuple):
    """How a call goes over its rows, and by which backend."""

    reverse: bool
    level: int
    axis: int
    backend: str


class Steps(NamedTuple):
    """What steps are, of which the engine knows nothing.

    `wrap`: a step as a function of its parameters; `called`: as one that is called once, no more. `boot`:
    what it begins with for a number of sequences. `body`: of a function, and how x and the state are nested,
    the body of its loop. `record`: of a function, its inputs, what is carried, how both are nested, and the
    way: the loop and what it is fed. `as_they_are`: of how x and the state are nested, whether a step is
    called on just these. `found_by`: what a step is known by.
    """

    wrap: Callable[[Any], Callable[..., Any]]
    boot: Callable[[Callable[..., Any], int], Any]
    body: Callable[[Callable[..., Any], Spec, Spec], Body]
    record: Callable[..., tuple[Loop, Mapping[str, Any]]]
    as_they_are: Callable[[tuple[Spec, Spec]], bool]
    found_by: Callable[[Any], Any]
    called: Callable[[Any], Callable[..., Any]]


class Asked(NamedTuple):
    """A run that may be like one before: what it goes by, and what it is found by."""

    of: Steps
    step: Callable[..., Any]
    x: list[Any]  # its inputs: tensors, or LoDTensors
    states: list[Tensor]
    form: tuple[Spec, Spec]
    way: Way
    key: tuple[Any, ...]  # of what the step reads
    tensors: list[Tensor]
    rows: list[Tensor]
    layout: Layout
    looks: Any  # what tells its inputs apart from others
    names: Set[str]  # see `Reach`
    walked: Reach | None = None  # what was found just now, of the step itself

    def record(self) -> tuple[Loop, Mapping[str, Any]]:
        """The loop, and what it is fed."""
        reverse, level, axis, _ = self.way
        of = (self.of.wrap(self.step), self.x, self.states, self.form)
        return self.of.record(*of, reverse=reverse, level=level, axis=axis)

    def loop(self) -> Loop:
        """The record of the loop."""
        return self.record()[0]

    def of_one_row(self) -> Asked:
        """The same, with one row for all of x: it says what rows are like, and holds none of the others."""
        rows = [t.detach()[:1].clone().expand(t.shape).requires_grad_(t.requires_grad) for t in self.rows]
        return self._replace(x=self._as_x(rows), rows=rows)

    def _as_x(self, values: Sequence[Tensor]) -> list[Any]:
        """Inputs like those of this call, of other numbers."""
        given = zip(values, self.x, strict=True)
        return [LoDTensor.of(t, x.structure) if type(x) is LoDTensor else t.view(x.shape) for t, x in given]

    @property
    def steps(self) -> tuple[int, ...]:
        """The first sizes of tensors; nothing of LoDTensors."""
        return () if type(self.x[0]) is LoDTensor else tuple(self.x[0].shape[:2])

    @property
    def sequences(self) -> Sequences:
        """What the loop is given, as tables."""
        return Sequences(self.layout, self.rows, lambda table: table, self.states, [])

    @property
    def reads(self) -> Reads:
        """What its step reads."""
        return self._reads(self.tensors)

    def _reads(self, tensors: list[Tensor]) -> Reads:
        return Reads(Reach(self.key, tensors, True, None, None, []), ("reach", *self.key), tensors)

    def _unchanged(self) -> Reads | None:
        """What its step reads now, if it is known to read the same without a walk."""
        told = unchanged_step(self.step)
        return None if told is None or told[0].key != self.key else self._reads(told[1])

    def known(self, guarded: bool = False) -> Entry | None:
        """The plan of a call like this one. `guarded`: also one that may not hold, of one step that need not
        go by it."""
        entry = _known.get((self.key, self.looks)) or _known.get(self._of_size())
        return entry if guarded or entry is None or not is_guarded(entry.y_spec) else None

    def is_of(self, reads: Reads) -> bool:
        """Whether the step reads this; another thread may have changed it since this was asked."""
        return self.key == reads.reach.key and self.looks[0] == looks(reads.tensors)

    @property
    def draws(self) -> bool:
        """Whether it is known to draw noise from torch's generator."""
        entry = self.known()
        return entry is not None and entry.ready is not None and entry.ready.plan.random

    def keep(self, entry: Entry) -> None:
        """Note the plan that this call went by, if it has one."""
        if entry.ready is not None and entry.compiled is not None and entry.y_spec is not None:
            _known[(self.key, self.looks) if entry.accepted is None else self._of_size()] = entry

    @property
    def declined(self) -> Entry | None:
        """What is known of a call like this one that had no plan."""
        return _declined.get((self.key, self.looks))

    def decline(self, entry: Entry) -> None:
        """Note that calls like this one have no plan, if that follows from the step alone."""
        of_itself = entry.family is not None and not entry.unsure and entry.accepted is None
        if of_itself and all(type(why) is Unsupported for _, why in entry.refusals):
            _declined[(self.key, self.looks)] = entry

    def _of_size(self) -> Any:
        """What a plan is found by that is for about as many sequences."""
        return self.key, self.looks, about_as_many(self.layout.sequences)

    def ready(self, entry: Entry) -> Ready:
        """The plan that it runs by."""
        assert entry.ready is not None
        if not is_one_step(self.x[0], self.layout, self.way.axis):
            return entry.ready
        return plan_of_one_step(entry, self.loop, self.reads, self.sequences)

    def itself(self, entry: Entry) -> tuple[Any, Any] | None:
        """What `itself` gives."""
        given = self.x, self.states, self.tensors, self.form, self.way.axis
        return itself(self.of.called(self.step), *given, entry, self.layout)

    def is_faster_itself(self, entry: Entry, find: Callable[[str], Find]) -> bool:
        """Whether it is of one step, which by itself was timed faster than its plan."""
        one = is_one_step(self.x[0], self.layout, self.way.axis) and self.of.as_they_are(self.form)
        may_be = one and self.way.backend == AUTO and autocast_dtype("cpu") is None
        if not may_be or entry.ready is None or entry.ready.plan.random or is_kept_twice():
            return False
        size = about_as_many(self.layout.sequences)
        if size not in entry.itself:
            with apart(self.reads):
                times = self._timed(entry, find)
            entry.itself[size] = times is not None
            if times is not None:
                entry.notes.append(f"calls of 1 step run by the plain loop: {times}")
        return entry.itself[size]

    def _timed(self, entry: Entry, find: Callable[[str], Find]) -> str | None:
        like = _like(self, entry, (*self.rows, *self.states, *self.tensors), 0, find)
        ragged, function = isinstance(self.x[0], LoDTensor), self.of.called(self.step)

        def with_(x: list[Tensor], rows: list[Tensor], states: list[Tensor]) -> Asked:
            return self._replace(x=self._as_x(x), rows=rows, states=states)

        def by_plan(x: list[Tensor], states: list[Tensor]) -> list[Tensor]:
            rows = [t.view(own.shape) for t, own in zip(x, self.rows, strict=True)]
            recorded = (lambda: like.recorded(with_(x, rows, states))) if torch.is_grad_enabled() else None
            y, last = like.run(self.layout, rows, states, self.tensors, self.x[0], recorded)
            y = flatten(y)[0]
            return [*([t.values for t in y] if ragged else y), *flatten(last)[0]]

        def by_itself(x: list[Tensor], states: list[Tensor]) -> list[Tensor] | None:
            return one_step(function, x, states, self.form, None if ragged else self.way.axis)

        weights = [self.tensors[place] for place in entry.weights]
        given = [x.values for x in self.x] if ragged else self.x
        besides = _LONG_WAY if is_guarded(entry.y_spec) else 0.0
        return is_faster((given, self.states), weights, by_plan, by_itself, besides)

    def run(self, entry: Entry, find: Find) -> tuple[Any, Any]:
        """y and the final state, by a plan. `find`: see `RunsAlong`."""
        steps = self.steps
        call = self.call(entry, self.ready(entry), find, steps)
        weights = [self.tensors[place] for place in entry.weights]
        out = run_plan(
            call, [contiguous(t) for t in self.rows], [contiguous(s) for s in self.states], weights
        )
        note_run(entry, self.layout, (self.rows, self.states, weights), out, steps)
        return joined(out, len(out) - len(self.states), entry.y_spec, self.x[0], self.form[1])

    def call(
        self, entry: Entry, ready: Ready, find: Find, steps: tuple[int, ...], as_it_is: bool = False
    ) -> Call:
        """The run of a plan, by the `ready` for such calls. `find`: see `RunsAlong`."""
        assert entry.ready is not None
        assert entry.compiled is not None
        plan = entry.ready

        @functools.cache
        def along() -> RunsAlong:
            given = self.sequences, self.reads, entry.weights, find
            return RunsAlong(self.loop, plan, *given, unchanged=self._unchanged)

        constants, plain = entry.compiled.constants, self._plain(entry.weights)
        same = None
        if ready.plan.own_backward:
            same = functools.partial(check_backward, entry.in_backward, lambda: along().same_backward())
        how = {"steps": steps, "same_backward": same, "as_it_is": as_it_is}
        return Call(ready, self.layout, constants, plain, along, **how)

    def _plain(self, places: Sequence[int]) -> Callable[..., Any]:
        """The plain loop on the inputs of this call, made when it is asked for."""

        def plain(*tables: Any) -> Any:
            return plain_loop(self.loop(), self.sequences, self.reads, places)(*tables)

        return plain


def itself(
    function: Callable[..., Any], x: Sequence[Any], states: list[Tensor], tensors: Sequence[Tensor],
    form: tuple[Spec, Spec], axis: int, entry: Entry, layout: Layout,
) -> tuple[Any, Any] | None:  # fmt: skip
    """y and the final state of a call of one step, by the step itself; None if it fails. `x`: its inputs."""
    rows, at = ([t.values for t in x], None) if isinstance(x[0], LoDTensor) else (x, axis)
    out = one_step(function, rows, states, form, at)
    if out is None:
        return None
    if is_noted():
        weights = [tensors[place] for place in entry.weights]
        tables, steps = rows, ()
        if at is not None:
            tables, steps = [t.flatten(0, 1) for t in rows], rows[0].shape[:2]
        note_run(entry, layout, (tables, states, weights), out, steps)
    return joined(out, len(out) - len(states), entry.y_spec, x[0], form[1])


def joined(
    out: list[Tensor], n_y: int, spec: Spec | None, x: Tensor | LoDTensor, state: Spec
) -> tuple[Any, Any]:
    """y and the final state, of what a plan gives. `x`: an input."""
    assert spec is not None
    y: list[Any] = out[:n_y]
    if type(x) is LoDTensor:
        y = [LoDTensor.of(rows, x.structure) for rows in y]
    first = spec.children[0]
    whole = unflatten(first, y[: first.count])  # behind may stand what holds of all rows
    return whole, out[n_y] if state is LEAF else unflatten(state, out[n_y:])


def _is_last(level: int, x: LoDTensor) -> bool:
    """Whether the elements of a level are the rows."""
    return level in (-1, x.lod_level - 1)


def _tables(x: Sequence[Any], way: Way, pieces: Layout | None) -> tuple[list[Tensor], Layout] | None:
    """The rows of inputs and where they stand, if these are as simple as most are: tensors of rows of numbers
    on the CPU, or LoDTensors of them. `pieces`: see `warm`."""
    first, ragged = x[0], type(x[0]) is LoDTensor
    given = [t.values for t in x] if ragged else x
    if not all(type(t) is Tensor and t.is_cpu for t in given) or only_plain(given) is not None:
        return None
    if ragged:
        if not _is_last(way.level, first) or all(t.dim() < 2 for t in given):
            return None
        return [*given], pieces or Layout.of(first.structure, way.reverse)
    if way.axis not in (0, 1) or first.is_nested or all(t.dim() < 3 for t in given):
        return None
    one, two = first.shape[:2]
    by_time = way.axis == 0
    layout = pieces or Layout.dense(one if by_time else two, two if by_time else one, by_time, way.reverse)
    return [t.reshape(one * two, *t.shape[2:]) for t in given], layout


def asked(
    of: Steps, step: Any, x: Any, state: Any, way: Way, pieces: Layout | None = None
) -> tuple[Any, Asked | None]:
    """The initial state, and what a run is found by; None if it is to go the long way.

    Args:
        of: what steps are.
        step: the step, as the caller has it.
        x: what is cut into steps.
        state: what is carried; None: what the step begins with, if the run is of the kind that may be found.
        way: how it goes over its rows.
        pieces: see `warm`.
    """
    if torch._C._len_torch_function_stack() or forward_ad._current_level >= 0 or torch.is_anomaly_enabled():
        return state, None
    inputs, x_spec = inputs_of(x) if tried(way.backend) else ([], LEAF)
    tables = _tables(inputs, way, pieces) if inputs else None
    if tables is None:
        return state, None
    rows, layout = tables
    if state is None:
        state = of.boot(of.wrap(step), layout.sequences)
    states, spec = flatten(state)
    for leaf in states:
        if type(leaf) is not Tensor or leaf.layout is not torch.strided or not leaf.is_cpu:
            return state, None
        if not leaf.dim() or leaf.shape[0] != layout.sequences:
            return state, None
    known_by, walked = of.found_by(step), None
    unchanged = unchanged_step(known_by)
    if unchanged is not None:
        found, tensors = unchanged
        key, names = found.key, found.names
    else:
        if way.backend == AUTO and (rests(step) or open_steps.goes_plainly(step, layout)):
            return state, None
        function = of.wrap(known_by)
        given = own_classes((x_spec, spec))
        began = clock()
        walked = reach(function, given)
        if not is_closed(walked):
            if walked.open is not None and walked.refused is None:
                open_steps.note_walk(known_by, clock() - began)
            return state, None
        note(known_by, function, given, walked)
        key, tensors, names = walked.key, walked.tensors, walked.names
    like = (
        looks(tensors),
        (x_spec, spec),
        tuple([(t.shape[1:], t.dtype, t.requires_grad) for t in states]),
        tuple([(t.shape[1:], t.dtype, t.requires_grad) for t in rows]),
        type(inputs[0]) if pieces is None else LoDTensor,
        *settings(),
        tried(way.backend),
    )
    own = walked if known_by is step else None  # in cells of ours nothing stays
    form = (x_spec, spec), way, key, tensors, rows, layout, like, names, own
    return state, Asked(of, step, inputs, states, *form)


class _Like(NamedTuple):
    """What calls have in common that look alike, and what they run by."""

    alike: Callable[..., bool]  # whether tensors look as theirs did; without gradients, whatever needs one
    kinds: list[type]  # of those, which `alike` keeps the addresses of
    low: torch.dtype | None  # of autocast
    tried: tuple[Executor, ...]
    entry: Entry
    made_for: Ready  # its plan
    form: tuple[Spec, Spec]
    way: Way
    find: Find
    tables: list[tuple[int, ...]] | None  # the shapes of inputs as rows; None: they may be left as they are
    in_one_piece: bool  # whether each of them is
    call: Call  # one that leaves nothing to do for backward
    complex: bool
    direct: bool  # whether a run may go by places
    lately: Lately
    by_itself: bool = False  # whether the step itself is faster

    def run(
        self, layout: Layout, rows: Sequence[Tensor], states: Sequence[Tensor], tensors: Sequence[Tensor],
        x: Tensor | LoDTensor, recorded: Callable[[], Call] | None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """y and the final state. `x`: an input. `recorded`: makes the run that a backward may follow."""
        weights = [tensors[place] for place in self.entry.weights]
        first = [contiguous(s) for s in states]  # which one that was expanded is not
        if self.direct and (recorded is None or not sees_saved_tensors()):
            inputs = *rows, *first, *weights
            trains = recorded is not None
            direct = self.lately.direct(self.call.ready, layout, inputs, self.call.steps, trains)
            by_names = recorded or not_asked_for
            out = None if direct is None else run_direct(direct, by_names, inputs, layout)
            if out is not None:
                note_run(self.entry, layout, (rows, states, weights), out, self.call.steps)
                return joined(out, len(out) - len(states), self.entry.y_spec, x, self.form[1])
        run_by = self.call._replace(layout=layout) if recorded is None else recorded()
        tables = [contiguous(t) for t in rows]
        if self.complex:
            out = run_plan(run_by, tables, first, weights)
        else:
            out = run_real(run_by, (*tables, *first, *weights), len(tables), len(first))
        note_run(self.entry, layout, (rows, states, weights), out, self.call.steps)
        return joined(out, len(out) - len(states), self.entry.y_spec, x, self.form[1])

    def recorded(self, call: Asked) -> Call:
        """The run of a call that a backward may follow."""
        if any(map(is_copied, call.rows)):
            call = call.of_one_row()
        return call.call(self.entry, self.call.ready, self.find, self.call.steps, self.call.as_it_is)


def warm(
    of: Steps, step: Any, x: Any, state: Any, way: tuple[bool, int, int, str],
    find: Callable[[str], Find], pieces: Layout | None = None, draws: bool = True,
) -> tuple[Any, tuple[Any, Any] | None]:  # fmt: skip
    """The initial state; y and the final state of a call with the shapes of one before, of a step that reads
    what it read, and draws no noise unless it `draws`; None where it is not known to be one. `find`: for a
    backend, see `RunsAlong`. `pieces`: the sequences, if they are not those of x; their plan is one of ragged
    sequences."""
    if (
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or torch.is_anomaly_enabled()
        or (type(x) is Tensor and x.is_nested)
    ):
        return state, None
    if pieces is not None and torch.is_grad_enabled() and sees_saved_tensors():
        return state, None  # y is saved as the first call does, in rows
    inputs, x_spec = ([x], LEAF) if type(x) is Tensor or type(x) is LoDTensor else inputs_of(x)
    if not inputs:
        return state, None
    if state is None:
        (_, level, axis, _), first = way, inputs[0]
        if isinstance(first, LoDTensor):
            n = first.structure.count(-1) if _is_last(level, first) else None
        else:
            n = first.shape[1 - axis] if axis in (0, 1) and any(t.dim() > 2 for t in inputs) else None
        if n is None or not boots(step):
            return None, None
        state = of.boot(of.wrap(step), n)
    unchanged = unchanged_step(of.found_by(step))
    if unchanged is None:
        return state, None
    try:
        return state, _warm(of, step, inputs, x_spec, state, way, find, pieces, draws, unchanged)
    except Unsupported:  # the long way says what comes of it
        return state, None


def _warm(
    of: Steps, step: Any, x: list[Any], x_spec: Spec, state: Any, way: tuple[bool, int, int, str],
    find: Callable[[str], Find], pieces: Layout | None, draws: bool, unchanged: tuple[Found, list[Tensor]],
) -> tuple[Any, Any] | None:  # fmt: skip
    found, tensors = unchanged
    states, spec = ([state], LEAF) if type(state) is Tensor else flatten(state)
    first = x[0]
    ragged = isinstance(first, LoDTensor)
    rows, n = ([t.values for t in x], first.structure.count(-1)) if ragged else (x, None)
    seen = rows[0].shape[1:] if ragged else first.shape
    if x_spec is not LEAF:
        seen = x_spec, *[t.shape[1:] if ragged else t.shape for t in rows]
    if pieces is not None:
        n = pieces.sequences
    layout, one = pieces, False
    if pieces is None and ragged:
        layout = Layout.of(first.structure, way[0])
        one = is_one_step(first, layout, way[2])
    if n is not None:  # sequences of any lengths, and about as many
        seen = about_as_many(n), ragged, one, seen
    grad = torch.is_grad_enabled()
    looks = (seen, way, spec, grad, torch.get_default_dtype())
    given = (*rows, *states, *tensors)
    like: _Like | None = found.likes.get(looks)
    if (
        like is not None
        and like.made_for is like.entry.ready
        and (draws or not like.call.ready.plan.random)
        and like.alike(*given)
        and like.tried is tried(way[3])
        and (like.low is None or like.low is autocast_dtype("cpu"))
        and (n is None or [t.shape[0] for t in states] == [n] * len(states))
    ):
        layout = layout or like.call.layout
        if like.by_itself and not is_kept_twice():
            out = itself(of.called(step), x, states, tensors, like.form, way[2], like.entry, layout)
            if out is not None or is_guarded(like.entry.y_spec):
                return out
        if like.tables is not None:
            pairs = zip(rows, like.tables, strict=True)
            # a view of numbers given one by one takes half as long
            rows = [t.view(*size) if like.in_one_piece else t.reshape(size) for t, size in pairs]
        form = like.form, like.way, found.key, tensors, rows, layout, None, found.names
        recorded = (lambda: like.recorded(Asked(of, step, x, states, *form))) if grad else None
        return like.run(layout, rows, states, tensors, first, recorded)
    odd = any(type(t) is not Tensor or t.layout is not torch.strided for t in (*rows, *states))
    if odd or not nothing_around():
        return None
    _, call = asked(of, step, unflatten(x_spec, x), state, Way(*way), pieces)
    if call is None or (not draws and call.draws):
        return None
    return _first_alike(found, looks, call, given, n is not None, find, pieces is None)


def _first_alike(
    found: Found, looks: Any, call: Asked, given: tuple[Tensor, ...], ragged: bool,
    find: Callable[[str], Find], whole: bool,
) -> tuple[Any, Any] | None:  # fmt: skip
    """y and the final state of a call that others may look like; None if there is no plan for it. `whole`:
    whether its sequences are those of x."""
    entry = call.known(guarded=True)
    if entry is None:
        return None
    by_itself = whole and call.is_faster_itself(entry, find)
    if is_guarded(entry.y_spec) and not by_itself:
        return None
    if len(found.likes) >= _LIMIT:
        found.likes.clear()
    like = _like(call, entry, given, len(call.x) + len(call.states) if ragged else 0, find)
    like = found.likes[looks] = like._replace(by_itself=by_itself)
    out = call.itself(entry) if by_itself else None
    if out is not None or is_guarded(entry.y_spec):
        return out
    recorded = (lambda: like.recorded(call)) if torch.is_grad_enabled() else None
    return like.run(call.layout, call.rows, call.states, call.tensors, call.x[0], recorded)


def _like(
    call: Asked, entry: Entry, given: tuple[Tensor, ...], any_rows: int, find: Callable[[str], Find]
) -> _Like:
    """What the calls after this one are held against. `any_rows`: how many of the tensors that it was given,
    from the first on, may have other numbers of rows."""
    ragged, low = isinstance(call.x[0], LoDTensor), autocast_dtype("cpu")
    assert entry.ready is not None
    assert entry.compiled is not None
    ready, steps = call.ready(entry), call.steps
    as_it_is = low is None and not any(t.is_neg() or t._is_zerotensor() for t in given)
    what = ready, call.layout, entry.compiled.constants, not_asked_for
    alone = Call(*what, steps=steps, as_it_is=as_it_is)  # no backward follows
    is_complex = any(t.is_complex() for t in given) or bool(ready.plan.paired)
    # nothing is saved by it, and the plan reads x where it lies, whatever its shape
    by_address = (
        len(call.x) == 1 and not ready.forward.reads_rows(ready.plan.x) and not torch.is_grad_enabled()
    )
    return _Like(
        alike=alike(given, any_rows=any_rows),
        kinds=[*map(type, given)],
        low=low,
        tried=tried(call.way.backend),
        entry=entry,
        made_for=entry.ready,
        form=call.form,
        way=call.way,
        find=find(call.way.backend),
        tables=None if ragged or by_address else [tuple(t.shape) for t in call.rows],
        in_one_piece=all(map(is_contiguous, given[: len(call.x)])),
        call=alone,
        complex=is_complex,
        direct=goes_by_places(ready, alone.constants, given),
        lately=Lately(),
    )


def forget() -> None:
    """Forget every call."""
    _known.clear()
    _declined.clear()
    forget_steps()
