"""Products of which some columns are read alone: by those columns of the matrix.

    d = g W; dh = d[64:]    ->    dh = g W[:, 64:]

Such is the gradient of `cat([x, h]) @ W` where x wants none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepnet.ir.graph import Graph, Node

from .fission import is_product
from .new_values import further


def without_idle_columns(body: Graph) -> Graph:
    """A body whose products make no columns before the first or after the last that is read."""
    users = body.users()
    values, nodes, replaced = dict(body.values), list[Node](), set[int]()
    for node in body.nodes:
        slices = users[node.output] if is_product(body, node) else []
        span = _read(body, node, slices)
        if span is None:
            if id(node) not in replaced:
                nodes.append(node)
            continue
        (start, end), (left, matrix) = span, node.inputs
        shape = (values[matrix].shape[0], end - start)
        part = further(values, f"{matrix}_columns{start}", values[matrix], shape=shape)
        made = further(values, f"{node.output}_columns{start}", values[node.output], shape=shape[1:])
        nodes.append(_slice(matrix, part, 1, start, end, node.line))
        nodes.append(replace(node, inputs=(left, part), outputs=(made,)))
        for own in slices:
            first, last = own.attr("start") - start, own.attr("end") - start
            nodes.append(_slice(made, own.output, 0, first, last, own.line))
            replaced.add(id(own))
    return replace(body, nodes=tuple(nodes), values=values) if replaced else body


def _slice(source: str, name: str, dim: int, start: int, end: int, line: str | None) -> Node:
    how = (("dim", dim), ("start", start), ("end", end), ("step", 1))
    return Node("slice", (source,), (name,), how, line)


def _read(body: Graph, node: Node, users: Sequence[Node]) -> tuple[int, int] | None:
    """The first and the last column that is read; None where all are, or more than slices."""
    plain = all(user.op == "slice" and user.attr("step") == 1 for user in users)
    if not users or not plain or node.output in body.results:
        return None
    span = min(user.attr("start") for user in users), max(user.attr("end") for user in users)
    return None if span == (0, body.values[node.output].size) else span
