"""Whole numbers of a recorded loop that are sums: of loop variables, of constants, of sizes and of numbers.

From one turn to the next such a sum changes by the same number, if what counts in it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .recorded import Call
from .template import Literal, Ref

_NAMES = {
    "radd": "add", "subtract": "sub", "multiply": "mul", "rmul": "mul", "negative": "neg",
    "greater_equal": "ge", "greater": "gt", "less_equal": "le", "less": "lt", "equal": "eq",
    "not_equal": "ne",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """`const` and so many times the value of each place.

    >>> Line(1, ((3, 2),)).plus(Line(4, ((3, -2),))), Line(2, ((0, 1),)).at({0: 5})
    (Line(const=5, terms=()), 7)
    """

    const: int
    terms: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(place: int) -> Line:
        """The value of a place."""
        return Line(0, ((place, 1),))

    def plus(self, other: Line, times: int = 1) -> Line:
        """The sum with so many times another."""
        terms = dict(self.terms)
        for place, count in other.terms:
            terms[place] = terms.get(place, 0) + times * count
        kept = sorted((place, count) for place, count in terms.items() if count)
        return Line(self.const + times * other.const, tuple(kept))

    def times(self, number: int) -> Line:
        """So many times the line."""
        return Line(0).plus(self, number)

    def by(self, slopes: Mapping[int, int]) -> int:
        """What it changes by from one turn to the next, where these places change by so much."""
        return sum(count * slopes.get(place, 0) for place, count in self.terms)

    def at(self, values: Mapping[int, Any]) -> Any:
        """Its value."""
        total: Any = self.const
        for place, count in self.terms:
            value = values[place]
            total = total + (value if count == 1 else count * value)
        return total


def lines_of(calls: Iterable[Call], known: Iterable[int]) -> dict[int, Line]:
    """What is a line of the values at some places, by its own place."""
    found = {place: Line.of(place) for place in known}
    for op in calls:
        name, parts = name_of(op), [line_in(found, part) for part in op.args]
        times = dict(op.kwargs.items).get("alpha") if op.kwargs else 1
        if type(times) is not int or (op.kwargs and len(op.kwargs.items) > 1) or None in parts:
            continue
        made = _sum(name, [part for part in parts if part is not None], times)
        if made is not None and made.terms:
            found[op.out] = made
    return found


def line_in(lines: Mapping[int, Line], part: Any) -> Line | None:
    """An argument of a call as a line; None for another."""
    part = part.value if isinstance(part, Literal) else part
    if type(part) is int or isinstance(part, torch.SymInt):  # of a module that is traced
        return Line(cast(int, part))
    return lines.get(part.place) if isinstance(part, Ref) else None


def _sum(name: str, parts: list[Line], times: int) -> Line | None:
    if len(parts) == 1:
        return {"neg": parts[0].times(-1), "pos": parts[0], "clone": parts[0]}.get(name)
    if len(parts) != 2:
        return None
    a, b = parts
    if name in ("add", "sub"):
        return a.plus(b, times if name == "add" else -times)
    if name == "rsub":
        return b.plus(a, -times)
    if name != "mul" or (a.terms and b.terms):
        return None
    number, line = (b.const, a) if a.terms else (a.const, b)
    return line.times(number) if type(number) is int else None


def name_of(op: Call) -> str:
    """`add` for torch.add, Tensor.add and Tensor.__add__; `eq` and `ge` likewise."""
    name = getattr(op.function, "__name__", "")
    plain = name.strip("_")
    return _NAMES.get(plain, plain)


def one_whole(value: Any) -> bool:
    """Whether a value is one whole number: of Python's, an open size, or in a tensor."""
    if isinstance(value, Tensor):
        kind = value.dtype
        fraction = kind.is_floating_point or kind.is_complex or kind == torch.bool
        return not fraction and value.numel() == 1
    return type(value) is int or isinstance(value, torch.SymInt)
