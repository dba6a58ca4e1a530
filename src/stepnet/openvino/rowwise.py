"""A body read from a file as one that runs on any number of rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .graph import Graph


class GraphRows:
    """A graph whose Reshapes take as many rows as there are, where they say the size of the batch.

    The graph itself hides behind a weak reference, so that what a call reaches is short: `serial` says which
    graph, and `tensors` are its constants.
    """

    def __init__(self, graph: Graph, batch: int, axis: int) -> None:
        self.serial = graph.serial
        self.tensors = list(graph.tensors())
        self.batch, self.axis = batch, axis
        self._graph = weakref.ref(graph)

    def __call__(self, *values: Tensor) -> list[Tensor]:
        graph = self._graph()
        assert graph is not None
        slots = graph.start(values)
        for node in graph.nodes:
            arguments = node.arguments(slots)
            if self.batch and node.layer.type.lower() == "reshape" and 1 in node.fixed:
                arguments[1] = rows_pattern(arguments[1], self.batch, self.axis, arguments[0].dim())
            for slot, result in zip(node.outputs, node.call(arguments), strict=False):
                slots[slot] = result
        return [slots[slot] for slot in graph.result_slots]


def adapter(graph: Graph) -> Callable[[int, int], tuple[GraphRows, bool]]:
    """What `RowLoop` asks of a graph: see there."""
    fixed = [n.fixed[1] for n in graph.nodes if n.layer.type.lower() == "reshape" and 1 in n.fixed]
    patterns = [p for p in fixed if isinstance(p, list) and -1 not in p]

    def adapt(batch: int, axis: int) -> tuple[GraphRows, bool]:
        exact = not any(batch in pattern[:2] for pattern in patterns)
        return GraphRows(graph, 0 if exact else batch, axis), exact

    return adapt


def rows_pattern(pattern: list[int], batch: int, axis: int, rank: int) -> list[int]:
    """A Reshape's pattern with the batch size it was written for replaced by "as many as there are".

    The batch is the first dimension; in a loop along axis 0 it follows that axis.

    >>> rows_pattern([2, 512], 2, 1, 3), rows_pattern([1, 2, 256], 2, 0, 2)
    ([-1, 512], [1, -1, 256])
    """
    if not isinstance(pattern, list) or -1 in pattern or not pattern:
        return pattern
    at = 0
    if axis == 0 and len(pattern) > 1 and pattern[0] == 1 and (batch != 1 or len(pattern) > rank):
        at = 1
    return [-1 if i == at and d == batch else d for i, d in enumerate(pattern)]
