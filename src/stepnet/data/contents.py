"""What a TensorArray holds: a size and a dict, and steps that are one tensor until one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .steps import Steps
from .values import Value


class Contents:
    """Values by index; a place below the size may hold none.

    Args:
        size: number of places, none of them written. They take no memory.
    """

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._written: dict[int, Value] = {}
        # Steps that were put in as one tensor, and are taken apart where one of them is asked for.
        self._joined: tuple[int, Steps] | None = None  # from which index
        self._computed: tuple[Steps, dict[int, Any]] | None = None  # those, taken apart; not yet asked for
        # What an element would look like, where a cut gave none: join it back and shape and dtype are kept.
        self.pattern: Value | None = None
        # The steps that all the values are, while they are that.
        self.steps: Steps | None = None

    @classmethod
    def of(cls, values: Sequence[Value]) -> Contents:
        """These values, one a place."""
        made = cls(len(values))
        made._written = dict(enumerate(values))
        return made

    @classmethod
    def all_of(cls, steps: Steps) -> Contents:
        """These steps and nothing else; how many there are may be open."""
        made = cls(steps.whole().shape[0])
        made._joined, made.steps = (0, steps), steps
        return made

    def copy(self) -> Contents:
        """The same values; writing to one leaves the other as it is."""
        twin = Contents(self.size)
        twin._written, twin._joined = dict(self._written), self._joined
        if self._computed is not None:
            twin._computed = self._computed[0], dict(self._computed[1])
        twin.pattern, twin.steps = self.pattern, self.steps
        return twin

    def put(self, start: int, steps: Steps) -> None:
        """Write consecutive places from index `start` on."""
        count = steps.whole().shape[0]
        self._written = self.values
        self._joined = (start, steps) if count else None
        self.steps = steps if start == 0 and 0 < count >= self.size else None
        self.size = max(self.size, start + count)

    def write(self, place: int, value: Value) -> None:
        """Put `value` at an index from 0 on."""
        self.values[place] = value
        self.steps = None
        self.size = max(self.size, place + 1)

    def read(self, place: int, default: Value | None) -> Value | None:
        """The value at an index, to be changed in place, too."""
        value = self.values.get(place, default)
        if self._computed is not None:
            steps, parts = self._computed
            if isinstance(value, Tensor) and parts.pop(place, None) is value and value.requires_grad:
                value = steps.by_itself(value)
                self.write(place, value)
        return value

    @property
    def whole(self) -> Tensor | None:
        """All values as one tensor, where they are that."""
        return None if self.steps is None else self.steps.whole()

    @property
    def values(self) -> dict[int, Value]:
        """What was written, by index."""
        if self._joined is not None:
            start, steps = self._joined
            parts = dict(enumerate(steps.apart(), start))
            self._written.update(parts)
            self._joined, self._computed = None, (steps, parts) if steps.computed else None
        return self._written

    @property
    def held(self) -> list[Value]:
        """What was put in or written, of which its values may be parts."""
        return [*self._written.values(), *([] if self._joined is None else [self._joined[1].whole()])]

    @property
    def like(self) -> Value | None:
        """One of the values, or all of them as one tensor, whichever there is without taking steps apart."""
        return next(iter(self._written.values()), self.whole)

    def after_others(self) -> Tensor | None:
        """All values as one tensor, where single ones come first, then steps that are one; else None."""
        if self._joined is None or self.steps is not None:
            return None
        start, steps = self._joined
        whole, found = steps.whole(), [self._written.get(place) for place in range(start)]
        like = whole.shape[1:], whole.dtype, whole.device
        first = [v for v in found if isinstance(v, Tensor) and (v.shape, v.dtype, v.device) == like]
        if len(first) < start or self.size != start + whole.shape[0]:
            return None
        return torch.cat([torch.stack(first), whole])
