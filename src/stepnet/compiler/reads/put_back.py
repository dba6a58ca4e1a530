"""Numbers and other plain values that a step read, put back where it reads them, for whoever runs it again.

Where they stand is found by trying, and known when a walk finds what it found then: nothing rests on a guess.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple

from .code_facts import facts
from .kinds import MISSING, Names
from .reach import Reach
from .survey import Seen
from .undo import Way, by_name, is_only_thread, way_of

_MOST = 32  # places that are tried
_PLAIN = (bool, int, str, NoneType)


class Held(NamedTuple):
    """A place in a container, by name in a dict or a class, else by number, and the value that it held."""

    holder: Any
    at: Any
    value: Any


class _Defaults(NamedTuple):
    function: types.FunctionType


def _set_defaults(value: _Defaults, held: list[Any]) -> None:
    value.function.__defaults__ = tuple(held)  # pyright: ignore[reportAttributeAccessIssue]


_DEFAULTS = Way(lambda value: list(value.function.__defaults__ or ()), _set_defaults)


def _way_of(holder: Any) -> Way | None:
    return _DEFAULTS if type(holder) is _Defaults else way_of(type(holder))


def changed_since(then: Reach, reached: Callable[..., Reach]) -> list[Held] | None:
    """Where plain values stand that a step reads and that are others by now, with those that it read.

    Args:
        then: what it read.
        reached: walks again; see `reach`.

    Returns:
        None if anything else is another, if such a place is not found, or while other threads run, which
        might see values that are put back for a moment.
    """
    if not is_only_thread() or then.refused is not None:
        return None
    others = _others(reached().key, then.key)
    if not others:
        return None
    found, tries = list[Held](), 0
    holders = list({id(each): each for each in reached(everything=True).holders}.values())
    while others:
        now, before = next((pair for pair in others if MISSING not in pair), (MISSING, MISSING))
        # one object may have stood in several places, which a walk tells
        same = {id(place.value): place.value for place in _places(holders, before)}
        for place, value in itertools.product(_places(holders, now), [*same.values(), before]):
            tries += 1
            if tries > _MOST:
                return None
            held = [*found, place._replace(value=value)]
            with put_back(held):
                rest = _others(reached().key, then.key)
            if rest is not None and len(rest) < len(others):
                found, others = held, rest
                break
        else:
            return None
    return found


def places_of(then: Reach, reached: Callable[..., Reach]) -> dict[int, Held] | None:
    """Where those stand, each by its place in the key, with what they hold now; None as above, or if one
    place is not one item of the key."""
    held = changed_since(then, reached)
    key = reached().key
    found: dict[int, Held] = {}
    for place in held or ():
        with put_back([place]):
            before = reached().key
        at = [k for k, (a, b) in enumerate(zip(before, key, strict=False)) if a != b]
        if len(at) != 1 or len(before) != len(key) or at[0] in found:
            return None
        found[at[0]] = place._replace(value=_get(place))
    changed = {k for k, (a, b) in enumerate(zip(then.key, key, strict=True)) if a != b}
    return found if found and found.keys() == changed else None


@contextlib.contextmanager
def put_back(held: Sequence[Held]) -> Iterator[None]:
    """In here, containers hold these values, where no other thread sees it."""
    if not held or not is_only_thread():
        yield
        return
    before = [place._replace(value=_get(place)) for place in held]
    try:
        for place in held:
            _set(place)
        yield
    finally:
        for place in reversed(before):
            _set(place)


def _others(now: Sequence[Any], then: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """The plain values in which two keys differ, MISSING for one that was met before; None where they differ
    in more."""
    if len(now) != len(then):
        return None
    others = [(a, b) for a, b in zip(now, then, strict=True) if a != b]
    found = [(plain(a), plain(b)) for a, b in others]
    for pair, known in zip(others, found, strict=True):
        if any(a is MISSING and type(item) is not Seen for item, a in zip(pair, known, strict=True)):
            return None
    if any(MISSING not in known and type(known[0]) is not type(known[1]) for known in found):
        return None
    return found


def plain(item: Any) -> Any:
    """The value that an item of a key stands for."""
    if type(item) is tuple and len(item) == 2 and item[0] is float and type(item[1]) is str:
        return float(item[1])
    return item if type(item) in _PLAIN else MISSING


def _places(holders: Iterable[Any], value: Any) -> Iterator[Held]:
    """Where containers hold a value like this."""
    for holder in itertools.chain.from_iterable((each, *_parts(each)) for each in holders):
        for at, item in _items(holder):
            if type(item) is type(value) and repr(item) == repr(value):
                yield Held(holder, at, item)


def _parts(holder: Any) -> Iterator[Any]:
    """What code of a function reads beside what it is given."""
    if type(holder) is types.FunctionType:
        yield _Defaults(holder)
        yield from (Names(holder.__globals__, (name,)) for name in facts(holder.__code__).globals)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    way = _way_of(holder)
    if way is None or isinstance(holder, (set, collections.OrderedDict)):
        return []
    held = way.read(holder)
    if not isinstance(holder, (dict, type)):
        return list(enumerate(held))
    return [pair for pair in by_name(held) if type(pair[0]) is str]


def _get(place: Held) -> Any:
    return dict(_items(place.holder)).get(place.at, MISSING)


def _set(place: Held) -> None:
    """Write what a place held; nothing, where it is gone."""
    way, holder = _way_of(place.holder), place.holder
    if way is None or place.value is MISSING:
        return
    held = way.read(holder)
    names = held[: len(held) // 2] if isinstance(holder, (dict, type)) else None
    if names is None:
        at = place.at if place.at < len(held) else None
    else:
        at = next((len(names) + k for k, name in enumerate(names) if name is place.at), None)
    if at is not None:
        way.write(holder, [*held[:at], place.value, *held[at + 1 :]])
