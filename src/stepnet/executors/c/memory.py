"""Words of memory held against what they were, by a function of C: a few nanoseconds a word."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable
from typing import Any

from stepnet.errors import BuildError

from .build import build

_TEXT = """
#include <stdint.h>

typedef void *(*lookup)(void *dict, void *name);
typedef int (*append)(void *list, void *item);

/* If all checks hold, the objects at some addresses are put into a list. Three numbers each: 0, an address
   and its word; or a dict, a name, and what it holds. */
int32_t sn_unchanged(const int64_t *checks, int64_t count, lookup find, const int64_t *held, int64_t all,
                     void *list, append add) {
    for (const int64_t *end = checks + 3 * count; checks < end; checks += 3)
        if (checks[0] ? (int64_t)find((void *)checks[0], (void *)checks[1]) != checks[2]
                      : *(const int64_t *)checks[1] != checks[2])
            return 0;
    for (int64_t i = 0; i < all; ++i)
        if (add(list, (void *)held[i]))
            return 0;
    return 1;
}
"""


def unchanged(checks: array[int], held: array[int]) -> Callable[[], list[Any] | None] | None:
    """A function that gives the objects at some addresses if the checks of `compiler.unchanged` hold, else
    None; None where it cannot be built. Objects that the checks tell to be alive are kept by nothing else.

    >>> word, item = array("q", [7]), "alive"
    >>> ask = unchanged(array("q", [0, word.buffer_info()[0], 7]), array("q", [id(item)]))
    >>> ask()
    ['alive']
    >>> word[0] = 8
    >>> ask()
    """
    checked = comparison()
    if checked is None:
        return None
    given = checks.buffer_info()[0], len(checks) // 3, _called("PyDict_GetItemWithError")
    told = held.buffer_info()[0], len(held)
    add = _called("PyList_Append")

    def ask() -> list[Any] | None:
        found: list[Any] = []
        return found if checked(*given, *told, found, add) else None

    vars(ask)["kept"] = checks, held  # as long as somebody may ask, they stand there
    return ask


@functools.cache
def comparison() -> Callable[..., int] | None:
    """The function of C, built; None where it cannot be. Built beside other C: no later call waits for it."""
    try:
        library = build(_TEXT)
    except BuildError:
        return None
    # Python's lock is kept: nothing changes meanwhile, and it takes longer to let go of it than to check
    handle: int = library.handle._handle
    function = ctypes.PyDLL(str(library.path), handle=handle).sn_unchanged
    place, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [place, number, place, place, number, ctypes.py_object, place]
    function.restype = ctypes.c_int32
    return function


@functools.cache
def _called(name: str) -> int | None:
    """The address of a function of Python's."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
