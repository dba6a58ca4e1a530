"""A plan made: the step tried on sample rows, compiled or read from disk, and given to an executor."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.compiler import stored
from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.pipeline import Compiled, Signature, compile_loop
from stepnet.compiler.reads.step_digest import digest
from stepnet.compiler.reads.undo import Snapshot, is_only_thread, undone
from stepnet.compiler.rewritten.inner_loops import inner_loops, is_guarded
from stepnet.compiler.trace.capture import BY_VALUES, Example
from stepnet.compiler.trace.data_dependent import CLAIMED, AsksCaptured
from stepnet.compiler.trace.draws import Draw, drawn_in_order, kept
from stepnet.compiler.trace.iteration import code_of, iteration, reached
from stepnet.compiler.trace.record import has_own_backward
from stepnet.compiler.trace.record import tried as tried_on
from stepnet.compiler.trace.set_aside import without_compiled_autograd, without_hooks, without_modes
from stepnet.compiler.trace.untraced_constants import lost_tensor, may_be_constant, unseen_are_constants
from stepnet.data.modes import default_device, draws_put_back, for_plans
from stepnet.data.storage import memory_of
from stepnet.data.tree import Spec
from stepnet.errors import NotBuilt, StepnetError, Unsupported
from stepnet.executors import plan_files
from stepnet.executors.base import Executor
from stepnet.executors.naive import PLAIN
from stepnet.executors.ready import Ready, make_ready
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.torch_ops.ops import bind
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop
from stepnet.user_line import line_in

from .code_in_backward import InBackward
from .executor_choice import MOST_SEQUENCES, Race, about_as_many, race, recall, remember
from .other_threads import Meanwhile
from .reads import FailsOnSamples, Reads, ReadsChanged, read, read_anew, settings, steps_of_inner_loops
from .rows import Noise, Sequences, samples
from .self_check import self_check, versions
from .stride_dependence import check_strided


@dataclass
class Entry:
    """What is known of one signature of a step: its plan and executor, or why there is none."""

    ready: Ready | None = None
    compiled: Compiled | None = None
    weights: list[int] = field(default_factory=list)
    y_spec: Spec | None = None
    refusals: list[tuple[str, Unsupported]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: bool = False  # an executor did not pass the self-check
    own_backward: bool = False  # see `Plan`
    in_backward: InBackward | None = None  # what that code reads, if that is known
    changes: frozenset[str] | None = None  # the step changed what it reads, by these names
    twice: bool | None = None  # of a derivative's plan: whether second derivatives by it are right
    forward_mode: bool | None = None  # and whether derivatives in forward mode are
    unsure: bool = False  # other threads ran while it was made, or C could not be built
    times: int = 1  # that it was made, if it is not sure
    pause: int = 2  # calls until it is made again
    failed: int = 0  # runs in a row of which a check did not hold
    rest: int = 0  # calls until it is run again
    family: Any = None  # what entries of the same code, with other values, have in common
    accepted: Accepted | None = None  # of a plan that is timed for some numbers of sequences
    size: int = 0  # of its number of sequences
    sizes: dict[int, Entry] = field(default_factory=dict)  # the same for more or fewer sequences
    # Of one step of about so many sequences: whether the step itself is faster.
    itself: dict[int, bool] = field(default_factory=dict)

    def of_size(self, size: int) -> Entry | None:
        """This, or the same for about as many sequences as `size` says; None if that was not made yet."""
        return self if self.accepted is None or size == self.size else self.sizes.get(size)


class Accepted(NamedTuple):
    """A plan as the first executor that accepts it made it ready, before any is timed, and what was said of
    it until then; the key of its files."""

    ready: Ready
    refusals: Sequence[tuple[str, Unsupported]]
    notes: Sequence[str]
    key: str | None


def make(loop: Loop, reads: Reads, sequences: Sequences, backend: str) -> Entry:
    """The entry of a run's signature."""
    found = reached(loop, everything=True)
    if found.refused is not None:
        return _refused_for(Unsupported(found.refused))
    holders = found.holders
    if any(holder is os.environ for holder in holders):
        try:
            from stepnet.compiler.trace.torch_tracers import warm  # a second of imports

            warm()
        except Exception as error:  # torch's compiler looks into all modules, and fails at odd ones
            let_through(error)
            return _refused_for(_failed(error))
    others = Meanwhile(holders, loop, reads, sequences)

    def attempt(snapshot: Snapshot) -> tuple[Entry, tuple[str, bytes] | None]:
        def made(moved: Callable[[], bool] | None) -> tuple[Entry, tuple[str, bytes] | None]:
            return contextvars.copy_context().run(_make, snapshot, moved, loop, reads, sequences, backend)

        found = made(moved := others.watch())
        if moved is not None and refused_as(ReadsChanged, found[0]) and others.moves_itself(moved):
            return made(None)
        return found

    (entry, to_keep), names = undone(holders, reads.root, attempt)
    if names is not None:
        entry.changes = names
    if entry.changes is not None:
        return entry
    failed = entry.ready is None or entry.wrong
    if others.changed(failed):
        return _refused_for(ReadsChanged())
    if others.alone and reads.open is not None and read_anew(reads, loop, sequences) is None:
        entry.changes = frozenset()  # by what no walk sees: a cache, an object of C
        return entry
    entry.unsure = (failed and not others.alone) or _not_built(entry)
    if to_keep is not None:
        plan_files.write(*to_keep)
    return entry


