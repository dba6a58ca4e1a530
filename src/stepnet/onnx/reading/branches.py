"""If: one of two graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import StepnetError
from stepnet.export.calls import unanswered
from stepnet.export.open_sizes import Sizes, plain, plain_but_open, settled
from stepnet.file_model.body_ended_loops import BOTH
from stepnet.file_model.branching import Branching, Reading, Results
from stepnet.watchers import instead

from .graph import Graph
from .info import Info, Misfit, Run, body_of, one_value, op


def reading(body: Graph, around: Mapping[Any, Any]) -> Reading:
    """A body with what it captures."""
    return Reading(body, [around[value] for value in body.captured], _run)


def _run(body: Graph, captured: Sequence[Any], *values: Tensor) -> tuple[Any, ...]:
    return body.run(values, dict(zip(body.captured, captured, strict=True)))


@op("If")
def _if(node: Info) -> Run:
    branches = {True: body_of(node, "then_branch", 0), False: body_of(node, "else_branch", 0)}

    _check_results(node, branches)
    node.read.update(range(1 + len(node.outer)))
    branching = Branching(unanswered)

    def run(condition: Tensor | Sizes, *outer: Any) -> Sequence[Any]:
        around = {value: plain_but_open(v) for value, v in zip(node.outer, outer, strict=True)}
        results = _of_both(branches, around)

        def alone() -> Results:
            return _of_both(branches, {value: plain(v) for value, v in around.items()})

        truth = condition.array.item() if isinstance(condition, Sizes) and condition.array.size == 1 else None
        if isinstance(truth, bool):
            return results(truth)
        try:
            return branching.run(one_value(plain(condition), "condition"), results, alone)
        except StepnetError:
            if BOTH.get() or instead() is None or not isinstance(truth, torch.SymBool):
                raise
            return results(settled(truth))  # of two shapes, as for the example

    return run


def _of_both(branches: Mapping[bool, Graph], around: Mapping[Any, Any]) -> Results:
    bodies = {way: reading(body, around) for way, body in branches.items()}
    return lambda way: bodies[way]()


def _check_results(node: Info, branches: Mapping[bool, Graph]) -> None:
    """Hold what the graphs give against each other: as many values as the node, of the same types."""
    kinds = []
    for way, body in branches.items():
        name, count = "then_branch" if way else "else_branch", len(body.outputs)
        if count != node.count:
            raise Misfit(f"the graph '{name}' gives another number of values", count, node.count)
        kinds.append([value.dtype for value in body.outputs])
    for k, (one, other) in enumerate(zip(*kinds, strict=True)):
        if None not in (one, other) and one != other:
            got = f"{one} and {other} for output {k}"
            raise Misfit("its graphs give values of different types", got, "one type")


def branches_alone(graph: Graph) -> bool:
    """Whether no node of a graph holds another one but branches."""
    inner = [(step.info.node.op_type, body) for step in graph.steps for body in step.info.bodies.values()]
    return all(kind == "If" and branches_alone(body) for kind, body in inner)
