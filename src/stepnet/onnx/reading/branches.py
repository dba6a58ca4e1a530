"""If: one of two graphs; or both, where each row of a compiled loop takes its own, and in what is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.errors import StepnetError
from stepnet.export.calls import unanswered
from stepnet.export.open_sizes import Sizes, plain, settled
from stepnet.file_model import decided
from stepnet.file_model.own_end import BOTH, both_run, chosen
from stepnet.watchers import instead

from .info import Info, Misfit, Run, body_of, one_value, op

if TYPE_CHECKING:
    from .graph import Graph


@op("If")
def _if(node: Info) -> Run:
    branches = {True: body_of(node, "then_branch", 0), False: body_of(node, "else_branch", 0)}

    node.read.add(0)
    ways: dict[Any, set[bool]] = {}  # that it went for the example, by what notes a model to be written

    def run(condition: Tensor | Sizes, *outer: Any) -> Sequence[Any]:
        around = dict(zip(node.outer, outer, strict=True))
        truth = condition.array.item() if isinstance(condition, Sizes) and condition.array.size == 1 else None
        if isinstance(truth, bool):
            return branches[truth].run((), around)
        which = one_value(plain(condition), "condition")
        if not both_run(which):
            way = bool(decided(which))
            if (noted := instead()) is not None:
                kept = ways.get(noted, set())
                ways.clear()
                ways[noted] = {*kept, way}
            return branches[way].run((), around)
        known = next(iter(ways.values()), set()) if instead() is not None and not BOTH.get() else set()
        if len(known) == 1 and not isinstance(truth, torch.SymBool):
            (way,) = known
            if not fits(branches[not way], around):
                return tuple(_certain(x, which, way) for x in branches[way].run((), around))
        try:
            results = [branches[way].run((), around) for way in (True, False)]
            return tuple(chosen(which, *pair) for pair in zip(*results, strict=True))
        except StepnetError:
            if BOTH.get() or instead() is None or not isinstance(truth, torch.SymBool):
                raise
            return branches[settled(truth)].run((), around)  # of two shapes, as for the example

    return run


def _certain(x: Any, which: Tensor, way: bool) -> Tensor:
    if not isinstance(x, Tensor):
        raise Misfit("a branch that can be taken alone gives no tensor", type(x).__name__)
    return torch.ops.stepnet.certain(x, which, way)


def fits(branch: Graph, around: Mapping[Any, Any]) -> bool:
    """Whether a graph runs on these sizes: one that the example does not take may be for others."""
    try:
        with unanswered():
            branch.run((), around)
    except StepnetError as error:
        return not isinstance(error.__cause__, Misfit)
    return True


def branches_alone(graph: Graph) -> bool:
    """Whether no node of a graph holds another one but branches."""
    inner = [(step.info.node.op_type, body) for step in graph.steps for body in step.info.bodies.values()]
    return all(kind == "If" and branches_alone(body) for kind, body in inner)
