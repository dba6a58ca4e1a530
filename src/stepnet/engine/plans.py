"""The plan of a loop: looked up by what the call depends on, made at its first use, and run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.compiler.reads.reach import Reach, note_asking
from stepnet.compiler.rewritten.inner_loops import ENDED, ENDED_AT_LIMIT, TooFewSteps, inner, is_guarded
from stepnet.compiler.trace.data_dependent import AsksCaptured
from stepnet.compiler.trace.gradient_ways import THROUGH_CALLER
from stepnet.compiler.trace.iteration import code_of, own_classes
from stepnet.data.autograd_history import are_made_of
from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import batches, has_tangent, linearizes, transforms_active
from stepnet.data.storage import no_view
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import SlowPathWarning, Unsupported
from stepnet.executors import naive
from stepnet.executors.autograd import run_plan
from stepnet.executors.call import Call
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.transformed import Run, run_transformed
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop
from stepnet.locks import Lock

from . import open_steps, varying_numbers, warm_calls
from .attribute_outputs import run_and_leave
from .attribute_states import run_with_attributes
from .checkpointed_calls import is_of_checkpoint, is_second_run, saved_since
from .code_in_backward import check_backward
from .declined_calls import forget_declined, note_declined
from .entries import Entry, refused_as, stands
from .executor_choice import about_as_many, for_as_many
from .jvp_plan import Find, RunsAlong
from .kept_by_step import owner_of
from .make import make
from .plain import plain_loop
from .reads import (
    ChangesObjects,
    FailsOnSamples,
    Reads,
    ReadsChanged,
    forget_changing,
    looks,
    looks_of_rows,
    more_inner_steps,
    note_changing,
    read,
    settings,
    steps_of_inner_loops,
    why_changing,
)
from .refusals import DOES_NOT_HOLD, error_for, forget_told, reason_of, tell_of, tell_of_torch_ops
from .refused_steps import (
    Rests,
    changes_objects,
    clock,
    forget_resting,
    note_refused,
    note_refused_again,
    rests,
)
from .rows import Noise, Sequences, as_rows
from .self_check import holds
from .transforms import Further, find_transformed
from .unsteady_steps import forget_miss, forget_unsteady, note_steady, why_unsteady
from .varying_numbers import note_plan
from .walked_steps import forget_steps

_LIMIT = 512
_entries = Bounded[Any, Entry](_LIMIT)
_MOST_REST = 64  # calls that a plan is left out for after its checks did not hold
_OFTEN = 3  # runs in a row of which a check did not hold, of which the user is told
_MOST_TRIES = 8  # to make a plan while other threads change what the step reads
_lock = Lock()


def run(
    loop: Loop, feeds: Mapping[str, Any], *, backend: str, warn: bool = True,
    asked: warm_calls.Asked | None = None, note: Callable[..., object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run a loop by a plan. Without one, `warn` says whether the user is told why: by a warning of the body,
    once, or, where a backend was asked for, by the body's own error.

    Args:
        loop: a sweep over rows.
        feeds: the value of each input port's `source`, as for the plain loop.
        backend: which executors may run it.
        asked: what the next run like this one is found by.
        note: called with the plan, where rows stand, what the plan was given and what it gave, and what the
            body reads, of a run that another on tensors like these would be like.

    Returns:
        The value of each output port, as the plain loop gives it.

    Raises:
        Unsupported: no plan can be made, or no executor of `backend` takes it.
    """
    within = inner()
    if within is not None:  # whoever tries or traces the step around is to see each call
        with torch._C.DisableTorchFunction(), contextlib.suppress(Unsupported):
            within.recurrence(as_rows(loop, feeds).layout.turns)
        return naive.run(loop, feeds)
    chooses = backend == AUTO and warn and note is None
    if backend == AUTO:
        _check_goes_by_plan(loop, feeds, chooses)
    if asked is not None and asked.declined is not None:
        raise _declined_again(asked, asked.declined, backend)
    find, began = finding(backend), clock()
    walked = None if asked is None else asked.walked
    (entry, reads, sequences), transformed, further = _found(loop, feeds, backend, find, walked)
    runs_at = clock()
    if entry.ready is None or entry.compiled is None or entry.y_spec is None:
        if asked is not None and warn and asked.is_of(reads) and not transformed:
            asked.decline(entry)
        return _refused_run(
            entry, loop, feeds, reads, sequences, began, runs_at,
            backend=backend, warn=warn, transformed=transformed,
        )  # fmt: skip
    _check_first_gradients(entry, loop, reads, sequences, backend=backend, warn=warn)
    if warn and backend == AUTO:
        tell_of_torch_ops(entry, loop, reads, sequences)
    guarded, random = is_guarded(entry.y_spec), bool(entry.compiled.draws)
    if guarded:
        _check_may_run(entry, backend, transformed=transformed)
    as_ever = is_as_ever(entry, reads)
    stays, ready = as_ever or (guarded and not random and _is_closed(entry, reads)), entry.ready
    if asked is not None and stays and asked.is_of(reads):
        asked.keep(entry)
        may_be = not transformed and note is None and asked.is_faster_itself(entry, finding)
        done = asked.itself(entry) if may_be else None
        if done is not None:
            return _of_itself(loop, entry.y_spec, done, guarded=guarded)
        if not transformed and note is None:
            ready = asked.ready(entry)  # as later calls do, whose numbers are to be the same
    outputs, ended = _by_plan(entry, ready, loop, reads, sequences, further, find, note)
    if chooses and reads.open is not None and not transformed:
        open_steps.note_plan(entry, loop, reads, sequences, runs_at - began, clock() - runs_at)
    if outputs is not None:
        return outputs
    if not ended:
        more_inner_steps(reads)
        return run(loop, feeds, backend=backend, warn=warn)
    if backend != AUTO:
        naive.run(loop, feeds)  # which tells it
    _let_rest(entry, loop, reads, warn=warn and backend == AUTO)
    raise DOES_NOT_HOLD.fresh()


