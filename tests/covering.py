"""Which tests an ordinary run leaves out: what `make fuzz` runs beside them, under `--exhaustive`.

A test of many parameters is marked `covering(n)`: of their product a run takes some in which each n values
of n different parameters come together. Of a table whose cases differ in little it takes a `few`. What alone
shows something is not left out.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings


def cover(sets: Sequence[frozenset[Hashable]]) -> list[int]:
    """Which few of these sets hold all that any of them holds: again and again the one that adds most, of
    several the one that repeats least.

    >>> cover([frozenset("ab"), frozenset("bcd"), frozenset("d"), frozenset("a")])
    [1, 3]
    """
    wanted: set[Hashable] = set().union(*sets)
    held: Counter[Hashable] = Counter()
    chosen: list[int] = []
    while wanted:
        best = max(range(len(sets)), key=lambda i: (len(sets[i] & wanted), -sum(held[k] for k in sets[i])))
        chosen.append(best)
        held.update(sets[best])
        wanted -= sets[best]
    return sorted(chosen)


def together(values: Mapping[str, Hashable], n: int) -> frozenset[Hashable]:
    """The combinations of n of these named values; all of them where there are fewer.

    >>> sorted(together({"a": 1, "b": 2}, 1))
    [(('a', 1),), (('b', 2),)]
    """
    return frozenset(itertools.combinations(sorted(values.items()), min(n, len(values))))


def few(table: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """Parameters for a test: those chosen run always, the others under `--exhaustive`."""
    table, chosen = list(table), list(chosen)
    assert all(one in table for one in chosen), chosen
    values = [one if isinstance(one, tuple) else (one,) for one in table]
    rest = [pytest.param(*value, marks=pytest.mark.exhaustive) for value in values]
    return [one if one in chosen else other for one, other in zip(table, rest, strict=True)]


def examples(number: int) -> int:
    """As many random examples of a law; in an ordinary run the share that tests/conftest.py says."""
    return -(-number * settings().max_examples // 100)


def _values(callspec: Any) -> dict[str, Hashable]:
    """The parameters of a test; those that are no plain values by which object they are."""
    return {
        name: value if isinstance(value, (str, int)) else ("object", id(value))
        for name, value in callspec.params.items()
    }


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """What an ordinary run leaves out of these tests."""
    out = {item for item in items if item.get_closest_marker("exhaustive")}
    products: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        if item not in out and (mark := item.get_closest_marker("covering")):
            products[getattr(item, "function", None), mark.args].append(item)
    for (_, (n,)), members in products.items():
        chosen = set(cover([together(_values(item.callspec), n) for item in members]))
        out |= {item for i, item in enumerate(members) if i not in chosen}
    return out
