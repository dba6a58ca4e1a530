"""What the forward loop keeps for the backward one: the fewest bytes a row, by a minimum cut.

Every forward value is an edge as wide as its bytes; matmuls, noise and torch calls are never computed
twice, everything else may be. Of equal cuts the one nearest to the backward loop is taken, so that
gates are kept rather than what they were computed from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, RANDOM, Stage

_KEPT_STAGES = (Stage.MATMUL, Stage.OPAQUE)
_FOREVER = float("inf")


def recomputable(node: Node) -> bool:
    """True if computing a node again is cheap and gives the same."""
    return OPS[node.op].stage not in _KEPT_STAGES and node.op not in RANDOM and node.op != "embed"


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
    flow = _Flow()
    source, sink = "<source>", "<sink>"
    nodes = {name: node for node in forward for name in node.outputs}

    def row(name: str) -> bool:
        return graph.values[name].kind == "row"

    todo, seen = deque(n for n in wanted if row(n)), set()
    for name in list(todo):
        flow.edge((name, "out"), sink, _FOREVER)
    while todo:
        name = todo.popleft()
        if name in seen:
            continue
        seen.add(name)
        flow.edge((name, "in"), (name, "out"), free.get(name, float(max(graph.values[name].bytes, 1))))
        node = nodes.get(name)
        if node is None or not recomputable(node):
            flow.edge(source, (name, "in"), _FOREVER)
            continue
        for operand in node.inputs:
            if row(operand):
                flow.edge((operand, "out"), (name, "in"), _FOREVER)
                todo.append(operand)
    flow.run(source, sink)
    after = flow.reaches(sink)
    return {n for n in seen if (n, "out") in after and (n, "in") not in after}


class _Flow:
    """Maximum flow by breadth-first augmenting paths; graphs here have some hundred edges."""

    def __init__(self) -> None:
        self.capacity: dict[object, dict[object, float]] = {}

    def edge(self, a: object, b: object, capacity: float) -> None:
        self.capacity.setdefault(a, {})
        self.capacity.setdefault(b, {}).setdefault(a, 0.0)
        self.capacity[a][b] = max(self.capacity[a].get(b, 0.0), capacity)

    def run(self, source: object, sink: object) -> None:
        while source in self.capacity and sink in self.capacity:
            came: dict[object, object] = {source: source}
            queue = deque([source])
            while queue and sink not in came:
                at = queue.popleft()
                for to, room in self.capacity[at].items():
                    if room > 0 and to not in came:
                        came[to] = at
                        queue.append(to)
            if sink not in came:
                return
            path = [sink]
            while path[-1] != source:
                path.append(came[path[-1]])
            steps = list(zip(path[1:], path, strict=False))
            room = min(self.capacity[a][b] for a, b in steps)
            for a, b in steps:
                self.capacity[a][b] -= room
                self.capacity[b][a] += room

    def reaches(self, sink: object) -> set[object]:
        """Everything from which the sink can still be reached."""
        found, queue = {sink}, deque([sink])
        while queue:
            at = queue.popleft()
            for other in self.capacity.get(at, {}):
                if other not in found and self.capacity[other].get(at, 0.0) > 0:
                    found.add(other)
                    queue.append(other)
        return found
