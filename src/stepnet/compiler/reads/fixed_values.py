"""Values of Python's own that never change, such as configurations hold: by what they are told, where code
asks them for nothing that lies elsewhere, as whether a file exists or which time it is."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import re
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np

from .trust import words


class _Told(NamedTuple):
    """`by`: what tells a value, None where nothing does; `asks`: names by which code asks it for more."""

    by: Callable[[Any], Any]
    asks: frozenset[str] = frozenset()


def _of_a_time(value: Any) -> str | None:
    return repr(value) if value.tzinfo is None or type(value.tzinfo) is datetime.timezone else None


def _of_a_decimal(value: decimal.Decimal) -> tuple[Any, ...]:
    """Its digits, and how this thread computes with such."""
    now = decimal.getcontext()
    traps = tuple(sorted(signal.__name__ for signal, on in now.traps.items() if on))
    return str(value), now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps


def _of_a_pattern(value: re.Pattern[Any]) -> tuple[Any, ...] | None:
    return None if value.flags & re.LOCALE else (value.pattern, value.flags)


def _of_a_dtype(value: np.dtype[Any]) -> str | None:
    return value.str if value.isbuiltin == 1 else None


_BY_LOCALE = words("strftime __format__")
_BY_CLOCK = words("today now utcnow timestamp astimezone fromtimestamp utcfromtimestamp") | _BY_LOCALE
_PATH = _Told(str, frozenset(dir(pathlib.Path)) - frozenset(dir(pathlib.PurePath)))
_TOLD: dict[type, _Told] = {
    datetime.date: _Told(repr, _BY_CLOCK),
    datetime.datetime: _Told(_of_a_time, _BY_CLOCK),
    datetime.time: _Told(_of_a_time, _BY_LOCALE),
    datetime.timezone: _Told(repr),
    decimal.Decimal: _Told(_of_a_decimal, _BY_LOCALE),
    re.Pattern: _Told(_of_a_pattern),
    **dict.fromkeys((pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())), _PATH),
}
# Those that compute the same, whatever is set around: which they are is all that there is to know.
FIXED = frozenset(_TOLD) - {decimal.Decimal}
# Of classes made in Python, what these hold: others may put something else there.
_AS_MADE = {
    kind: (space, tuple(space.items()))
    for kind in {base for path in _TOLD for base in path.__mro__ if base.__module__.startswith("pathlib")}
    for space in [vars(kind)]
}


def told(value: Any, names: Set[str]) -> Any | None:
    """What tells a value that never changes; None if code with these names may ask it for more, or it is of
    another kind.

    >>> told(datetime.date(2020, 1, 2), {"year"}), told(datetime.date(2020, 1, 2), {"today"})
    ('datetime.date(2020, 1, 2)', None)
    """
    kind = type(value)
    if isinstance(value, np.dtype):
        return _of_a_dtype(value)
    known = _TOLD.get(kind)
    if known is None or not known.asks.isdisjoint(names):
        return None
    for base in kind.__mro__:
        space, made = _AS_MADE.get(base, ({}, ()))
        if any(space.get(name) is not item for name, item in made):
            return None
    return known.by(value)
