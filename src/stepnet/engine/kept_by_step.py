"""What is known of steps, each kept while the step is alive."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_LIMIT = 512
T = TypeVar("T")


def place_of(step: Any) -> Any:
    """What a step is found by while it is alive; a bound method is made anew wherever it is named."""
    if type(step) is types.MethodType:
        return id(step.__func__), place_of(step.__self__)
    return id(step)


def owner_of(step: Any) -> Any:
    """What a step is alive with."""
    while type(step) is types.MethodType:
        step = step.__self__
    return step


class KeptByStep(Generic[T]):
    """A value for each of the last steps; none for a step of which nothing tells when it is gone."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[weakref.ref[Any], T]] = {}

    def of(self, step: Any) -> T | None:
        """What is known of a step; None for nothing."""
        known = self._kept.get(place_of(step)) if self._kept else None
        return None if known is None else known[1]

    def note(self, step: Any, value: T) -> None:
        """Keep a value instead of the one before, if any can be kept."""
        self._make(step, lambda alive: value)

    def made(self, step: Any, make: Callable[[weakref.ref[Any]], T]) -> T | None:
        """What is known of a step, else what is made of a reference to it; None if none can be kept."""
        known = self.of(step)
        return self._make(step, make) if known is None else known

    def _make(self, step: Any, make: Callable[[weakref.ref[Any]], T]) -> T | None:
        place, kept = place_of(step), self._kept
        if len(kept) >= _LIMIT:
            kept.clear()
        try:
            alive = weakref.ref(owner_of(step), lambda _: kept.pop(place, None))
        except TypeError:  # of an object with slots
            return None
        kept[place] = alive, (value := make(alive))
        return value

    def clear(self) -> None:
        """Forget all steps."""
        self._kept.clear()
