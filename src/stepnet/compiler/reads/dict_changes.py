"""The word of memory that counts the changes of a dict: CPython's own up to 3.12 (PEP 509), from then on that
of a watcher of dicts, which is C (`executors/c/dict_watcher.py`)."""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Callable, Mapping
from typing import Any

_VERSION = 24  # bytes from the start of a dict to the number of its changes
_watcher: Callable[[], Callable[[Any], int] | None] | None = None


def counts_by(watcher: Callable[[], Callable[[Any], int] | None]) -> None:
    """Where Python does not count by itself: what `watcher()` gives, which is asked once, gives the address
    of a word that counts the changes of a dict; or it gives None, and they are not counted."""
    global _watcher
    _watcher = watcher


def _in_the_dict(held: Any) -> int:
    return id(held) + _VERSION


@functools.cache
def _place() -> Callable[[Any], int] | None:
    if (
        sys.implementation.name != "cpython"
        or sys.maxsize < 1 << 32
        or sysconfig.get_config_var("Py_GIL_DISABLED")
    ):
        return None
    if sys.version_info < (3, 13):
        place: Callable[[Any], int] | None = _in_the_dict
    else:
        place = None if _watcher is None else _watcher()
    if place is None:
        return None
    trial = {"name": 0}
    count = ctypes.c_int64.from_address(place(trial))
    before = count.value
    trial["name"] = 1
    return place if count.value != before else None


def counts_changes() -> bool:
    """Whether the changes of a dict are counted at all."""
    return _place() is not None


def changes_at(held: Mapping[Any, Any]) -> int:
    """The address of the word that is another one once this dict was changed, or is gone. It may be read for
    as long as the dict lives; where a watcher counts, for ever."""
    place = _place()
    assert place is not None
    return place(held)
