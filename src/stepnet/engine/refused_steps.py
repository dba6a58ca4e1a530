"""Steps that are refused at each call, after a look that takes long: they run by the plain loop for a while,
unasked.

What a step reads may be all of a package, whose walk takes as long as many steps of the plain loop, at every
call, only to be refused. Whether it would be taken by now is looked at after so long that it costs little.
"""

from __future__ import annotations

import time
from typing import Any

from stepnet.errors import Unsupported

from .walked_steps import kept_while_alive, place_of

_LONG = 0.003  # seconds
_TIMES = 20  # as long as it took
clock = time.monotonic
_until: dict[Any, tuple[Any, float]] = {}
_met: dict[Any, tuple[Any, Any]] = {}  # by the step: why it was refused before, for what it changes
_looked: dict[Any, tuple[Any, Any]] = {}  # the same of open steps, which are recorded at each call


class Rests(Unsupported):
    """A step was refused not long ago."""


def rests(step: Any) -> bool:
    """Whether a step is to run by the plain loop without a look at it."""
    known = _until.get(place_of(step)) if _until else None
    return known is not None and known[0]() is not None and clock() < known[1]


def note_refused(step: Any, seconds: float) -> None:
    """A walk that took so long refused a step."""
    if seconds < _LONG:
        return
    alive = kept_while_alive(_until, step)
    if alive is not None:
        _until[place_of(step)] = alive, clock() + _TIMES * seconds


def note_changes_again(step: Any, why: Any, seconds: float) -> None:
    """A look that took so long refused a step that changes objects, as it did at the call before if that was
    for the same: the first one may have tried and compiled what later ones need not."""
    _note_again(_met, step, why, seconds)


def note_open_again(step: Any, why: Any, seconds: float) -> None:
    """The same of an open step, refused for what was found when it was recorded, or was to be."""
    _note_again(_looked, step, why, seconds)


def _note_again(before: dict[Any, tuple[Any, Any]], step: Any, why: Any, seconds: float) -> None:
    met = before.get(place_of(step))
    if met is not None and met[0]() is not None and met[1] == why:
        note_refused(step, seconds)
    else:
        alive = kept_while_alive(before, step)
        if alive is not None:
            before[place_of(step)] = alive, why


def changes_objects(step: Any) -> bool:
    """Whether a step was refused for the objects that it changes."""
    known = _met.get(place_of(step))
    return known is not None and known[0]() is not None


def forget_resting() -> None:
    """Look at every step at its next call."""
    _until.clear()
    _met.clear()
    _looked.clear()
