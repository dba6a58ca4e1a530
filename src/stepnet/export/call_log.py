"""What the user's code asks torch for, call by call, in its own numbers: so that it can be told whether other
numbers of sequences make it ask for other things. What torch makes of it is not looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepnet.user_line import Line


@dataclass(frozen=True)
class Request:
    """One call.

    Attributes:
        place: which line it is in, and which instruction of that.
        name: of the function.
        numbers: of Python's that it is given.
        tensors: that it is given: of which call each is, and which of its results; of none: as they came.
    """

    place: tuple[Line, int] | None
    name: str
    numbers: tuple[Any, ...] = ()
    tensors: tuple[tuple[int, int], ...] = ()

    def is_as(self, other: Request, pairs: Mapping[Any, Any]) -> bool:
        """Whether another call is this one, where there are other numbers of sequences."""
        return (self.place, self.name, self.tensors, len(self.numbers)) == (
            other.place, other.name, other.tensors, len(other.numbers),
        ) and all(
            a == b or a != a or pairs.get(a) == b for a, b in zip(self.numbers, other.numbers, strict=True)
        )  # fmt: skip


class Asked:
    """The calls of a trace, which line fixed an open size to each number, and which took gradients."""

    def __init__(self) -> None:
        self.calls: list[Request] = []
        self.fixed: dict[int, Line] = {}
        self.gradient: Line | None = None
        self.begin()

    def begin(self) -> None:
        """Note a trace from its beginning."""
        self.calls.clear()
        self._others = itertools.count()
        self._tensors: dict[int, tuple[Any, tuple[int, int]]] = {}  # held: no other one gets the id of one

    def call(self, place: tuple[Line, int] | None, name: str, given: Any, result: Any) -> None:
        """Note a call of a function that gives tensors."""
        made = [(k, part) for k, part in enumerate(_parts(result)) if isinstance(part, Tensor)]
        if not made:
            return
        parts = list(_parts(given))
        numbers = tuple(part for part in parts if type(part) in (bool, int, float))
        self.calls.append(Request(place, name, numbers, self._known(parts)))
        self._tensors |= {id(part): (part, (len(self.calls), k)) for k, part in made}

    def results(self, results: Sequence[Any]) -> None:
        """Note what is given in the end."""
        self.calls.append(Request(None, "results", (), self._known(results)))

    def _known(self, parts: Sequence[Any]) -> tuple[tuple[int, int], ...]:
        found = []
        for part in parts:
            if isinstance(part, Tensor):
                if id(part) not in self._tensors:
                    self._tensors[id(part)] = part, (-1, next(self._others))
                found.append(self._tensors[id(part)][1])
        return tuple(found)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _parts(part)
    else:
        yield value
