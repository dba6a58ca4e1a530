"""Products of which the loop reads some columns alone: by those columns of the matrix.

    for t: d = g W; dx[t] = d[:64]; dh = d[64:]    ->    for t: dh = g W[:, 64:];    DX = G W[:, :64]

Such is the gradient of `cat([x, h]) @ W`. Columns that nobody reads, as where x wants none, are not made.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

from stepnet.ir.graph import Graph, Node
from stepnet.ir.plan import Carry

from .fission import depths, is_product
from .new_values import further


def columns_apart(body: Graph, carries: Sequence[Carry]) -> Graph:
    """A body with its products in parts, where that leaves less to do in the loop."""
    users, turning = body.users(), depths(body, carries)[0]
    values, nodes, replaced = dict(body.values), list[Node](), set[int]()
    for node in body.nodes:
        groups = _groups(body, node, users[node.output], turning) if is_product(body, node) else []
        for start, end, slices in groups:
            left, matrix = node.inputs
            shape = (values[matrix].shape[0], end - start)
            part = further(values, f"{matrix}_columns{start}", values[matrix], shape=shape)
            made = further(values, f"{node.output}_columns{start}", values[node.output], shape=shape[1:])
            nodes.append(_slice(matrix, part, 1, start, end, node.line))
            nodes.append(replace(node, inputs=(left, part), outputs=(made,)))
            for own in slices:
                first, last = own.attr("start") - start, own.attr("end") - start
                nodes.append(_slice(made, own.output, 0, first, last, own.line))
                replaced.add(id(own))
        if not groups and id(node) not in replaced:
            nodes.append(node)
    return replace(body, nodes=tuple(nodes), values=values) if replaced else body


def _slice(source: str, name: str, dim: int, start: int, end: int, line: str | None) -> Node:
    how = (("dim", dim), ("start", start), ("end", end), ("step", 1))
    return Node("slice", (source,), (name,), how, line)


def _groups(
    body: Graph, node: Node, users: Sequence[Node], turning: Set[str]
) -> list[tuple[int, int, list[Node]]]:
    """The columns that the loop reads, from first to last, and those that are read outside of it; none where
    the product is best left."""
    plain = all(user.op == "slice" and user.attr("step") == 1 for user in users)
    if not users or not plain or node.output in body.results:
        return []
    found: list[tuple[int, int, list[Node]]] = []
    for inside in (True, False):
        some = [user for user in users if (user.output in turning) == inside]
        if some:
            found.append((min(n.attr("start") for n in some), max(n.attr("end") for n in some), some))
    found.sort(key=lambda group: group[0])
    whole = [(start, end) for start, end, _ in found] == [(0, body.values[node.output].size)]
    apart = all(a[1] <= b[0] for a, b in pairwise(found))
    return found if apart and not whole else []
