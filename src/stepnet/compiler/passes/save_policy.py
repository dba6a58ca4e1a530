"""What the forward loop keeps for the backward one: the fewest bytes a row, by a minimum cut.

Every forward value is an edge as wide as its bytes; matmuls, sorts and factors, places of the largest,
noise, torch calls, sums of large rows and divisions of whole numbers, of which no vector has one, are never
computed twice, everything else may be. Of equal cuts the one nearest to the backward loop is taken, so that
gates are kept rather than what they were computed from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from stepnet.ir.agreement import INTEGERS
from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, RANDOM, Stage

_KEPT_STAGES = (Stage.MATMUL, Stage.WHOLE, Stage.OPAQUE)
_PICKS = ("embed", "argmax", "argmin")  # places: few, and looked for among many
_DIVISIONS = ("remainder", "floor_divide")
_LARGE, _SMALLER = 1024, 16  # elements that a sum is not taken of again, if it is so many times smaller


def recomputable(node: Node) -> bool:
    """True if computing a node again is cheap and gives the same."""
    return OPS[node.op].stage not in _KEPT_STAGES and node.op not in RANDOM and node.op not in _PICKS


def _is_sum_of_much(graph: Graph, node: Node) -> bool:
    if OPS[node.op].stage is not Stage.REDUCE:
        return False
    of, made = (graph.values[name].size for name in (node.inputs[0], node.outputs[0]))
    return of >= max(_LARGE, _SMALLER * made)


def _divides_whole_numbers(graph: Graph, node: Node) -> bool:
    return node.op in _DIVISIONS and graph.values[node.output].dtype in INTEGERS


def choose(
    graph: Graph, forward: Iterable[Node], wanted: Iterable[str], free: Mapping[str, float]
) -> set[str]:
    """The row values to keep.

    Args:
        graph: the joint graph.
        forward: its forward nodes.
        wanted: forward row values that backward nodes read.
        free: cost in bytes of values that are at hand anyway or cheaply (parameters, results).

    Returns:
        Names whose values, with parameters that are shared, suffice to compute `wanted` again.
    """
    import networkx as nx  # not before somebody compiles

    source, sink = "<source>", "<sink>"
    flow = nx.DiGraph()  # an edge without a capacity is never cut
    flow.add_nodes_from((source, sink))
    nodes = {name: node for node in forward for name in node.outputs}

    def row(name: str) -> bool:
        return graph.values[name].kind == "row"

    todo, seen = deque(n for n in wanted if row(n)), set()
    for name in list(todo):
        flow.add_edge((name, "out"), sink)
    while todo:
        name = todo.popleft()
        if name in seen:
            continue
        seen.add(name)
        cost = free.get(name, float(max(graph.values[name].bytes, 1)))
        flow.add_edge((name, "in"), (name, "out"), capacity=cost)
        node = nodes.get(name)
        slow = node is not None and (_is_sum_of_much(graph, node) or _divides_whole_numbers(graph, node))
        if node is None or not recomputable(node) or slow:
            flow.add_edge(source, (name, "in"))
            continue
        for operand in node.inputs:
            if row(operand):
                flow.add_edge((operand, "out"), (name, "in"))
                todo.append(operand)
    _, (_, after) = nx.minimum_cut(flow, source, sink)  # `after`: all that still reaches the sink
    return {n for n in seen if (n, "out") in after and (n, "in") not in after}
