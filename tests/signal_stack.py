"""The stack that signal handlers of this thread run on, put back after a library has left its own.

OpenVINO's CPU plugin (seen with 2026.4) sets one for the thread that loads it, and frees it in the thread
that drops it last: if that is another, the first thread's next signal (a child's end is one) kills the
process without a word, faulthandler's handler included.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

_LIBC = ctypes.CDLL(None)  # tests put others in the place of CDLL


class Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def current() -> Stack:
    stack = Stack()
    _LIBC.sigaltstack(None, ctypes.byref(stack))
    return stack


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Whatever is done in here, this thread's signal stack is the same afterwards."""
    if not sys.platform.startswith("linux"):
        yield
        return
    before = current()
    yield
    if current().place != before.place:
        _LIBC.sigaltstack(ctypes.byref(before), None)
