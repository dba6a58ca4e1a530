"""A function of torch's that is another one while code of stepnet runs, in whichever thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_NONE: Any = object()


class Swapped:
    """Another value for an attribute of a class or a module, as long as somebody is inside.

    The other value must do as the `original` for threads that are not. What had no such attribute loses it.

    >>> import types
    >>> owner = types.SimpleNamespace(size=1)
    >>> bigger = Swapped(owner, "size", 2)
    >>> with bigger.inside():
    ...     owner.size, bigger.original
    (2, 1)
    >>> owner.size
    1
    """

    def __init__(self, owner: Any, name: str, other: Any) -> None:
        self.owner, self.name, self.other = owner, name, other
        self.original: Any = None
        self._entered = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let it be the other value in here."""
        with self._lock:
            if not self._entered:
                self.original = vars(self.owner).get(self.name, _NONE)
                setattr(self.owner, self.name, self.other)
            self._entered += 1
        try:
            yield
        finally:
            with self._lock:
                self._entered -= 1
                if not self._entered and self.original is _NONE:
                    delattr(self.owner, self.name)
                elif not self._entered:
                    setattr(self.owner, self.name, self.original)
