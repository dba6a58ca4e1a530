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
_until = KeptByStep[float]()
_met = KeptByStep[Any]()  # why a step was refused before, for what it changes
_looked = KeptByStep[Any]()  # the same of open steps, which are recorded at each call


class Rests(Unsupported):
    """A step was refused not long ago."""


def rests(step: Any) -> bool:
    """Whether a step is to run by the plain loop without a look at it."""
    until = _until.of(step)
    return until is not None and clock() < until


def note_refused(step: Any, seconds: float) -> None:
    """A walk that took so long refused a step."""
    if seconds >= _LONG:
        _until.note(step, clock() + TIMES * seconds)


def note_changes_again(step: Any, why: Any, seconds: float) -> None:
    """A look that took so long refused a step that changes objects, as it did at the call before if that was
    for the same: the first one may have tried and compiled what later ones need not."""
    _note_again(_met, step, why, seconds)


def note_open_again(step: Any, why: Any, seconds: float) -> None:
    """The same of an open step, refused for what was found when it was recorded, or was to be."""
    _note_again(_looked, step, why, seconds)


def _note_again(before: KeptByStep[Any], step: Any, why: Any, seconds: float) -> None:
    if before.of(step) == why:
        note_refused(step, seconds)
    else:
        before.note(step, why)


def changes_objects(step: Any) -> bool:
    """Whether a step was refused for the objects that it changes."""
    return _met.of(step) is not None


def forget_resting() -> None:
    """Look at every step at its next call."""
    _until.clear()
    _met.clear()
    _looked.clear()
