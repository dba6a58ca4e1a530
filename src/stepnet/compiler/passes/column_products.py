"""Products of which some columns are read alone: by those columns of the matrix.

    d = g W; dh = d[64:]                  ->    dh = g W[:, 64:]
    d = g W; dx = d[:64]; dh = d[64:]     ->    dx = g W[:, :64]; dh = g W[:, 64:]

Such is the gradient of `cat([x, h]) @ W`, where x wants none, and where it does. The second only of large
matrices: less of one is read at each step, and dx is made on all rows.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from stepnet.ir.graph import Graph, Node
from stepnet.ir.plan import Carry

from .early_columns import is_large
from .fission import depths, is_product
from .new_values import further, sliced


def without_idle_columns(body: Graph, carries: Sequence[Carry]) -> Graph:
    """A body whose products make no columns before the first or after the last that is read, and whose large
    ones make in the loop those alone that another step waits for."""
    users = body.users()
    large = any(is_large(body, node) for node in body.nodes)
    turning = depths(body, carries)[0] if large else set[str]()
    values, nodes, replaced = dict(body.values), list[Node](), set[int]()
    for node in body.nodes:
        spans = _spans(body, node, users[node.output], turning) if is_product(body, node) else []
        if not spans and id(node) not in replaced:
            nodes.append(node)
        for start, end, slices in spans:
            left, matrix = node.inputs
            shape = (values[matrix].shape[0], end - start)
            part = further(values, f"{matrix}_columns{start}", values[matrix], shape=shape)
            made = further(values, f"{node.output}_columns{start}", values[node.output], shape=shape[1:])
            nodes.append(sliced(matrix, part, 1, start, end, node.line))
            nodes.append(replace(node, inputs=(left, part), outputs=(made,)))
            for own in slices:
                first, last = own.attr("start") - start, own.attr("end") - start
                nodes.append(sliced(made, own.output, 0, first, last, own.line))
                replaced.add(id(own))
    return replace(body, nodes=tuple(nodes), values=values) if replaced else body


def _spans(
    body: Graph, node: Node, users: Sequence[Node], turning: Set[str]
) -> list[tuple[int, int, list[Node]]]:
    """The columns that are read together, and by what; none where the product stays as it is."""
    plain = all(user.op == "slice" and user.attr("step") == 1 for user in users)
    if not users or not plain or node.output in body.results:
        return []
    in_loop = [user for user in users if user.output in turning]
    beside = [user for user in users if user.output not in turning]
    together = [in_loop, *([user] for user in beside)] if in_loop and is_large(body, node) else [[*users]]
    spans = [
        (min(user.attr("start") for user in some), max(user.attr("end") for user in some), some)
        for some in together
    ]
    return [] if spans[0][:2] == (0, body.values[node.output].size) else spans