def stands(entry: Entry) -> bool:
    """Whether an entry is to be used: a refusal found while other threads ran, which may be for what they
    did, stands for some calls; so does a build that failed, for a full disk may have space by then."""
    entry.pause -= entry.unsure
    if _not_built(entry):
        return entry.ready is not None and entry.pause > 0
    return entry.pause > 0 and not (entry.unsure and is_only_thread())


def _not_built(entry: Entry) -> bool:
    """Whether a compiler that is there did not build the C of a step."""
    return any(type(refusal) is NotBuilt for _, refusal in entry.refusals)


def refused_as(kind: type[Unsupported], entry: Entry) -> bool:
    """Whether there is no plan for a reason of this kind."""
    return entry.ready is None and any(isinstance(refusal, kind) for _, refusal in entry.refusals)


def _refused_for(refusal: Unsupported) -> Entry:
    return Entry(refusals=[("capture", refusal)])


def _make(
    snapshot: Snapshot,
    moved: Callable[[], bool] | None,
    loop: Loop,
    reads: Reads,
    sequences: Sequences,
    backend: str,
) -> tuple[Entry, tuple[str, bytes] | None]:
    """An entry, and its plan and what that is found by, to be kept on disk."""
    entry = Entry(size=about_as_many(sequences.layout.sequences))
    to_keep = None
    try:
        with apart(reads):
            to_keep = _compile(entry, snapshot, moved, loop, reads, sequences, backend)
    except Unsupported as refusal:
        entry.ready = None
        entry.refusals.append(("capture" if entry.compiled is None else "run", refusal.fresh()))
    except StepnetError:
        raise
    except Exception as error:  # whatever it is, the plain loop may do without
        let_through(error)
        entry.ready = None
        entry.refusals.append(("capture", _failed(error)))
    return entry, to_keep


def _failed(error: Exception) -> Unsupported:
    reason = (str(error).splitlines() or [""])[0]
    return Unsupported(f"to compile it fails: {type(error).__name__}: {reason}")


@contextlib.contextmanager
def apart(reads: Reads) -> Iterator[None]:
    """What is found in here outlives the modes and hooks it is found under, and draws nothing."""
    grad = torch.is_grad_enabled()
    with (
        for_plans(),
        torch.set_grad_enabled(grad),
        without_compiled_autograd(),
        without_hooks(),
        torch.autograd.set_detect_anomaly(False),
        without_modes(),
        kept(reads.reach.generators),
    ):
        yield


_Weights = list[tuple[int, Tensor, bool]]  # tensors that a body reads: which it is, and whether it trains


