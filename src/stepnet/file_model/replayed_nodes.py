"""A node of a file that is one run of a plan, called as that run: nothing between is asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from stepnet.data.modes import nothing_around
from stepnet.data.tensor_guards import alike
from stepnet.errors import Unsupported
from stepnet.executors.registry import tried
from stepnet.executors.setting import check_backend
from stepnet.iterator.replay import Noting
from stepnet.watchers import watching

Node = Callable[[Sequence[Any]], Sequence[Any]]


class Ran(Protocol):
    """What is told of a loop that it ran by its plan, and says whether it did last."""

    compiled: bool

    def by_plan(self) -> None: ...


def replayed(
    node: Node, noting: Noting, arguments: Sequence[Any], results: Sequence[Any], reports: Sequence[Ran],
    always: Sequence[Tensor],
) -> Node:  # fmt: skip
    """A node that no number of its inputs steers as the run of the plan that it came to; itself where it is
    more than that. For calls of one kind (see `specialized_graph`).

    Args:
        node: the node.
        noting: what noted its run.
        arguments, results: of that.
        reports: of its loops.
        always: those arguments that are the same in all calls.
    """
    places = [k for k, value in enumerate(arguments) if isinstance(value, Tensor)]
    fed = [arguments[k] for k in places]
    named = {str(k): value for k, value in enumerate(results)}
    others = {v.untyped_storage().data_ptr() for v in fed if not any(v is own for own in always)}
    replay = noting.replay(fed, named, {v.untyped_storage().data_ptr() for v in always} - others)
    by_plan = all(report.compiled for report in reports)  # the plain loop may run one of a loop inside
    if replay is None or not by_plan or not nothing_around():
        return node
    same, executors = alike(fed), tried(check_backend(None))

    def run(arguments: Sequence[Any]) -> Sequence[Any]:
        fed = [arguments[k] for k in places]
        if same(*fed) and executors is tried(check_backend(None)) and watching() is None and nothing_around():
            try:
                found = replay.run(fed)
            except Unsupported:  # the node says what comes of it
                found = None
            if found is not None:
                for report in reports:
                    report.by_plan()
                return [*found.values()]
        return node(arguments)

    return run
