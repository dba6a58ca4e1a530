"""Locks that a fork does not leave held for ever by threads that it did not copy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod, WeakSet

_all: WeakSet[Lock] = WeakSet()


class Lock:
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

    __slots__ = ("__weakref__", "_forked", "acquire", "release")

    def __init__(self, forked: Callable[[bool], object] | None = None) -> None:
        self._forked = None if forked is None else WeakMethod(forked)
        self._renew()
        _all.add(self)

    def _renew(self) -> None:
        lock = threading.RLock()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()

    def after_fork(self) -> None:
        """Free it in the child of a thread that does not hold it."""
        held = not self.acquire(blocking=False)
        if held:
            self._renew()
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
