"""Words of memory held against what they were, by a function of C: a few nanoseconds a word."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable

from stepnet.errors import BuildError

from .build import build

_TEXT = """
#include <stdint.h>

typedef void *(*lookup)(void *dict, void *name);

/* All checks hold. Three numbers each: 0, an address and its word; or a dict, a name, and what it holds. */
int32_t sn_unchanged(const int64_t *checks, int64_t count, lookup find) {
    for (const int64_t *end = checks + 3 * count; checks < end; checks += 3)
        if (checks[0] ? (int64_t)find((void *)checks[0], (void *)checks[1]) != checks[2]
                      : *(const int64_t *)checks[1] != checks[2])
            return 0;
    return 1;
}
"""


def unchanged(checks: array[int]) -> Callable[[], int] | None:
    """A function that tells whether the checks of `compiler.unchanged` hold; None where it cannot be built.

    >>> word = array("q", [7])
    >>> holds = unchanged(array("q", [0, word.buffer_info()[0], 7]))
    >>> bool(holds())
    True
    >>> word[0] = 8
    >>> bool(holds())
    False
    """
    checked = comparison()
    if checked is None:
        return None
    holds = functools.partial(checked, checks.buffer_info()[0], len(checks) // 3, _find())
    vars(holds)["checks"] = checks  # as long as somebody may ask, they stand there
    return holds


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
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    function.restype = ctypes.c_int32
    return function


@functools.cache
def _find() -> int | None:
    return ctypes.cast(ctypes.pythonapi.PyDict_GetItemWithError, ctypes.c_void_p).value
