"""What an ordinary run takes of a product of parameters, and that nothing is lost under `--exhaustive`."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covering import cover, few, left_out, together


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 3))
def test_each_n_values_come_together_at_least_once(sizes, n):
    product = [dict(zip("abcd", values, strict=False)) for values in itertools.product(*map(range, sizes))]
    chosen = cover([together(values, n) for values in product])
    seen = set().union(*(together(product[i], n) for i in chosen))
    for names in itertools.combinations(range(len(sizes)), min(n, len(sizes))):
        for values in itertools.product(*(range(sizes[i]) for i in names)):
            assert tuple(("abcd"[i], v) for i, v in zip(names, values, strict=True)) in seen
    assert len(chosen) >= math.prod(sorted(sizes)[-n:])


def test_few_marks_the_others():
    parameters = few("abc", "b")
    assert [getattr(p, "values", p)[0] for p in parameters] == ["a", "b", "c"]
    assert [bool(getattr(p, "marks", ())) for p in parameters] == [True, False, True]
    with pytest.raises(AssertionError, match="d"):
        few("abc", "d")


class Item:
    """As much of a test as is looked at."""

    def __init__(self, mark=None, **parameters):
        self.mark, self.function, self.callspec = mark, Item, SimpleNamespace(params=parameters)

    def get_closest_marker(self, name):
        return self.mark if self.mark is not None and self.mark.name == name else None


@pytest.mark.parametrize(("n", "kept"), [(1, 3), (2, 9), (3, 27)])
def test_what_an_ordinary_run_leaves_out(n, kept):
    mark = pytest.mark.covering(n).mark
    values = [1, "two", [3]]  # of any kind
    product = [Item(mark, **dict(zip("abc", v, strict=True))) for v in itertools.product(values, repeat=3)]
    rare, usual = Item(pytest.mark.exhaustive.mark), [Item(), Item(pytest.mark.skip.mark)]
    out = left_out([*product, rare, *usual])
    assert rare in out
    assert not out.intersection(usual)
    assert kept <= len(product) - len(out - {rare}) <= kept + 4
