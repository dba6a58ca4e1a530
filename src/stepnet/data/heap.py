"""Freed memory, given back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable


def give_back() -> None:
    """Let the system have what was freed.

    The C library keeps it, in holes between what is still in use. Where large tables come and go beside small
    ones that stay, the next tables do not fit the holes, and a process grows.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
