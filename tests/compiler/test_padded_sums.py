"""Sums of padded values: their parts side by side, to the bit the same."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from stepnet.compiler.passes.padded_sums import join_paddings
from stepnet.executors.loop import bound, run_nodes
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.verify import verify

SPECIAL = [0.0, -0.0, float("nan"), float("inf"), -1.5, 2.0]


def padded_sum(pick, overlap):
    """A sum, in any order, of values of which each is a part beside zeros; of one more, if so asked."""
    shape, dim = pick.choice([((12,), 0), ((12, 2), 0), ((3, 12), 1)])
    cuts = [0, *sorted(pick.sample(range(1, 12), pick.randint(1, 4))), 12]
    ranges = [r for r in pairwise(cuts) if pick.random() < 0.9]
    if len(ranges) < 2:
        return padded_sum(pick, overlap)
    if overlap:
        ranges.append((ranges[0][0], 12) if ranges[0][0] else (0, 12 - pick.randint(1, 3)))
    values, nodes, parts = {}, [], []

    def value(name, size):
        values[name] = Value(name, "row", (*shape[:dim], size, *shape[dim + 1 :]), "float32")
        return name

    def node(op, inputs, name, size, **attrs):
        nodes.append(Node(op, inputs, (value(name, size),), tuple(attrs.items())))
        return name

    terms = []
    for k, (begin, end) in enumerate(ranges):
        parts.append(value(f"p{k}", end - begin))
        beside = [node("full", (), f"z{k}_{n}", n, value=0.0) if n else None for n in (begin, 12 - end)]
        around = tuple(name for name in (beside[0], parts[-1], beside[1]) if name is not None)
        terms.append(node("cat", around, f"c{k}", 12, dim=dim))
    pick.shuffle(terms)
    while len(terms) > 1:
        both = [terms.pop(pick.randrange(len(terms))) for _ in range(2)]
        terms.append(node("add", tuple(both), f"s{len(nodes)}", 12))
    return Graph("step", tuple(parts), tuple(nodes), (terms[0],), values)


def result(graph, inputs):
    values = dict(inputs)
    run_nodes(bound(graph, graph.nodes), values, rows=5)
    return values[graph.results[0]]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_same_numbers(seed, overlap):
    pick = random.Random(seed)
    graph = padded_sum(pick, overlap)
    joined = join_paddings(graph)
    verify(joined, "body")
    inputs = {
        name: torch.tensor(pick.choices(SPECIAL, k=5 * graph.values[name].size)).view(
            5, *graph.values[name].shape
        )
        for name in graph.parameters
    }
    before, after = result(graph, inputs), result(joined, inputs)
    assert torch.equal(before.isnan(), after.isnan())
    assert torch.equal(before.nan_to_num(9), after.nan_to_num(9))
    assert torch.equal(before.signbit() & ~before.isnan(), after.signbit() & ~after.isnan())
    if not overlap:
        assert [node.op for node in joined.nodes].count("cat") == 1
        assert [node.op for node in joined.nodes].count("add") == len(graph.parameters)


def test_sums_over_rows_stay():
    """Nothing is added to them before the last row."""
    graph = padded_sum(random.Random(3), overlap=False)
    values = {name: replace(value, kind="sum") for name, value in graph.values.items()}
    graph = replace(graph, values=values)
    assert join_paddings(graph) is graph


def test_what_is_read_elsewhere_stays():
    pick = random.Random(3)
    graph = padded_sum(pick, overlap=False)
    inner = next(node.output for node in graph.nodes if node.op == "cat")
    graph = Graph("step", graph.parameters, graph.nodes, (*graph.results, inner), graph.values)
    assert inner in {name for node in join_paddings(graph).nodes for name in node.outputs}
