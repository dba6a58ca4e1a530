"""Which tests an ordinary run leaves out: what `make fuzz` runs beside them, under `--exhaustive`.

Of a product of tables a run takes some, in which each row of each comes once. A test that is marked
`covering(n)` says otherwise: each n values of n different parameters come together. Of a table whose cases
differ in little it takes a `few`. What alone shows something is not left out.
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
    return [one if one in chosen else _rarely(one) for one in table]


def every(n: int, table: Iterable[Any]) -> list[Any]:
    """Parameters of cases that go one way: each n-th runs always, the others under `--exhaustive`."""
    return [one if k % n == 0 else _rarely(one) for k, one in enumerate(table)]


def _rarely(one: Any) -> Any:
    if isinstance(one, type(pytest.param())):
        return one._replace(marks=[*one.marks, pytest.mark.exhaustive])
    return pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.exhaustive)


def examples(number: int) -> int:
    """As many random examples of a law; in an ordinary run the share that tests/conftest.py says."""
    return -(-number * settings().max_examples // 100)


def _values(callspec: Any) -> dict[str, Hashable]:
    """The parameters of a test; those that are no plain values by which object they are."""
    return {
        name: (type(value), value) if isinstance(value, (str, int)) else ("object", id(value))
        for name, value in callspec.params.items()
    }


def _rows(item: Any) -> dict[str, Hashable]:
    """What a test takes of each of its tables: parameters of one `parametrize` are a row, others one each."""
    values, rows = _values(item.callspec), {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        rows[names] = tuple(values.pop(name.strip()) for name in names.split(","))
    return rows | values


def left_out(items: Sequence[Any]) -> set[Any]:
    """What an ordinary run leaves out of these tests."""
    out = {item for item in items if item.get_closest_marker("exhaustive")}
    products: dict[Any, list[tuple[Any, frozenset[Hashable]]]] = defaultdict(list)
    for item in items:
        if item not in out and hasattr(item, "callspec"):
            mark = item.get_closest_marker("covering")
            (n,) = mark.args if mark else (1,)
            values = together(_values(item.callspec) if mark else _rows(item), n)
            products[getattr(item, "function", None)].append((item, values))
    for members in products.values():
        chosen = set(cover([values for _, values in members]))
        out |= {item for i, (item, _) in enumerate(members) if i not in chosen}
    return out
