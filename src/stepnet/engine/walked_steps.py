"""Steps that were walked, and whether they still read what they read: told by words of memory
(`compiler.reads.unchanged`), once two walks found the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

from torch import Tensor

from stepnet.compiler.reads.dict_changes import counts_by
from stepnet.compiler.reads.reach import Reach, reach
from stepnet.compiler.reads.unchanged import words
from stepnet.data.attributes import begins_by_itself
from stepnet.executors.c.dict_watcher import watcher
from stepnet.executors.c.memory import unchanged

from .kept_by_step import KeptByStep

counts_by(watcher)
_SURE = 1  # walks that found what the one before did, until it is written down
_RARELY = 256  # walks, at most, before it is written down anew what is to stay as it is
_PAID = 16  # calls that were answered by what was written down: to walk for each had taken longer


class Found(NamedTuple):
    """What was found of a step. `ask` gives the tensors that it reads, None if a walk may find something
    else; `likes`: its runs, by what they look like; `names`: see `Reach`."""

    ask: Callable[[], list[Tensor] | None]
    key: tuple[Any, ...]
    likes: dict[Any, Any]
    kept: Any
    names: Set[str]


class _Step:
    """A step that was walked. Once two walks found the same, it is written down by what words one tells that
    nothing has changed; where something did, that is done again, after twice as many walks if it had answered
    few calls: epochs of training and of `eval` change a module as a step that counts its calls does. Of one
    that reads other tensors at each call nothing is written down: they may stay later."""

    __slots__ = ("_alike", "_pause", "_tensors", "alive", "answered", "boots", "found", "key")

    def __init__(self, alive: weakref.ref[Any]) -> None:
        self.alive = alive
        self.found: Found | None = None
        self.key: tuple[Any, ...] = ()
        self._tensors: list[int] = []
        self.boots = False
        self._alike, self._pause = 0, _SURE
        self.answered = 0  # calls since it was written down

    def note(
        self, step: Callable[..., Any], function: Callable[..., Any], given: Sequence[type], found: Reach
    ) -> None:
        """Another walk found this."""
        tensors = [*map(id, found.tensors)]
        alike = found.key == self.key and (self.answered > 0 or tensors == self._tensors)
        self._alike = self._alike + 1 if alike else 0
        self.key, self._tensors, self.boots = found.key, tensors, begins_by_itself(function)
        if self._alike < self._pause:
            return
        self._alike = 0
        self._pause = _SURE if self.answered >= _PAID else min(2 * self._pause, _RARELY)
        self.answered = 0
        # a cell of torch is wrapped anew at each call
        own = found if step is function else reach(step, given)
        if not _same_tensors(own, found):
            return
        told = words(own, found.key, self.alive)
        ask = None if told is None else unchanged(told.checks, told.tensors)
        if ask is None:
            return
        if _same(reach(function, given), found) and ask() is not None:  # another thread may have changed it
            self.found = Found(ask, found.key, {}, told, found.names)


def _same_tensors(one: Reach, other: Reach) -> bool:
    return [*map(id, one.tensors)] == [*map(id, other.tensors)]


def _same(one: Reach, other: Reach) -> bool:
    return one.key == other.key and _same_tensors(one, other)


_steps = KeptByStep[_Step]()


def unchanged_step(step: Any) -> tuple[Found, list[Tensor]] | None:
    """What walks found of a step, and the tensors that it reads, if another walk would find the same."""
    known = _steps.of(step)
    if known is None or known.found is None:
        return None
    tensors = known.found.ask()
    if tensors is None:
        return None
    known.answered += 1
    return known.found, tensors


def is_known(step: Any) -> bool:
    """Whether this very step was walked."""
    return _steps.of(step) is not None


def boots(step: Any) -> bool:
    """Whether a step that was written down is one that tells what it begins with."""
    known = _steps.of(step)
    return known is not None and known.found is not None and known.boots


def note(step: Any, function: Callable[..., Any], given: Sequence[type], found: Reach) -> None:
    """A walk found this of a step; `function` is the form of it that runs, `given` as for `reach`."""
    known = _steps.made(step, _Step)
    if known is not None:
        known.note(step, function, given, found)


def is_closed(found: Reach) -> bool:
    """Whether a walk told all that a step reads, so that what tells when that changes can be written down."""
    told = found.refused is None and found.open is None and found.complete
    return told and not (found.generators or found.uncached)


def note_closed(step: Callable[..., Any], found: Reach) -> None:
    """A walk found this of a step that is called as it is; it is noted if that is all that it reads."""
    if is_closed(found):
        note(step, step, (), found)


def forget_steps() -> None:
    """Walk every step anew at its next call."""
    _steps.clear()
