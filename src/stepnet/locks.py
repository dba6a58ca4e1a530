"""Locks that a fork does not leave held for ever by threads that it did not copy."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod, WeakSet

_all: WeakSet[Lock] = WeakSet()


class Lock(_thread.RLock):  # pyright: ignore[reportGeneralTypeIssues]
    """A lock that one thread may take several times.

    In a process forked while another thread held it, it is free; while the thread that forked held it, it is
    still held by that thread, which goes on there. Copies are locks of their own.

    Args:
        forked: a method, called in a process forked from this one with whether another thread held it: its
            work is half done, and nobody ends it.

    >>> lock = Lock()
    >>> with lock:
    ...     with lock:
    ...         lock.acquire(blocking=False)
    True
    >>> lock.release()
    """

    __slots__ = ("_forked",)

    # Its `__enter__` and `__exit__` are C: in Python's an error by a signal may come after it was taken,
    # or before it is given back, and then it is held for ever.
    def __init__(self, forked: Callable[[bool], object] | None = None) -> None:
        self._forked = None if forked is None else WeakMethod(forked)
        _all.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()

    def after_fork(self) -> None:
        """Free it in the child of a thread that does not hold it."""
        held = not self.acquire(blocking=False)
        if held:
            self._at_fork_reinit()  # pyright: ignore[reportAttributeAccessIssue]
        else:
            self.release()
        forked = None if self._forked is None else self._forked()
        if forked is not None:
            forked(held)


def _after_fork() -> None:
    for lock in [*_all]:
        lock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
