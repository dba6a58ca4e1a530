"""Operands of a loop's body in the order that costs no copy.

OpenVINO (2026.4, CPU) may write the result of an elementwise layer over its first operand. That does no harm
to a value that was made from the state; an invariant or a slice would be copied first (see `shared_memory`).
"""

from __future__ import annotations

from dataclasses import replace

from stepnet.export.graph import LoopOp, Node

_EITHER_WAY = frozenset({"add", "mul", "maximum", "minimum"})


def state_first(loop: LoopOp) -> list[Node]:
    """The nodes of a loop's body, what depends on the state first where the order is free."""
    late = {parameter.node for _, parameter in loop.back_edges}
    nodes: list[Node] = []
    for number, node in enumerate(loop.body.nodes):
        depends = [value.node in late for value in node.inputs]
        if any(depends):
            late.add(number)
        if node.op in _EITHER_WAY and depends == [False, True]:
            node = replace(node, inputs=node.inputs[::-1])
        nodes.append(node)
    return nodes