def _by_plan(
    entry: Entry, ready: Ready, loop: Loop, reads: Reads, sequences: Sequences, further: Further | None,
    find: Find, note: Callable[..., object] | None,
) -> tuple[dict[str, Any] | None, bool]:  # fmt: skip
    """The outputs of a plan, None if it does not hold on these rows, which then have drawn no noise; and
    whether loops inside the step have ended."""
    assert entry.ready is not None
    assert entry.compiled is not None
    assert entry.y_spec is not None
    guarded, random = is_guarded(entry.y_spec), bool(entry.compiled.draws)
    noise = Noise(entry.compiled.draws, reads.reach.generators)
    before = [generator.get_state() for generator in noise.generators]
    # as a warm call gives them: a checkpoint that computes this call again keeps the same
    steps = sequences.steps if further is None and note is None else ()
    call = _call(
        entry, ready, loop, reads, sequences, noise, find,
        steps=steps, along=further is None and not random, guarded=guarded,
    )  # fmt: skip
    x_rows = [*(contiguous(rows) for rows in sequences.x_rows), *noise.tables(sequences.layout)]
    states = [contiguous(state) for state in sequences.states]
    weights = [reads.tensors[place] for place in entry.weights]
    out, take_out = None, saved_since()
    if further is not None:
        out = run_transformed(Run(call, lambda: further), x_rows, states, weights)
    else:
        with _ways_may_raise() if guarded else contextlib.nullcontext():
            out = run_plan(call, x_rows, states, weights)
        if out is not None and note is not None and is_as_ever(entry, reads):
            note(entry, sequences.layout, (sequences.x_rows, sequences.states, weights), out, reads=reads)
    n_y = len(entry.ready.plan.y)
    if out is not None and (not guarded or holds(out[n_y - 1], sequences.layout)):
        outputs = _by_name(loop, entry.y_spec, out, n_y, None if steps else sequences)
        if guarded:
            entry.failed = 0
        return (_unguarded(outputs) if guarded else outputs), True
    take_out()
    for generator, state in zip(noise.generators, before, strict=True):
        generator.set_state(state)
    return None, out is None or ENDED not in entry.y_spec.keys


@contextlib.contextmanager
def _ways_may_raise() -> Iterator[None]:
    """A plan takes all ways through a step: one that raises may be one that the plain loop does not take."""
    try:
        yield
    except Exception as error:  # whatever it is, the plain loop tells where a row comes this way
        let_through(error)
        if is_of_checkpoint(error):
            raise


def _check_goes_by_plan(loop: Loop, feeds: Mapping[str, Any], chooses: bool) -> None:
    """Raises Unsupported if a call goes by the plain loop, without a look at its step."""
    step = code_of(loop).function
    if rests(step) and not is_second_run():
        if changes_objects(step):
            _await_trials()
        raise Rests("the step was refused a moment ago")
    if chooses and (costs := open_steps.why_plainly(loop, feeds)) is not None:
        _await_trials()  # it may change objects by now, where nobody looks at it
        raise costs.fresh()


