"""If: one of two graphs; or both, where each row of a compiled loop takes its own, and in what is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stepnet.file_model import decided
from stepnet.file_model.own_end import both_run, chosen

from .info import Info, Run, body_of, one_value, op
from .sizes import Sizes, plain

if TYPE_CHECKING:
    from .graph import Graph


@op("If")
def _if(node: Info) -> Run:
    branches = {True: body_of(node, "then_branch", 0), False: body_of(node, "else_branch", 0)}

    node.read.add(0)

    def run(condition: Tensor | Sizes, *outer: Any) -> Sequence[Any]:
        around = dict(zip(node.outer, outer, strict=True))
        if isinstance(condition, Sizes) and condition.array.dtype == bool and condition.array.size == 1:
            return branches[bool(condition.array.item())].run((), around)
        which = one_value(plain(condition), "condition")
        if not both_run(which):
            return branches[bool(decided(which))].run((), around)
        results = zip(branches[True].run((), around), branches[False].run((), around), strict=True)
        return tuple(chosen(which, *pair) for pair in results)

    return run


def branches_alone(graph: Graph) -> bool:
    """Whether no node of a graph holds another one but branches."""
    inner = [(step.info.node.op_type, body) for step in graph.steps for body in step.info.bodies.values()]
    return all(kind == "If" and branches_alone(body) for kind, body in inner)