def _compile(
    entry: Entry,
    snapshot: Snapshot,
    moved: Callable[[], bool] | None,
    loop: Loop,
    reads: Reads,
    sequences: Sequences,
    backend: str,
) -> tuple[str, bytes] | None:
    _check_devices((*sequences.x_rows, *sequences.states))
    x, states = samples(sequences.x_rows, ROWS), samples(sequences.states, ROWS)
    line = line_in(reads.files)
    with inner_loops(None, line) as loops:
        seen = _seen(entry, snapshot, loop, reads, sequences._replace(x_rows=x, states=states))
    if loops.too_long is not None:
        raise loops.too_long
    most = steps_of_inner_loops(reads, loops.longest)
    if entry.changes is not None:
        return None
    numbers = [] if reads.inputs is None else reads.inputs.tensors
    weights = _weights((*seen.tensors, *numbers), reads, (*x, *states))
    signature = _signature(loop, sequences, weights, seen.draws)
    key = None if reads.open is not None or numbers or seen.draws else _digest(loop, reads, signature, most)
    noise = drawn_in_order(seen.draws, reads.reach.generators, [ROWS])
    given = (signature, weights, bind, [t.detach() for t in (*x, *noise, *states)])
    chosen = (loop, reads, sequences, weights, backend, key)
    if key is not None and _from_file(entry, seen, given, key, chosen):
        return None
    recorded = functools.partial(_recorded, seen=seen, moved=moved, line=line, loop=loop, reads=reads,
                                 sequences=sequences, most=most)  # fmt: skip
    if more := _untaken(seen, reads, weights):
        followed = recorded((signature, [*weights, *more], *given[2:])).followed
        more = [weight for weight in more if weight[0] in followed]
        weights, key = [*weights, *more], None if more else key
        given, chosen = (signature, weights, *given[2:]), (*chosen[:3], weights, backend, key)
    compiled = recorded(given)
    if seen.strides_matter:
        check_strided(loop, compiled, sequences, weights, reads.reach.generators)
    if moved is not None and moved():
        raise ReadsChanged
    if reads.open is not None and len(compiled.followed) < len(weights):
        raise Unsupported("the step reads a tensor that the trace could not follow")
    if snapshot.changed():
        entry.changes = frozenset()
        return None
    if numbers:
        entry.notes.append(
            f"{len(numbers)} of Python's numbers change from call to call: a run on {ROWS} rows tells them"
        )
    _choose(entry, compiled, *chosen)
    if key is None or entry.ready is None or compiled.fused.random:  # noise cannot be checked
        return None
    data = stored.dump(compiled, *given)
    return None if data is None else (key, data)


def _check_devices(inputs: Sequence[Tensor]) -> None:
    device = inputs[0].device
    if any(t.device != device for t in inputs):
        raise Unsupported("x and the state are on different devices")
    if default_device().type not in ("cpu", device.type):
        raise Unsupported(f"torch's default device is {default_device().type}, the rows are on {device.type}")


def _weights(tensors: Sequence[Tensor], reads: Reads, rows: Sequence[Tensor]) -> _Weights:
    """The tensors that a body read on a few rows, found among those that it refers to."""
    places = {id(t): i for i, t in enumerate(reads.tensors)}
    lost = [tensor for tensor in tensors if id(tensor) not in places]
    alike = bool(lost) and not {*map(memory_of, lost)}.isdisjoint(map(memory_of, (*reads.tensors, *rows)))
    if not alike and reads.open is None:
        lost = [tensor for tensor in lost if not may_be_constant(tensor)]
        tensors = [tensor for tensor in tensors if id(tensor) in places or not may_be_constant(tensor)]
    if alike:
        raise Unsupported(
            "the step makes one tensor of another by a call of which torch tells nobody",
            remedy="leave out Variable(t), nn.Parameter(t) and t.as_subclass(); t.detach() has no gradient",
        )
    if lost:
        raise lost_tensor()
    grad = torch.is_grad_enabled()
    return [(places[id(t)], t, grad and t.requires_grad) for t in tensors]


def _untaken(seen: _Seen, reads: Reads, weights: _Weights) -> _Weights:
    """What a body may read besides on a way that no sample row took."""
    if reads.open is not None or not any(answer is claim for answer in seen.answers for claim in CLAIMED):
        return []
    known, grad = {place for place, *_ in weights}, torch.is_grad_enabled()
    others = enumerate(reads.tensors if reads.inputs is None else reads.read)
    return [(i, t, grad and t.requires_grad) for i, t in others if i not in known and not t.is_meta]


