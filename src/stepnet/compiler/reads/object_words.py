"""Words of memory of objects: where CPython keeps what they hold, in bytes from their start."""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


def word(address: int) -> int:
    """What stands at an address."""
    return ctypes.c_int64.from_address(address).value


def place_of(value: Any, owner: Any, where: Sequence[int]) -> int | None:
    """The one place in an object that holds the address of a value.

    >>> pair = (object(), object())
    >>> place_of(pair[1], pair, range(16, 48, 8)) - place_of(pair[0], pair, range(16, 48, 8))
    8
    """
    found = [offset for offset in where if word(id(owner) + offset) == id(value)]
    return found[0] if len(found) == 1 else None


@functools.cache
def places_of_a_function() -> tuple[int, ...] | None:
    """Those of its code, defaults, keyword defaults and attributes; None where one is not found."""
    default = object()

    def function(x: Any = default, *, y: Any = default) -> Any:
        return x, y

    held = function.__code__, function.__defaults__, function.__kwdefaults__, function.__dict__
    return _places(held, function, range(16, 128, 8))


@functools.cache
def places_of_a_partial() -> tuple[int, ...] | None:
    """Those of its function, arguments, keyword arguments and attributes; None where one is not found."""
    partial = functools.partial(places_of_a_partial, object(), x=object())
    held = partial.func, partial.args, partial.keywords, partial.__dict__
    return _places(held, partial, range(16, 16 + 8 * len(held), 8))


@functools.cache
def places_of_an_ordered_dict() -> tuple[int, int] | None:
    """Those of what counts the changes of its order, and of its attributes; None where one is not found."""
    one, where = OrderedDict(a=0, b=0), range(dict.__basicsize__, OrderedDict.__basicsize__, 8)
    attributes, seen = place_of(one.__dict__, one, where), list[list[int]]()
    for name in "aba":  # after two moves all but the count is as it was
        seen.append([word(id(one) + place) for place in where])
        one.move_to_end(name)
    counts = [
        place
        for place, a, b, c in zip(where, *seen, strict=True)
        if a < b < c <= a + 8 and place != attributes
    ]
    return None if attributes is None or len(counts) != 1 else (counts[0], attributes)


def _places(held: Sequence[Any], owner: Any, where: Sequence[int]) -> tuple[int, ...] | None:
    found = [place_of(part, owner, where) for part in held]
    known = [place for place in found if place is not None]
    return tuple(known) if len(known) == len(held) else None
