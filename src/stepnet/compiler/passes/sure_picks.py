"""Picks that surely meet an element: their index is the place of an extreme among no more than they have.

Said of a node by an attribute, for a loop that reads the index of another one does not see what made it.
"""

from __future__ import annotations

from dataclasses import replace

from stepnet.ir.graph import Graph, Node

_PICKS = ("gather", "scatter", "scatter_add")


def say_inside(graph: Graph) -> Graph:
    """The same graph with `inside=True` at each such pick."""
    makers, values = graph.producers, graph.values

    def is_inside(node: Node) -> bool:
        if node.op not in _PICKS or (place := makers.get(node.inputs[1])) is None:
            return False
        if place.op not in ("argmax", "argmin") or (dim := place.attr("dim")) is None:
            return False
        return 0 < values[place.inputs[0]].shape[dim] <= values[node.inputs[0]].shape[node.attr("dim")]

    nodes = [
        replace(node, attrs=(*node.attrs, ("inside", True))) if is_inside(node) else node
        for node in graph.nodes
    ]
    return graph if nodes == [*graph.nodes] else graph.with_nodes(nodes)