def _declined_again(asked: warm_calls.Asked, declined: Entry, backend: str) -> Unsupported:
    """Why a call like one that had no plan has none."""
    if backend == AUTO:
        note_declined(asked, functools.partial(note_steady, declined.family))
    note_steady(declined.family)
    return reason_of(declined).fresh()


def _refused_run(
    entry: Entry, loop: Loop, feeds: Mapping[str, Any], reads: Reads, sequences: Sequences,
    began: float, ended: float, *, backend: str, warn: bool, transformed: bool,
) -> dict[str, Any]:  # fmt: skip
    """What `_without_plan` gives or raises. How long the look at the step took, from when it `began` until it
    `ended`, is noted."""
    step = code_of(loop).function
    if reads.reach.refused is not None:
        note_refused(step, ended - began)
    try:
        return _without_plan(entry, loop, feeds, reads, sequences, backend=backend, warn=warn)
    except Unsupported:
        if warn and not transformed:
            refusal = reason_of(entry)
            changes = isinstance(refusal, ChangesObjects)
            if changes or reads.open is not None:
                why = refusal.reason, settings(), _is_training(step)
                note_refused_again(step, why, clock() - began, changes=changes)
        raise


def _call(
    entry: Entry, ready: Ready, loop: Loop, reads: Reads, sequences: Sequences, noise: Noise, find: Find, *,
    steps: tuple[int, ...], along: bool, guarded: bool,
) -> Call:  # fmt: skip
    """The record of a run of a plan. `along`: whether its derivatives along directions have plans, too."""
    assert entry.compiled is not None
    given = (lambda: loop), ready, sequences, reads, entry.weights, find
    same = None
    if ready.plan.own_backward:
        same = functools.partial(check_backward, entry.in_backward, lambda: RunsAlong(*given).same_backward())
    return Call(
        ready,
        sequences.layout,
        entry.compiled.constants,
        noise.drawn_again(plain_loop(loop, sequences, reads, entry.weights, guarded=guarded)),
        functools.cache(lambda: RunsAlong(*given, guarded=guarded)) if along else None,
        guarded,
        steps=steps,
        same_backward=same,
    )


def _await_trials() -> None:
    """Wait for trials in other threads, which put back what a step changes while they last. Those that begin
    later see this call."""
    with _lock:
        pass


def _is_training(step: Callable[..., Any]) -> bool:
    owner = owner_of(step)
    return isinstance(owner, nn.Module) and owner.training


def _check_first_gradients(
    entry: Entry, loop: Loop, reads: Reads, sequences: Sequences, *, backend: str, warn: bool
) -> None:
    """Raises Unsupported if gradients that the step asks for by a state go through what the caller did."""
    assert entry.compiled is not None
    for i, *others in entry.compiled.joint.by_states:
        given = *sequences.x_rows, *sequences.states, *(reads.tensors[place] for place in entry.weights)
        if are_made_of([given[j] for j in others], given[i]):
            if warn and backend == AUTO:
                tell_of(SlowPathWarning, loop, reads, THROUGH_CALLER)
            raise THROUGH_CALLER.fresh()


def _check_may_run(entry: Entry, backend: str, *, transformed: bool) -> None:
    """Raises Unsupported if a plan that may not hold is not to be run now."""
    if entry.rest and backend == AUTO:
        entry.rest -= 1
        raise DOES_NOT_HOLD.fresh()
    if transformed:
        raise Unsupported(
            "a torch.func transform is active, and the step asks something of all rows or has a while_loop",
            remedy="torch.where(condition, a, b) with a condition for each row",
        )


def _without_plan(
    entry: Entry, loop: Loop, feeds: Mapping[str, Any], reads: Reads, sequences: Sequences, *,
    backend: str, warn: bool,
) -> dict[str, Any]:  # fmt: skip
    """A step that changes objects, run with its attributes carried; of all others, why there is no plan."""
    refusal = reason_of(entry)
    if isinstance(refusal, ChangesObjects):
        left = run_and_leave(loop, feeds, reads, sequences, backend, run)
        if left is not None:
            return left
    if isinstance(refusal, (ChangesObjects, FailsOnSamples)):  # it may fail by what it kept before
        done = run_with_attributes(loop, feeds, reads, refusal, backend, run)
        if done is not None:
            outputs, why = done
            if why is not None and warn and backend == AUTO:
                tell_of(SlowPathWarning, loop, reads, why)
            return outputs
    raise error_for(entry, loop, reads, sequences, backend=backend, warn=warn)