def _signature(loop: Loop, sequences: Sequences, weights: _Weights, draws: Sequence[Draw]) -> Signature:
    states = sequences.states
    trained = (*sequences.x_rows, *states, *(t for _, t, _ in weights))
    training = torch.is_grad_enabled() and any(t.requires_grad for t in trained)
    x = [Example(tuple(t.shape[1:]), t.dtype, training and t.requires_grad) for t in sequences.x_rows]
    return Signature(
        name=loop.body.name,
        x=(*x, *(Example(draw.shape, draw.dtype, False) for draw in draws)),
        states=tuple(Example(tuple(t.shape[1:]), t.dtype, training) for t in states),
        boots=tuple(training and t.requires_grad for t in states),
        x_names=(*(port.parameter for port in loop.slices), *(f"noise{i}" for i in range(len(draws)))),
        state_names=tuple(port.parameter for port in loop.merged),
    )


def _from_file(entry: Entry, seen: _Seen, given: Sequence[Any], key: str, chosen: Sequence[Any]) -> bool:
    """Whether a plan that was kept on disk is right for the body, and an executor takes it."""
    kept = plan_files.read(key)
    if kept is None:
        return False
    try:
        known = stored.load(kept, *given)
        if known.y_spec == seen.y_spec or is_guarded(known.y_spec):
            _choose(entry, known, *chosen)
            if not entry.wrong:
                return True
    except Unsupported:
        pass
    except StepnetError:
        raise
    except Exception as error:  # if it is of the step itself, the plan recorded now has it, too
        let_through(error)
    entry.ready, entry.refusals, entry.notes, entry.wrong = None, [], [], False
    return False


def _recorded(
    given: Sequence[Any], seen: _Seen, moved: Callable[[], bool] | None, line: Callable[[], str | None],
    loop: Loop, reads: Reads, sequences: Sequences, most: int,
) -> Compiled:  # fmt: skip
    """The plan of a body that is recorded now."""

    def here() -> str | None:
        if moved is not None and moved():
            raise ReadsChanged
        return line()

    signature, weights, bound, plain = given
    how = (loop, signature, weights, here, bound, plain, sequences.shared)
    with warnings.catch_warnings(), unseen_are_constants(reads.open is None, seen.tensors):
        warnings.simplefilter("ignore")
        try:
            answers = () if seen.asks_captured else seen.answers
            lifted = None if reads.inputs is None else reads.inputs.lifted
            return compile_loop(*how, answers, most, seen.draws, lifted)
        except Unsupported as refusal:
            if not seen.asks_captured or refusal.reason != BY_VALUES:
                raise
            raise AsksCaptured("its Python asks for the numbers of a tensor that it reads") from refusal


class _Seen(NamedTuple):
    """What a body was seen to do on a few rows.

    Attributes:
        tensors: those that it reads.
        y_spec: the structure of y; None of an open body, whose key holds it.
        answers: what its Python asks of tensors.
        draws: from generators of its own.
        asks_captured: whether an answer follows from tensors of which its key does not tell the numbers.
        strides_matter: whether it may give something else of rows that lie otherwise in memory.
    """

    tensors: list[Tensor]
    y_spec: Spec | None
    answers: Sequence[Any]
    draws: list[Draw]
    asks_captured: bool
    strides_matter: bool


