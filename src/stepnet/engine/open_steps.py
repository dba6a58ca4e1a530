"""Open steps whose look takes longer than a plan saves: calls of about one size go by the plain loop for a
while.

A step that no walk closes is recorded on sample rows at every call, which may take longer than all of the
plain loop of a small call. What a look and a run take is measured at each call by a plan, what the plain loop
takes by running one or two calls by it: it is always right, and draws what the plan does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from stepnet.compiler.trace.iteration import code_of
from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import nothing_around
from stepnet.errors import Unsupported
from stepnet.executors.autograd import is_computed_again
from stepnet.executors.layout import Layout
from stepnet.ir.loop import Loop

from .checkpointed_calls import is_second_run
from .entries import Entry
from .executor_choice import MARGIN, about_as_many
from .kept_by_step import KeptByStep
from .reads import Reads, settings
from .refused_steps import TIMES, clock
from .rows import Sequences, as_rows

_CALLS = 3  # by a plan, before the plain loop is tried: the first one may have made the plan
_TRIES = 2  # of the plain loop: the first one may take memory
_A_STEP, _AN_OPERATION = 1e-5, 2e-6  # seconds that they take of the plain loop, at least
_BOTH_WAYS = 2.0  # so much longer with its backward: of the plain loop it takes about as long, or longer


class _Latest:
    """The lesser of the last two times: a slow moment is let go, and so are times that are no longer true."""

    def __init__(self) -> None:
        self._before = self.least = float("inf")

    def note(self, seconds: float) -> None:
        self.least, self._before = min(seconds, self._before), seconds


class _Size:
    """What calls of about one size take. `run` and `plain`: a step of theirs."""

    def __init__(self) -> None:
        self.look, self.run, self.plain = _Latest(), _Latest(), _Latest()
        self.ways, self.calls, self.tries, self.due, self.until = 1.0, 0, 0, False, 0.0

    def lost(self, steps: int, margin: float = 1.0) -> float:
        """Seconds that a call loses by its plan."""
        plain = self.plain.least
        return self.look.least + self.ways * steps * (self.run.least - margin * plain)

    def is_plain(self) -> bool:
        """Whether the next call goes by the plain loop."""
        return self.due or clock() < self.until

    def note_plan(self, look: float, run: float, steps: int, least: float) -> None:
        self.look.note(look)
        self.run.note(run / steps)
        self.calls += 1
        if self.tries:
            self._choose(steps)
        elif self.calls >= _CALLS:
            self.due = self.look.least + self.ways * (steps * self.run.least - least) > 0

    def note_plain(self, began: float, steps: int) -> None:
        self.plain.note((clock() - began) / steps)
        if self.until <= clock():
            self._choose(steps)
            self.due = self.until <= clock() and self.tries < _TRIES

    def _choose(self, steps: int) -> None:
        if self.lost(steps, MARGIN) > 0:
            self.until = clock() + TIMES * self.lost(steps)


class _Step:
    """An open step. `walk`: seconds of the walk that finds it so, before the look."""

    def __init__(self) -> None:
        self.walk = _Latest()
        self.sizes = Bounded[Any, _Size](64)

    def size(self, layout: Layout) -> _Size | None:
        return self.sizes.get(_about(layout))


class Costs(Unsupported):
    """A look at an open step costs more than its plan saves."""


_steps = KeptByStep[_Step]()


def goes_plainly(step: Any, layout: Layout) -> bool:
    """Whether a call of a step is to go by the plain loop without a look at it."""
    size = _size(step, layout)
    return size is not None and size.is_plain() and _may_choose()


def why_plainly(loop: Loop, feeds: Mapping[str, Any]) -> Costs | None:
    """Why a call is to go by the plain loop, if it is.

    Raises:
        Unsupported: what is given is no table of rows.
    """
    step = code_of(loop).function
    if _steps.of(step) is None or not _may_choose():
        return None
    layout = as_rows(loop, feeds).layout
    size = _size(step, layout)
    if size is None or not size.is_plain():
        return None
    if size.due:
        size.due, size.tries = False, size.tries + 1
    costs = Costs("a look at the step, which no walk closes, takes longer than its plan saves")
    costs.ran = partial(size.note_plain, clock(), layout.steps)
    return costs


def note_walk(step: Any, seconds: float) -> None:
    """A walk took so long, and found a step open."""
    known = _steps.made(step, lambda _: _Step())
    if known is not None:
        known.walk.note(seconds)


def note_plan(entry: Entry, loop: Loop, reads: Reads, sequences: Sequences, look: float, run: float) -> None:
    """A call of an open step went by a plan: seconds of the look at it, and of the run."""
    rows, layout = (*sequences.x_rows, *sequences.states), sequences.layout
    if entry.ready is None or not layout.steps or not all(t.is_cpu for t in rows) or not _may_choose():
        return
    known = _steps.made(code_of(loop).function, lambda _: _Step())
    if known is None:
        return
    size = known.sizes.get(about := _about(layout))
    if size is None:
        known.sizes[about] = size = _Size()
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in (*rows, *reads.tensors))
    size.ways = _BOTH_WAYS if trains else 1.0
    walk = known.walk.least if known.walk.least < look else 0.0
    nodes = len(entry.ready.plan.forward.body.nodes)
    size.note_plan(look + walk, run, layout.steps, layout.steps * (_A_STEP + _AN_OPERATION * nodes))


def why_not_looked_at(loop: Loop, sequences: Sequences) -> str:
    """What `explain` says of calls that go by the plain loop."""
    size = _size(code_of(loop).function, sequences.layout)
    if size is None or not size.tries or not size.is_plain():
        return ""
    plain, run = (1e3 * sequences.layout.steps * t.least for t in (size.plain, size.run))
    return (
        "calls of about this size go by the plain loop for now: no walk closes the step, and a look at it "
        f"takes {1e3 * size.look.least:.3g} ms at each call, a run {run:.3g} ms, that loop {plain:.3g} ms"
    )


def forget_open() -> None:
    """Look at every open step at its next call."""
    _steps.clear()


def _may_choose() -> bool:
    """Whether this call may go either way: nothing around it sees which, and it repeats no other call. Who
    asks torch for the same bits each time gets the plan's."""
    return (
        nothing_around()
        and not (is_computed_again() or is_second_run())
        and not torch.are_deterministic_algorithms_enabled()
    )


def _about(layout: Layout) -> Any:
    return layout.steps.bit_length(), about_as_many(layout.sequences), torch.get_num_threads(), settings()


def _size(step: Any, layout: Layout) -> _Size | None:
    known = _steps.of(step)
    return None if known is None else known.size(layout)
