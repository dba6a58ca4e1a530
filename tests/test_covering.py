"""What an ordinary run takes of a product of parameters, and that nothing is lost under `--exhaustive`."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covering import cover, every, few, left_out, together


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


def test_every_marks_all_but_some():
    parameters = every(2, ["a", pytest.param("b", id="B"), "c"])
    assert [bool(getattr(p, "marks", ())) for p in parameters] == [False, True, False]
    assert (parameters[1].values, parameters[1].id) == (("b",), "B")


class Item:
    """As much of a test as is looked at."""

    def __init__(self, marks=(), **parameters):
        self.marks, self.function = marks, Item
        if parameters:
            self.callspec = SimpleNamespace(params=parameters)

    def iter_markers(self, name):
        return [mark for mark in self.marks if mark.name == name]

    def get_closest_marker(self, name):
        return next(iter(self.iter_markers(name)), None)


@pytest.mark.parametrize(("n", "kept"), [(1, 3), (2, 9), (3, 27)])
def test_what_an_ordinary_run_leaves_out(n, kept):
    mark = pytest.mark.covering(n).mark
    values = [1, "two", [3]]  # of any kind
    product = [Item([mark], **dict(zip("abc", v, strict=True))) for v in itertools.product(values, repeat=3)]
    rare, usual = Item([pytest.mark.exhaustive.mark]), [Item(), Item([pytest.mark.skip.mark])]
    out = left_out([*product, rare, *usual])
    assert rare in out
    assert not out.intersection(usual)
    assert kept <= len(product) - len(out - {rare}) <= kept + 4


def test_each_row_of_each_table_is_run_once():
    table = [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    marks = [pytest.mark.parametrize(("m", "n"), table).mark, pytest.mark.parametrize("of", "xyz").mark]
    product = [Item(marks, m=m, n=n, of=of) for (m, n), of in itertools.product(table, "xyz")]
    kept = [item.callspec.params for item in product if item not in left_out(product)]
    assert [(of["m"], of["n"]) for of in kept] == table
    assert {of["of"] for of in kept} == {*"xyz"}