def _of_itself(loop: Loop, y_spec: Spec, done: Iterable[Any], *, guarded: bool) -> dict[str, Any]:
    """The outputs of a run that the step made itself."""
    y, last = (flatten(part)[0] for part in done)
    y += [torch.ones(1, dtype=torch.bool)] if guarded else []
    return _unguarded(_by_name(loop, y_spec, [*y, *last], len(y), None))


def _let_rest(entry: Entry, loop: Loop, reads: Reads, *, warn: bool) -> None:
    """The plan rests, twice as long each time that a check of it fails."""
    entry.failed += 1
    entry.rest = min(2**entry.failed, _MOST_REST)
    if warn and entry.failed == _OFTEN:
        tell_of(SlowPathWarning, loop, reads, DOES_NOT_HOLD)


def _unguarded(outputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in outputs.items() if name not in (ENDED, ENDED_AT_LIMIT)}


def _by_name(
    loop: Loop, y_spec: Spec, out: list[Tensor], n_y: int, sequences: Sequences | None
) -> dict[str, Any]:
    """The outputs of a loop, of what a plan gives. `sequences`: what they are cut as, if they are tables."""
    y = out[:n_y] if sequences is None else [_whole(sequences.restore(rows)) for rows in out[:n_y]]
    one = y_spec.children == (LEAF,)
    outputs = {y_spec.keys[0]: y[0]} if one else unflatten(y_spec, y)
    return outputs | {output: out[n_y + place] for output, place in loop.finals}


def _whole(y: Any) -> Any:
    return no_view(y) if isinstance(y, Tensor) and not transforms_active() else y


def is_as_ever(entry: Entry, reads: Reads) -> bool:
    """Whether the next run on tensors like those of this one need only ask which plan this one had."""
    return _is_closed(entry, reads) and not is_guarded(entry.y_spec)


def _is_closed(entry: Entry, reads: Reads) -> bool:
    if entry.compiled is None or entry.y_spec is None or entry.unsure or entry.compiled.draws:
        return False
    if entry.compiled.joint.by_states:  # a look at what the caller did is due each time
        return False
    return reads.open is None and reads.inputs is None


def _found(
    loop: Loop, feeds: Mapping[str, Any], backend: str, find: Find, walked: Reach | None
) -> tuple[tuple[Entry, Reads, Sequences], bool, Further | None]:
    """The plan of a run, whether it takes part in transforms, and the derivatives that these ask for."""
    if not (transforms_active() or linearizes()):
        try:
            return find_plan(loop, feeds, backend=backend, walked=walked), False, None
        except _Moves:
            pass
    entry, reads, sequences, further = find_transformed(loop, feeds, find)
    return (entry, reads, sequences), True, further


def run_again(asked: warm_calls.Asked) -> tuple[Any, Any] | None:
    """The joined result and what is carried last, of a run like one before; None if there was none, or the
    plan declines: the long way says what comes of it."""
    entry = asked.known(guarded=True)
    if entry is None:
        return None
    note_steady(entry.family)
    try:
        done = asked.itself(entry) if asked.is_faster_itself(entry, finding) else None
        if done is None and is_guarded(entry.y_spec):
            return None
        return done or asked.run(entry, finding(asked.way.backend))
    except Unsupported:
        return None


def run_warm(
    of: warm_calls.Steps, step: Any, x: Any, state: Any, way: tuple[bool, int, int, str],
    pieces: Layout | None = None, draws: bool = True,
) -> tuple[Any, tuple[Any, Any] | None]:  # fmt: skip
    """The initial state, and what `run_again` gives for a call with the shapes of one before; None if it is
    not known to be one. `pieces`, `draws`: see `warm_calls.warm`."""
    return warm_calls.warm(of, step, x, state, way, finding, pieces, draws)


def finding(backend: str) -> Find:
    """What gives the plan of a run, of one backend."""
    return functools.partial(lookup, backend=backend)


class _Moves(Unsupported):
    """The inputs have directions, as inside a transform."""


