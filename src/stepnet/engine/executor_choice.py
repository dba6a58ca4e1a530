"""Which executor runs a plan when none is named: the first that accepts it, unless another is timed faster.

Most steps need no timing: op by op in torch, the calls of every step alone take longer than generated code
does. Where that is not clear, each way runs on about as many rows as the caller's: of fewer, what is done
once a call weighs too much, and what tables cost that no cache holds weighs nothing. What was timed is kept
on disk beside the plan.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.trace.capture import Replaced
from stepnet.data.autograd_history import gradients_from
from stepnet.data.modes import draws_put_back
from stepnet.errors import Unsupported
from stepnet.executors import plan_files
from stepnet.executors.autograd import run_plan
from stepnet.executors.base import Executor
from stepnet.executors.call import Call
from stepnet.executors.layout import Layout
from stepnet.executors.naive import PLAIN
from stepnet.executors.ready import Ready, make_ready
from stepnet.executors.registry import AUTO, tried
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop
from stepnet.ir.plan import Plan

from .entries import Accepted, Entry, Weights
from .failures import failure, told
from .plain import plain_loop
from .reads import Reads
from .rows import Noise, Sequences, few
from .self_check import self_check
from .trial import apart

MOST_SEQUENCES = 128  # of a timed run
_LEAST_STEPS, _MOST_STEPS = 16, 64
_LEAST_SEQUENCES = 64  # fewer only of a call that has fewer
_MOST_KEPT = 1 << 28  # bytes that a loop in torch may keep of more rows than the least
_ROUNDS, _ENOUGH = 3, 1.0  # rounds, and seconds after which there is not another one
_LONGEST = 1e6  # seconds
_AHEAD = 2.0  # so many times as fast as the plain loop is fast enough: other ways are not tried
MARGIN = 1.1  # what comes first in order is left only for what is that much faster


class Slower(Unsupported):
    """An executor takes a plan, and another way was timed faster."""


@dataclass(frozen=True)
class Timing:
    """Seconds of each way to run a plan, by name, the fastest of some runs; and of how much."""

    seconds: dict[str, float]
    steps: int
    sequences: int

    def fastest(self) -> str:
        """The first in order that no other one is clearly faster than."""
        least = min(self.seconds.values())
        return next(name for name, taken in self.seconds.items() if taken <= MARGIN * least)

    def text(self) -> str:
        """What `explain` says of it."""
        times = ", ".join(f"{_label(name)} {1e3 * taken:.3g} ms" for name, taken in self.seconds.items())
        return f"timed on {self._rows()}: {times}"

    def slower(self, name: str) -> Slower:
        """Why an executor is not taken."""
        best = self.fastest()
        took = f"it took {1e3 * self.seconds[name]:.3g} ms for {self._rows()}"
        reason = f"{took}, {_label(best)} {1e3 * self.seconds[best]:.3g} ms"
        return Slower(reason, remedy=f"backend='{name}' takes it all the same")

    def _rows(self) -> str:
        return f"{self.steps} steps of {self.sequences} sequences"


def _label(name: str) -> str:
    known = [executor.label for executor in tried(AUTO) if executor.name == name]
    return known[0] if known else PLAIN.label


def stopwatch(call: Callable[[], None]) -> float:
    """Seconds that a call takes. Tests put another one in its place."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Race:
    """Ways to run a step, timed side by side on rows like the caller's. `plan`: of that step."""

    def __init__(self, loop: Loop, noise: Noise, sequences: Sequences, weights: Weights, plan: Plan) -> None:
        self.steps, self.sequences = _size(sequences.layout, plan)
        self.layout = Layout.dense(self.steps, self.sequences, True, False)
        rows = self.steps * self.sequences
        self.x = [few(t, rows).requires_grad_(t.requires_grad) for t in sequences.x_rows]
        self.boot = [few(t, self.sequences).requires_grad_(t.requires_grad) for t in sequences.states]
        self.weights = [tensor for _, tensor, _ in weights]
        self.swap: dict[int, Tensor] = {}
        if not all(map(is_bare, self.weights)):  # histories and hooks are the caller's; else it costs time
            own = [t.detach().requires_grad_(t.requires_grad) for t in self.weights]
            self.swap = {id(t): alias for t, alias in zip(self.weights, own, strict=True)}
            self.weights = own
        self.noise = noise.tables(self.layout)
        self.plain = plain_loop(loop, sequences._replace(layout=self.layout))
        self.ways: dict[str, Call | None] = {}
        self.seconds: dict[str, float] = {}

    def enter(self, name: str, ready: Ready | None, constants: dict[str, Tensor]) -> None:
        """Add a plan made ready; None: the plain loop."""
        self.ways[name] = None if ready is None else Call(ready, self.layout, constants, self.plain)

    def _run(self, name: str) -> Sequence[Tensor]:
        call = self.ways[name]
        if call is not None:
            return run_plan(call, [*self.x, *self.noise], self.boot, self.weights)
        with Replaced(self.swap) if self.swap else contextlib.nullcontext():
            return [t for results in self.plain(self.x, self.boot) for t in results]

    def go(self, rounds: int, of: Sequence[str] = ()) -> None:
        """Time every way, or those `of` these names, in turns; fewer rounds of what takes long."""
        spent, own = 0.0, (*self.x, *self.boot, *self.weights)
        with draws_put_back():
            for _ in range(rounds):
                for name in of or self.ways:
                    taken = stopwatch(lambda name=name: go_back(self._run(name), own))
                    self.seconds[name] = min(taken, self.seconds.get(name, taken))
                    spent += taken
                if spent > _ENOUGH:
                    break

    def timing(self) -> Timing:
        """What was timed, the plain loop last in order."""
        order = [name for name in self.seconds if name != PLAIN.name] + [PLAIN.name]
        return Timing({name: self.seconds[name] for name in order}, self.steps, self.sequences)


