"""If: one of two graphs; or both, where each row of a compiled loop takes its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stepnet.file_model import decided
from stepnet.file_model.own_end import BOTH, chosen

from .info import Info, Run, body_of, one_value, op

if TYPE_CHECKING:
    from .graph import Graph


@op("If")
def _if(node: Info) -> Run:
    branches = {True: body_of(node, "then_branch", 0), False: body_of(node, "else_branch", 0)}

    def run(condition: Tensor, *outer: Any) -> Sequence[Any]:
        around = dict(zip(node.outer, outer, strict=True))
        if not BOTH.get():
            return branches[bool(decided(one_value(condition, "condition")))].run((), around)
        which = one_value(condition, "condition")
        results = zip(branches[True].run((), around), branches[False].run((), around), strict=True)
        return tuple(chosen(which, *pair) for pair in results)

    return run


def branches_alone(graph: Graph) -> bool:
    """Whether no node of a graph holds another one but branches."""
    inner = [(step.info.node.op_type, body) for step in graph.steps for body in step.info.bodies.values()]
    return all(kind == "If" and branches_alone(body) for kind, body in inner)
