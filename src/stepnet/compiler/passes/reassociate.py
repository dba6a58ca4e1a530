"""Sums ordered by what they depend on, so that as much as can be is added once.

    (x W + b) + (h U + c)   ->   (x W + (b + c)) + h U

b + c is then made once per call, x W + (b + c) once on all rows, and only h U waits for the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepnet.ir.graph import Graph, Node, Value

from .new_values import numbered


def reassociate(graph: Graph, carried: Sequence[str]) -> Graph:
    """Regroup chains of `add` in a body graph; `carried` are the parameters that change with the step."""
    users = graph.users()
    results = set(graph.results)
    producers = graph.producers
    values = dict(graph.values)
    late = set(carried)
    for node in graph.nodes:
        if late.intersection(node.inputs):
            late.update(node.outputs)

    def inner(name: str, shape: tuple[int, ...]) -> Node | None:
        """The add that made a term, if it exists for this chain alone."""
        node = producers.get(name)
        alone = node is not None and node.op == "add" and len(users[name]) == 1 and name not in results
        kept = alone and values[name].shape == shape and values[name].kind == "row"
        return node if kept else None

    def terms(node: Node) -> tuple[list[str], list[str]]:
        """What a chain of adds adds up, and the sums on the way."""
        found: list[str] = []
        sums: list[str] = []
        for name in node.inputs:
            deeper = inner(name, values[node.output].shape)
            if deeper is None:
                found.append(name)
                continue
            more, behind = terms(deeper)
            found += more
            sums += [name, *behind]
        return found, sums

    absorbed: set[str] = set()
    made: dict[str, list[Node]] = {}
    for node in reversed(graph.nodes):
        if node.op != "add" or node.output in absorbed or values[node.output].kind != "row":
            continue
        parts, sums = terms(node)
        groups = (
            [n for n in parts if values[n].kind == "shared"],
            [n for n in parts if values[n].kind == "row" and n not in late],
            [n for n in parts if n in late],
        )
        mixed = len(parts) > 2 and sum(map(bool, groups)) > 1
        if mixed and all(_fits(values, n, node) for n in parts):
            absorbed.update(sums)
            made[node.output] = _chain(node, groups, values)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.outputs[0] in made:
            nodes += made[node.outputs[0]]
        elif node.outputs[0] not in absorbed:
            nodes.append(node)
    left = {name for node in nodes for name in node.outputs}.union(graph.parameters)
    values = {name: value for name, value in values.items() if name in left}
    return Graph(graph.name, graph.parameters, tuple(nodes), graph.results, values)


def _fits(values: dict[str, Value], name: str, node: Node) -> bool:
    """True for a term as large as the sum: adding it early then costs no more."""
    return values[name].shape == values[node.output].shape and values[name].dtype == values[node.output].dtype


def _chain(node: Node, groups: tuple[list[str], ...], values: dict[str, Value]) -> list[Node]:
    """Adds that sum the groups one after the other and end in the node's result."""
    result = values[node.output]
    out: list[Node] = []
    total: str | None = None
    shared = groups[0]
    order = [*_joined(shared, result, values, out), *groups[1], *groups[2]]
    # the shared sum goes to the first row value
    if shared and len(order) > 1:
        order[0], order[1] = order[1], order[0]
    for i, name in enumerate(order):
        if total is None:
            total = name
            continue
        last = i == len(order) - 1
        fresh = node.output if last else numbered(node.output, len(values), result, "row", values)
        out.append(Node("add", (total, name), (fresh,), (), node.line))
        total = fresh
    return out


def _joined(names: list[str], like: Value, values: dict[str, Value], out: list[Node]) -> list[str]:
    """The shared terms as one value."""
    if len(names) < 2:
        return names
    total = names[0]
    for name in names[1:]:
        fresh = numbered(total, len(values), like, "shared", values)
        out.append(Node("add", (total, name), (fresh,)))
        total = fresh
    return [total]
