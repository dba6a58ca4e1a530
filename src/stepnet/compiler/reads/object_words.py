"""Words of memory of objects: where CPython keeps what they hold, in bytes from their start."""

from __future__ import annotations

import ctypes
import functools
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


def _places(held: Sequence[Any], owner: Any, where: Sequence[int]) -> tuple[int, ...] | None:
    found = [place_of(part, owner, where) for part in held]
    known = [place for place in found if place is not None]
    return tuple(known) if len(known) == len(held) else None
