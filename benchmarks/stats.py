"""The few numbers that a benchmark reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """The middle of some measurements, and the quarters below and above it.

    >>> Spread.of([4.0, 1.0, 3.0, 2.0, 100.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Median and quartiles of one value or more."""
        ordered = sorted(values)
        return Spread(median(ordered), _at(ordered, 0.25), _at(ordered, 0.75))


def _at(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def growth_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The p of `time = c * size**p`: the least-squares slope of log time over log size.

    >>> round(growth_exponent([10, 100, 1000], [3, 300, 30000]), 6)
    2.0
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"a slope needs two different sizes or more, not {list(sizes)}")
    x = [math.log(size) for size in sizes]
    y = [math.log(time) for time in times]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle_x) ** 2 for a in x)
