"""Words of memory held against what they were, by a function of C: a few nanoseconds a word."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable
from typing import Any

from .build import build, until_built

_TEXT = """
#include <stdint.h>

typedef void *(*lookup)(void *dict, void *name);
typedef int (*append)(void *list, void *item);

struct asked {
    const int64_t *checks, count, *held, all;
    lookup find;
    append add;
};

/* If all checks hold, the objects at some addresses are put into a list. Three numbers each: 0, an address
   and its word; or a dict, a name, and what it holds. */
int32_t sn_unchanged(const struct asked *a, void *list) {
    const int64_t *checks = a->checks;
    for (const int64_t *end = checks + 3 * a->count; checks < end; checks += 3)
        if (checks[0] ? (int64_t)a->find((void *)checks[0], (void *)checks[1]) != checks[2]
                      : *(const int64_t *)checks[1] != checks[2])
            return 0;
    for (int64_t i = 0; i < a->all; ++i)
        if (a->add(list, (void *)a->held[i]))
            return 0;
    return 1;
}
"""


def unchanged(checks: array[int], held: array[int]) -> Callable[[], list[Any] | None] | None:
    """A function that gives the objects at some addresses if the checks of `compiler.reads.unchanged` hold,
    else None; None where it cannot be built. What the checks tell to be alive is kept by nothing else.

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
    counts = checks.buffer_info()[0], len(checks) // 3, held.buffer_info()[0], len(held)
    asked = array("q", [*counts, _called("PyDict_GetItemWithError"), _called("PyList_Append")])
    place = asked.buffer_info()[0]  # one argument, which is handed over sooner than seven

    def ask() -> list[Any] | None:
        found: list[Any] = []
        return found if checked(place, found) else None

    vars(ask)["kept"] = checks, held, asked  # as long as somebody may ask, they stand there
    return ask


@until_built
def comparison() -> Callable[..., int]:
    """The function of C, built. Built beside other C: no later call waits for it."""
    # nothing changes meanwhile, and it takes longer to let go of the lock than to check
    function = build(_TEXT).under_lock.sn_unchanged
    function.argtypes = [ctypes.c_void_p, ctypes.py_object]
    function.restype = ctypes.c_int32
    return function


@functools.cache
def _called(name: str) -> int:
    """The address of a function of Python's."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
