"""What somebody may set of a function in Python while it stays the same object: its code, its defaults, and
what its closure holds."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .dict_changes import changes_at, counts_changes
from .object_words import places_of_a_function

LOOKED_AT = set[int]()  # ids of functions whose parts are looked at for every step, see `monkeypatches`
_EMPTY: Any = object()
_CELL = 16  # bytes from the start of a cell to what it holds


def parts(function: types.FunctionType) -> tuple[Any, ...]:
    """Its code, its defaults, those of keywords, and what its cells hold.

    >>> def scaled(x, by=2.0, *, shift=1.0): ...
    >>> parts(scaled)[1:]
    ((2.0,), {'shift': 1.0}, 1.0)
    """
    named = function.__kwdefaults__
    held = map(_content, function.__closure__ or ())
    return function.__code__, function.__defaults__, named, *(named or {}).values(), *held


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def has_parts(function: types.FunctionType, before: Sequence[Any]) -> bool:
    """Whether the parts of a function are the very objects that they were."""
    now = parts(function)
    return len(now) == len(before) and all(map(operator.is_, now, before))


def with_inner(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """A function, and those in its closure: what a decorator made finds there what it is around."""
    yield function
    for held in map(_content, function.__closure__ or ()):
        if isinstance(held, types.FunctionType):
            yield held


def words_of_parts(functions: Iterable[types.FunctionType]) -> list[int]:
    """Words of memory one of which is another after somebody set a part of one of these functions; none where
    Python has no such."""
    if not counts_changes():
        return []
    places, found = places_of_a_function() or (), list[int]()
    for function in functions:
        count = 3 if function.__code__.co_kwonlyargcount else 2  # else nothing is named
        found += [id(function) + place for place in places[:count]]
        found += [id(cell) + _CELL for cell in function.__closure__ or ()]
        if function.__kwdefaults__:
            found.append(changes_at(function.__kwdefaults__))
    return found