def find_plan(
    loop: Loop, feeds: Mapping[str, Any], *, backend: str, lifts: bool = True, walked: Reach | None = None
) -> tuple[Entry, Reads, Sequences]:
    """The plan that a run goes by, what its body reads, and its inputs as tables of rows. `lifts`: whether
    numbers of Python's may be inputs of the plan. `walked`: what its body was just found to reach.

    Raises:
        Unsupported: an input or a state is no table of rows, or torch is to see each operation. That no plan
            can be made is in the entry.
    """
    if backend == AUTO and torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        raise Unsupported("anomaly mode looks for the operation of the step that gives NaN")
    sequences = as_rows(loop, feeds)
    now = functools.partial(read, loop, sequences.x_rows, sequences.states, sequences.shared, lifts)
    reads = now(walked)
    if any(map(has_tangent, (*sequences.x_rows, *sequences.states, *reads.tensors))):
        if batches():
            raise Unsupported("forward mode carries several tangents at once")
        raise _Moves("a forward-mode tangent is carried along")
    entry = lookup(loop, reads, sequences, backend)
    if refused_as(AsksCaptured, entry):
        note_asking(code_of(loop).function, own_classes(code_of(loop).form))
        forget_steps()
        reads = now()
        entry = lookup(loop, reads, sequences, backend)
    for _ in range(_MOST_TRIES):
        if not refused_as(ReadsChanged, entry):
            break
        reads = now()
        entry = lookup(loop, reads, sequences, backend)
    while refused_as(TooFewSteps, entry):
        more_inner_steps(reads)
        entry = lookup(loop, reads, sequences, backend)
    if reads.inputs is not None and entry.ready is None and not refused_as(ReadsChanged, entry):
        # each number in its own plan then
        reads.inputs.of.lifts = False
        reads = now()
        entry = lookup(loop, reads, sequences, backend)
    return entry, reads, sequences


def lookup(
    loop: Loop, reads: Reads, sequences: Sequences, backend: str, fill: Callable[[], None] | None = None
) -> Entry:
    """The plan of a run's signature, made at its first use. `fill`: gives the tensors their numbers first."""
    if reads.refusal is not None:
        return _refused(reads, reads.refusal)
    signature = (
        code_of(loop).form,
        looks_of_rows(sequences.x_rows),
        looks_of_rows(sequences.states),
        settings(),
        tried(backend),
        steps_of_inner_loops(reads),
    )
    key = (reads.key, looks(reads.tensors), signature)
    entry = _entries.get(key)
    if entry is not None and not entry.unsure:
        note_steady(entry.family)
        found = entry.of_size(about_as_many(sequences.layout.sequences))
        if found is not None:
            return found
    if fill is not None:
        fill()
    with _lock:
        known = _entries.get(key)
        if known is not None and stands(known):
            return for_as_many(known, loop, reads, sequences)
        step = code_of(loop).function
        if reads.open is None and (changes := why_changing(reads.reach, step)) is not None:
            return _refused(reads, changes)
        family = (reads.code, signature)
        if (unsteady := why_unsteady(family, key, reads, step, backend)) is not None:
            return _refused(reads, unsteady)
        entry = make(loop, reads, sequences, backend)
        if entry.changes is not None or refused_as(ReadsChanged, entry):  # what it changed is in the key
            forget_miss(family, key)  # the entry would not be met again
            if entry.changes is None:
                return entry
            return _refused(reads, note_changing(reads.reach, entry.changes))
        entry.times = 1 if known is None else known.times + 1
        entry.pause = 2**entry.times
        entry.family = family
        _entries[key] = entry
        if entry.ready is not None and reads.open is None and reads.inputs is None:
            note_plan(reads.root, reads.key, code_of(loop).function)
    return entry


def _refused(reads: Reads, refusal: Unsupported) -> Entry:
    """What is known of a step that is refused whatever else it reads: one entry, so that it is told once."""
    key = ("refused", reads.root, refusal.reason)
    with _lock:
        entry = _entries.get(key)
        if entry is None:
            entry = Entry()
            entry.refusals.append(("capture", refusal.fresh()))
            _entries[key] = entry
    return entry


def forget() -> None:
    """Forget every plan of this process, and what was warned of."""
    with _lock:
        _entries.clear()
        forget_unsteady()
        varying_numbers.forget()
        warm_calls.forget()
        forget_declined()
        forget_resting()
        open_steps.forget_open()
        forget_changing()
        forget_told()
