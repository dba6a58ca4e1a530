"""Steps that are refused at each call, after a look that takes long: they run by the plain loop for a while,
unasked.

What a step reads may be all of a package, whose walk takes as long as many steps of the plain loop, at every
call, only to be refused. Whether it would be taken by now is looked at after so long that it costs little.
"""

from __future__ import annotations

import time
from typing import Any

from stepnet.errors import Unsupported

from .kept_by_step import KeptByStep

_LONG = 0.003  # seconds
TIMES = 20  # as long as it took
clock = time.perf_counter  # by which all looks are timed


class _Refused:
    """A step that was refused."""

    def __init__(self) -> None:
        self.until = 0.0  # when it is looked at again
        self.why: Any = None  # of the last time, of a step that changes objects and of an open one
        self.changes = False  # whether it was ever refused for objects that it changes


_steps = KeptByStep[_Refused]()


class Rests(Unsupported):
    """A step was refused not long ago."""


def rests(step: Any) -> bool:
    """Whether a step is to run by the plain loop without a look at it."""
    known = _steps.of(step)
    return known is not None and clock() < known.until


def note_refused(step: Any, seconds: float) -> None:
    """A walk that took so long refused a step."""
    if seconds >= _LONG and (known := _steps.made(step, lambda _: _Refused())) is not None:
        known.until = clock() + TIMES * seconds


def note_refused_again(step: Any, why: Any, seconds: float, *, changes: bool) -> None:
    """A look that took so long refused a step that changes objects, or an open one, as it did at the call
    before if that was for the same: the first one may have tried and compiled what later ones need not."""
    known = _steps.made(step, lambda _: _Refused())
    if known is None:
        return
    if known.why == why:
        note_refused(step, seconds)
    known.why, known.changes = why, known.changes or changes


def changes_objects(step: Any) -> bool:
    """Whether a step was refused for the objects that it changes."""
    known = _steps.of(step)
    return known is not None and known.changes


def forget_resting() -> None:
    """Look at every step at its next call."""
    _steps.clear()
