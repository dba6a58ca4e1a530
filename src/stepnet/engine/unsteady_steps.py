"""Steps that read something else at each call: from some call on only what comes again is worth a plan."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import OF_EACH_SEQUENCE
from stepnet.errors import Unsupported
from stepnet.executors.registry import AUTO

from .reads import Reads

_LIMIT = 512
MOST_MISSES = 12
MOST_CUTS = 3  # offsets of the LoDTensors of a step, each of which is a plan


class _Miss(NamedTuple):
    """Which step had a key without a plan, and how the LoDTensors were cut that it read."""

    step: Callable[[], Any]
    cuts: int


# For one piece of source: the keys, as hashes, that one after the other had no plan, and none came again.
_misses: dict[Any, dict[int, _Miss]] = {}


def why_unsteady(
    family: Any, key: Any, reads: Reads, step: Callable[..., Any], backend: str
) -> Unsupported | None:
    """Note a key without a plan: why it gets none if the step had so many that only one that comes again is
    worth one. Those of other modules of its class do not count, but those of steps that are gone: it may be
    made anew for each call."""
    if len(_misses) > _LIMIT:
        _misses.clear()
    missed, now = _misses.setdefault(family, {}), hash(key)
    if now in missed:
        return None
    if len(missed) >= _LIMIT:
        missed.popitem()
    try:
        alive: Callable[[], Any] = weakref.ref(step)
    except TypeError:  # of an object with slots
        alive = _gone
    missed[now] = _Miss(alive, _cuts(reads))
    of = [miss for miss in missed.values() if miss.step() in (None, step)]
    cuts = len({miss.cuts for miss in of})
    if cuts > (MOST_CUTS if backend == AUTO else MOST_MISSES):  # who names a backend wants a plan
        return _CUT_ANEW
    return _UNSTEADY if len(of) > MOST_MISSES else None


def note_steady(family: Any) -> None:
    """A plan of this source was used again."""
    _misses.pop(family, None)


def forget_miss(family: Any, key: Any) -> None:
    """Take a key as one that was not met."""
    _misses.get(family, {}).pop(hash(key), None)


def forget_unsteady() -> None:
    """Forget every key."""
    _misses.clear()


def _gone() -> None:
    return None


def _cuts(reads: Reads) -> int:
    """The offsets of all LoDTensors that a step reads, as a number."""
    lods = (held.structure for held in reads.reach.holders if type(held) is LoDTensor)
    return hash(tuple([level.tobytes() for lod in lods for level in lod.numbers()]))


_UNSTEADY = Unsupported(
    f"the step was compiled {MOST_MISSES} times in a row and read something else at the next call each time",
    remedy="make the number that changes a tensor, or an input of the step; or backend='naive'",
)
_CUT_ANEW = Unsupported(
    "the step reads a LoDTensor that has sequences of other lengths at each call, and each is a plan",
    remedy=f"{OF_EACH_SEQUENCE}, and one plan is for all lengths; what all sequences share, as a tensor of "
    "one shape; or backend='naive'",
)