def _seen(entry: Entry, snapshot: Snapshot, loop: Loop, reads: Reads, rows: Sequences) -> _Seen:
    """Try a body on a few rows.

    Raises:
        Unsupported: it fails, changes a tensor, or does not do the same twice.
    """
    before, generators = versions(reads.tensors), reads.reach.generators
    if reads.open is not None:
        again = read(loop, rows.x_rows, rows.states, rows.shared)
        if again.refusal is not None:
            raise again.refusal.fresh()
        if again.whole != reads.whole:
            if not is_only_thread():  # what they change there and back is met again; chance is not
                known = [reads.whole, again.whole]
                for _ in range(4):
                    key = read(loop, rows.x_rows, rows.states, rows.shared).whole
                    if key in known:
                        raise ReadsChanged
                    known.append(key)
            raise Unsupported(
                "the step does not do the same twice on the same rows",
                remedy="draw noise by torch, and hand in what changes as part of x",
            )
        if not all(a is b for a, b in zip(again.read, reads.read, strict=True)):
            raise Unsupported(
                f"the step reads a tensor made where no call of torch's functions shows, by {reads.open}",
                remedy="make it by torch's functions, in Python that is not scripted; or backend='naive'",
            )
        seen = _Seen(reads.read, None, again.answers, [], asks_captured=False, strides_matter=True)
        entry.own_backward = has_own_backward(reads.whole)
    else:
        try:
            with draws_put_back():
                x, states = rows.x_rows, rows.states
                states_before = [generator.get_state() for generator in generators]
                run = functools.partial(iteration, loop, x, states, rows.shared)
                trial = tried_on(run, [*x, *states], generators)
            _check_draws(trial.draws, generators, states_before)
            y_spec, *_ = trial.result
            entry.own_backward = trial.own_backward
            entry.in_backward = InBackward.of(trial.functions)
            draws = [draw for draw, _ in trial.draws]
            seen = _Seen(
                trial.tensors, y_spec, trial.answers, draws, trial.asks_captured, trial.strides_matter
            )
        except Unsupported:
            raise
        except Exception as error:
            let_through(error)
            raise FailsOnSamples(error) from error
    if before != versions(reads.tensors):
        raise Unsupported("the step changes a tensor it did not make, in place")
    entry.changes = frozenset() if snapshot.changed() else None
    return seen


def _check_draws(
    draws: Sequence[tuple[Draw, Tensor]], generators: Sequence[torch.Generator], before: Sequence[Tensor]
) -> None:
    """Draw anew what a step drew on its rows.

    Raises:
        Unsupported: it is not the same: the step sets a state of a generator, or uses it otherwise.
    """
    after = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, before, strict=True):
        generator.set_state(state)
    noise = drawn_in_order([draw for draw, _ in draws], generators, [ROWS])
    states = [generator.get_state() for generator in generators]
    alike = all(torch.equal(a, b) for a, (_, b) in zip(noise, draws, strict=True) if a.shape == b.shape)
    rows = all(a.shape == b.shape for a, (_, b) in zip(noise, draws, strict=True))
    if not rows:
        raise Unsupported(
            "what the step draws from its own generator is not a row for each sequence",
            remedy="torch.rand(x.shape[0], ..., generator=g)",
        )
    if not alike or not all(map(torch.equal, after, states)):
        raise Unsupported(
            "the step uses its own generator for more than noise of its rows",
            remedy="seed it before the call; draw by torch.rand or torch.randn(x.shape[0], ..., generator=g)",
        )


def _digest(loop: Loop, reads: Reads, signature: Signature, most: int) -> str | None:
    return digest(
        reads.key,
        [(tuple(t.shape), t.dtype, t.requires_grad, t.device.type, type(t)) for t in reads.tensors],
        [(e.shape, e.dtype, e.grad) for e in (*signature.x, *signature.states)],
        (signature.boots, code_of(loop).form, most),
        settings(),
    )


def _choose(
    entry: Entry, compiled: Compiled, loop: Loop, reads: Reads, sequences: Sequences,
    weights: Sequence[tuple[int, Tensor, bool]], backend: str, key: str | None,
) -> None:  # fmt: skip
    """Take the first executor of a backend that accepts the plan and passes the self-check; where none is
    named, another one or the plain loop if that is timed faster.

    Raises:
        Unsupported: the backend has no executor.
    """
    device = (*sequences.x_rows, *sequences.states)[0].device
    entry.y_spec = compiled.y_spec
    entry.weights = compiled.weights
    compiled = replace(compiled, constants={k: t.to(device) for k, t in compiled.constants.items()})
    if entry.own_backward:
        compiled = replace(compiled, fused=replace(compiled.fused, own_backward=True))
    entry.compiled = compiled
    noise = Noise(compiled.draws, reads.reach.generators)
    accept = functools.partial(_accepted, compiled, loop, noise, sequences, weights)
    entry.ready = accept(entry, tried(backend))
    if entry.ready is None:
        if not entry.refusals:
            raise Unsupported(f"no executor of backend '{backend}'")
        return
    if not compiled.is_compared:
        entry.notes.append("the step draws noise: the self-check was skipped")
    surely = entry.ready.executor.is_surely_faster(entry.ready.plan, MOST_SEQUENCES)
    if backend == AUTO and device.type == "cpu" and not surely:
        entry.accepted = Accepted(entry.ready, [*entry.refusals], [*entry.notes], key)
        _time(entry, entry.accepted, compiled, loop, noise, sequences, weights)


