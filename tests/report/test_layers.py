"""Placing a graph: what holds of every placing, on graphs that hypothesis draws."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepnet.report.layers import Item, arrange, spread


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(min(p), max(p)) for p in draw(st.lists(pairs, max_size=24)) if p[0] != p[1]}
    reads, read = {b for _, b in edges}, {a for a, _ in edges}
    items = []
    for n in range(count):
        end = draw(st.sampled_from([0, *([-1] if n not in reads else []), *([1] if n not in read else [])]))
        items.append(Item(draw(st.floats(10, 90)), draw(st.floats(10, 40)), end))
    return items, sorted(edges)


def boxes(items, centres):
    return [
        (x - i.width / 2, y - i.height / 2, x + i.width / 2, y + i.height / 2)
        for i, (x, y) in zip(items, centres, strict=True)
    ]


@given(graphs())
def test_every_placing(graph):
    items, edges = graph
    placed = arrange(items, edges)
    found = boxes(items, placed.centres)
    for a, b in edges:
        assert found[a][3] < found[b][1]  # what is read stands above
        heights = [found[a][3], *(y for _, y in placed.bends[a, b]), found[b][1]]
        assert heights == sorted(heights)
    for a, b in combinations(found, 2):
        assert a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] or b[3] <= a[1]
    for left, top, right, bottom in found:
        assert left >= -1e-6
        assert top >= -1e-6
        assert right <= placed.width + 1e-6
        assert bottom <= placed.height + 1e-6
    for end, better in ((-1, min), (1, max)):
        ends = {placed.centres[n][1] for n, item in enumerate(items) if item.end == end}
        inner = [y for (_, y), item in zip(placed.centres, items, strict=True) if item.end == 0]
        if ends and inner:
            assert better(*ends, *inner) in ends


def test_two_that_cross_are_put_straight():
    items = [Item(20, 10) for _ in range(4)]
    placed = arrange(items, [(0, 3), (1, 2)])
    x = [x for x, _ in placed.centres]
    assert (x[0] < x[1]) == (x[3] < x[2])
    assert x[0] == pytest.approx(x[3])


def test_nothing():
    assert arrange([], []).width == 0


@given(st.lists(st.tuples(st.floats(-99, 99), st.floats(1, 20)), min_size=1, max_size=7))
def test_spread_keeps_apart_and_moves_no_more_than_it_must(given):
    wishes, sizes = [w for w, _ in given], [s for _, s in given]
    found = spread(wishes, sizes, 2.0)
    for i in range(len(found) - 1):
        assert found[i + 1] - found[i] >= (sizes[i] + sizes[i + 1]) / 2 + 2.0 - 1e-6
    cost = sum((a - b) ** 2 for a, b in zip(found, wishes, strict=True))
    for shift in (-0.01, 0.01):  # no shift of a tail or of a head does better
        for k in range(len(found)):
            for moved in (range(k, len(found)), range(k + 1)):
                other = [x + shift * (i in moved) for i, x in enumerate(found)]
                apart = all(
                    b - a >= (sizes[i] + sizes[i + 1]) / 2 + 2.0 - 1e-9
                    for i, (a, b) in enumerate(pairwise(other))
                )
                if apart:
                    assert sum((a - b) ** 2 for a, b in zip(other, wishes, strict=True)) >= cost - 1e-6
