"""If: one of two graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import StepnetError
from stepnet.export.calls import unanswered
from stepnet.export.open_sizes import Sizes, plain, settled
from stepnet.file_model.branching import Branching, Reading
from stepnet.file_model.own_end import BOTH
from stepnet.watchers import instead

from .graph import Graph
from .info import Info, Run, body_of, one_value, op


def reading(body: Graph, around: Mapping[Any, Any]) -> Reading:
    """A body with what it captures."""
    return Reading(body, [around[value] for value in body.captured], _run)


def _run(body: Graph, captured: Sequence[Any], *values: Tensor) -> tuple[Any, ...]:
    return body.run(values, dict(zip(body.captured, captured, strict=True)))


@op("If")
def _if(node: Info) -> Run:
    branches = {True: body_of(node, "then_branch", 0), False: body_of(node, "else_branch", 0)}

    node.read.add(0)
    branching = Branching(unanswered)

    def run(condition: Tensor | Sizes, *outer: Any) -> Sequence[Any]:
        around = dict(zip(node.outer, outer, strict=True))

        bodies = {way: reading(body, around) for way, body in branches.items()}

        def results(way: bool) -> Sequence[Any]:
            return bodies[way]()

        truth = condition.array.item() if isinstance(condition, Sizes) and condition.array.size == 1 else None
        if isinstance(truth, bool):
            return results(truth)
        try:
            return branching.run(one_value(plain(condition), "condition"), results)
        except StepnetError:
            if BOTH.get() or instead() is None or not isinstance(truth, torch.SymBool):
                raise
            return results(settled(truth))  # of two shapes, as for the example

    return run


def branches_alone(graph: Graph) -> bool:
    """Whether no node of a graph holds another one but branches."""
    inner = [(step.info.node.op_type, body) for step in graph.steps for body in step.info.bodies.values()]
    return all(kind == "If" and branches_alone(body) for kind, body in inner)
