"""What was found out, for so many keys and no more."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Bounded(dict[_K, _V]):
    """A dict of so many keys at the most: that which is there longest goes for one that is new.

    >>> found = Bounded[str, int](2)
    >>> for name in "abc":
    ...     found[name] = len(found)
    >>> found
    {'b': 1, 'c': 2}
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __reduce__(self) -> Any:
        return type(self), (self.most,)  # a copy finds out for itself

    def __setitem__(self, key: _K, value: _V) -> None:
        if len(self) >= self.most and key not in self:
            with suppress(StopIteration, RuntimeError):  # another thread makes room, too
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