def for_as_many(entry: Entry, loop: Loop, reads: Reads, sequences: Sequences) -> Entry:
    """An entry of a run with other numbers of sequences, with the executor that is the fastest for these."""
    size = about_as_many(sequences.layout.sequences)
    found = entry.of_size(size)
    if found is None:
        found = entry.sizes[size] = contextvars.copy_context().run(
            _timed, entry, loop, reads, sequences, size
        )
    return found


def _timed(entry: Entry, loop: Loop, reads: Reads, sequences: Sequences, size: int) -> Entry:
    accepted = entry.accepted
    assert accepted is not None
    assert entry.compiled is not None
    said = {"ready": accepted.ready, "refusals": [*accepted.refusals], "notes": [*accepted.notes]}
    made: Entry = replace(entry, **said, twice=None, forward_mode=None, size=size, sizes={})
    tensors, grad = reads.tensors, torch.is_grad_enabled()
    weights = [(place, tensors[place], grad and tensors[place].requires_grad) for place in entry.weights]
    noise = Noise(entry.compiled.draws, reads.reach.generators)
    with apart(reads):
        _time(made, accepted, entry.compiled, loop, noise, sequences, weights)
    return made


def _time(
    entry: Entry, accepted: Accepted, compiled: Compiled, loop: Loop, noise: Noise, sequences: Sequences,
    weights: Sequence[tuple[int, Tensor, bool]],
) -> None:  # fmt: skip
    """Leave the executor that accepts a plan for another one, or the plain loop, that is timed faster."""
    count, first = sequences.layout.sequences, accepted.ready.executor
    if first.is_surely_faster(accepted.ready.plan, count):
        return
    accept = functools.partial(_accepted, compiled, loop, noise, sequences, weights)
    timing = recall(accepted.key, first.name, count)
    others = {executor.name: executor for executor in tried(AUTO) if executor is not first}
    if timing is None:
        try:
            entered = Race(loop, noise, sequences, weights, accepted.ready.plan)
            other = functools.partial(accept, Entry(), others.values())
            timing = race(entered, accepted.ready, compiled.constants, other)
        except Exception as error:  # whatever it is, the first that accepts the plan is right
            entry.notes.append(f"not timed: {(str(error).splitlines() or [type(error).__name__])[0]}")
            return
        remember(accepted.key, timing, count)
    entry.notes.append(timing.text())
    fastest = timing.fastest()
    if fastest != first.name:
        better = accept(Entry(), [others[fastest]]) if fastest in others else None
        if better is None and fastest != PLAIN.name:
            return
        entry.refusals.append((first.name, timing.slower(first.name)))
        entry.ready = better


def _accepted(
    compiled: Compiled, loop: Loop, noise: Noise, sequences: Sequences,
    weights: Sequence[tuple[int, Tensor, bool]], entry: Entry, executors: Iterable[Executor],
) -> Ready | None:  # fmt: skip
    """The plan made ready by the first executor that accepts it and passes the self-check."""
    device = (*sequences.x_rows, *sequences.states)[0].device
    for executor in executors:
        name = executor.name
        try:
            executor.check_device(device.type)
            ready = make_ready(executor, compiled.fused if executor.form == "fused" else compiled.hoisted)
        except Unsupported as refusal:
            entry.refusals.append((name, refusal.fresh()))
            continue
        if not compiled.is_compared:
            return ready
        try:
            self_check(loop, ready, compiled, noise, sequences, [t for _, t, _ in weights])
        except Unsupported as refusal:
            entry.refusals.append((name, refusal.fresh()))
            entry.wrong = True
        except Exception as error:  # whatever it is, the plain loop may do without
            let_through(error)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            entry.refusals.append((name, Unsupported(f"it failed on sample rows: {reason}")))
            entry.wrong = True
        else:
            return ready
    return None
