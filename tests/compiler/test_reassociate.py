"""Sums regrouped by what they depend on."""

from __future__ import annotations

import pytest

from stepnet.compiler.passes.reassociate import reassociate
from stepnet.ir.graph import Graph, Node, Value, in_order


def sums(others: int) -> Graph:
    """s = ((h + x) + (b + c)) + z beside a chain of other values, named as a pass before named its own."""
    kinds = {"x": "row", "h": "row", "z": "row", "b": "shared", "c": "shared"}
    adds = [("p", "h", "x"), ("q", "p", "b"), ("r", "q", "c"), ("s", "r", "z")]
    chain = [Node("neg", ("x" if i == 0 else f"s_s{i + 11}",), (f"s_s{i + 12}",)) for i in range(others)]
    nodes = (*(Node("add", (a, b), (out,)) for out, a, b in adds), *chain)
    named = kinds | {out: "row" for node in nodes for out in node.outputs}
    values = {name: Value(name, kind, (2,), "float32") for name, kind in named.items()}  # pyright: ignore
    return Graph("step", tuple(kinds), nodes, ("s", *chain[-1].outputs), values)


@pytest.mark.parametrize("others", range(1, 6))
def test_a_name_of_an_earlier_pass_is_not_taken_again(others):
    """It was: a value then read itself, and ordering the nodes never ended."""
    regrouped = reassociate(sums(others), ("h",))
    made = [name for node in regrouped.nodes for name in node.outputs]
    assert len(made) == len(set(made))
    assert not any(set(node.inputs) & set(node.outputs) for node in regrouped.nodes)
    assert len(in_order(regrouped.nodes)) == len(regrouped.nodes)
    assert any(set(node.inputs) == {"b", "c"} for node in regrouped.nodes)
