"""A function of torch's that is another one while code of stepnet runs, in whichever thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from stepnet.locks import Lock

_NONE: Any = object()
_ENTERED = list["Swapped"]()


def unswapped(value: Any) -> Any:
    """What stands where this value does when nobody is inside of a `Swapped`.

    >>> import math
    >>> other = Swapped(math, "tau", "other")
    >>> with other.inside():
    ...     unswapped(math.tau)
    6.283185307179586
    """
    found = next((swapped.original for swapped in tuple(_ENTERED) if swapped.other is value), value)
    return None if found is _NONE else found


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
        self._entered = list[int]()  # threads
        self._lock = Lock(self._forked)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let it be the other value in here."""
        own = threading.get_ident()
        before = self._entered.count(own)
        try:  # from the start: a signal may raise anywhere
            with self._lock:
                self._entered.append(own)
                if not self._begun():
                    self.original = vars(self.owner).get(self.name, _NONE)
                    _ENTERED.append(self)
                    setattr(self.owner, self.name, self.other)
            yield
        finally:
            with self._lock:
                if self._entered.count(own) > before:
                    self._entered.remove(own)
                if not self._entered and self._begun():
                    self._put_back()

    def _begun(self) -> bool:
        return vars(self.owner).get(self.name, _NONE) is self.other

    def _put_back(self) -> None:
        if self.original is _NONE:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        _ENTERED[:] = [swapped for swapped in _ENTERED if swapped is not self]

    def _forked(self, held: bool) -> None:
        """Leave it to the thread that forked: the others that are inside are not there."""
        own = threading.get_ident()
        was, self._entered = self._entered, [thread for thread in self._entered if thread == own]
        if (was or held) and self._begun() and not self._entered:
            self._put_back()