def _size(layout: Layout, plan: Plan) -> tuple[int, int]:
    """Steps and sequences to time, about as many as of a layout: what a loop in torch keeps takes memory."""
    body = plan.forward.body
    made = (body.values[name] for node in body.nodes for name in node.outputs)
    room = _MOST_KEPT // max(1, sum(value.bytes for value in made if value.kind == "row"))
    most = min(MOST_SEQUENCES, max(_LEAST_SEQUENCES, room // _LEAST_STEPS))
    sequences = max(1, min(layout.sequences, most))
    return max(_LEAST_STEPS, min(layout.steps, _MOST_STEPS, room // sequences)), sequences


def go_back(out: Sequence[Tensor], read: Sequence[Tensor]) -> None:
    """The backward of a timed run, if it has one."""
    wanted = [t for t in read if t.requires_grad]
    ends = [t for t in out if t.requires_grad]
    if ends and wanted and torch.is_grad_enabled():
        gradients_from(ends, [torch.ones_like(t) for t in ends], wanted)


def is_bare(tensor: Tensor) -> bool:
    """Whether nobody is told of a gradient of a tensor before it is its own."""
    return tensor.is_leaf and not tensor._backward_hooks


def race(
    entered: Race, first: Ready, constants: dict[str, Tensor], other: Callable[[], Ready | None]
) -> Timing:
    """Time what is first in order against the plain loop; where it is not far ahead, another one too."""
    name = first.executor.name
    entered.enter(name, first, constants)
    entered.enter(PLAIN.name, None, constants)
    entered.go(2)  # the first run of each takes memory
    if entered.seconds[name] * _AHEAD > entered.seconds[PLAIN.name]:
        second = other()
        if second is not None:
            entered.enter(second.executor.name, second, constants)
        entered.go(_ROUNDS)
    # Of what takes long there was one round, and a slow moment would be kept on disk.
    for _ in range(_ROUNDS):
        best = entered.timing().fastest()
        if best == name:
            break
        entered.go(1, (name, best))
    return entered.timing()


def recall(key: str | None, first: str, sequences: int) -> Timing | None:
    """What was timed before for a plan of this key with these executors, on about as many sequences."""
    data = None if key is None else plan_files.read(_place(key, sequences))
    try:
        found = json.loads(data) if data is not None else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    size = [found.pop(name, None) for name in ("steps", "sequences")]
    if next(iter(found), None) != first or PLAIN.name not in found:
        return None
    if not {PLAIN.name, *(executor.name for executor in tried(AUTO))}.issuperset(found):
        return None
    if not all(isinstance(n, int) and 0 < n <= MOST_SEQUENCES for n in size):
        return None
    times = [t for t in found.values() if isinstance(t, (int, float)) and 0 <= t < _LONGEST]
    return Timing(found, *size) if len(times) == len(found) else None


def remember(key: str | None, timing: Timing, sequences: int) -> None:
    """Keep what was timed."""
    if key is not None:
        size = {"steps": timing.steps, "sequences": timing.sequences}
        plan_files.write(_place(key, sequences), json.dumps(timing.seconds | size).encode())


def about_as_many(sequences: int) -> int:
    """A number for so many sequences to the next power of two, for which one choice is made.

    >>> about_as_many(33) == about_as_many(60) != about_as_many(1)
    True
    """
    return min(sequences, MOST_SEQUENCES).bit_length()


def _place(key: str, sequences: int) -> str:
    """Where the times of a plan are kept, for about as many sequences, and threads."""
    of = f"{key} {about_as_many(sequences)} {torch.get_num_threads()}"
    return hashlib.sha256(of.encode()).hexdigest()[:40]


def choose(
    entry: Entry, compiled: Compiled, loop: Loop, reads: Reads, sequences: Sequences,
    weights: Weights, backend: str, key: str | None,
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
    made: Entry = replace(entry, **said, twice=None, forward_mode=None, size=size, sizes={}, one_step=None)
    tensors, grad = reads.tensors, torch.is_grad_enabled()
    weights = [(place, tensors[place], grad and tensors[place].requires_grad) for place in entry.weights]
    noise = Noise(entry.compiled.draws, reads.reach.generators)
    with apart(reads):
        _time(made, accepted, entry.compiled, loop, noise, sequences, weights)
    return made


def _time(
    entry: Entry, accepted: Accepted, compiled: Compiled, loop: Loop, noise: Noise, sequences: Sequences,
    weights: Weights,
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
            entry.notes.append(f"not timed: {told(error)}")
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
    weights: Weights, entry: Entry, executors: Iterable[Executor],
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
            entry.refusals.append((name, failure("it failed on sample rows", error)))
            entry.wrong = True
        else:
            return ready
    return None
