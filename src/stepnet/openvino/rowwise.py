"""A body read from a file as one that runs on any number of rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .graph import Node
from .hoisting import Hoisted
from .layers import elementwise

# Layers that take one row of a constant whose rows are all alike for any number of them.
_ELEMENT_BY_ELEMENT = frozenset(row.type.lower() for row in elementwise.ROWS) - {"convert"}


class BodyRows:
    """A body on any number of rows, also where its Reshapes and constants are made for the batch's size."""

    def __init__(self, body: Hoisted, batch: int, axis: int, alike: frozenset[int]) -> None:
        self.alike = tuple(sorted(alike))  # slots of constants of which one row is taken
        self.tensors = body.constants()
        self.batch, self.axis = batch, axis
        self.body = body.hidden

    def __call__(self, *values: Tensor) -> tuple[Any, ...]:
        return self.body(*values, fit=self._fit if self.batch else None)

    def _fit(self, node: Node, arguments: list[Any]) -> None:
        if node.layer.type.lower() == "reshape" and 1 in node.fixed:
            arguments[1] = rows_pattern(arguments[1], self.batch, self.axis, arguments[0].dim())
        if node.layer.type.lower() in _ELEMENT_BY_ELEMENT:
            for i, slot in enumerate(node.inputs):
                if slot in self.alike:
                    arguments[i] = arguments[i][:1]


class Adapter:
    """What `RowLoop` asks of a body: see there."""

    def __init__(self, body: Hoisted) -> None:
        self.body = body
        fixed = [n.fixed[1] for n in body.nodes if n.layer.type.lower() == "reshape" and 1 in n.fixed]
        self.patterns = [p for p in fixed if isinstance(p, list) and -1 not in p]
        own = [n for n in body.nodes if n.layer.type.lower() in _ELEMENT_BY_ELEMENT]
        self.read = {slot for node in own for slot in node.inputs}

    def __call__(self, batch: int, axis: int) -> tuple[BodyRows, bool]:
        alike = frozenset(
            slot
            for slot, value in self.body.constants_by_slot().items()
            if slot in self.read and value.dim() > 1 and len(value) == batch > 1 and _rows_alike(value)
        )
        exact = not alike and not any(batch in pattern[:2] for pattern in self.patterns)
        return BodyRows(self.body, 0 if exact else batch, axis, alike), exact


def _rows_alike(value: Tensor) -> bool:
    """Whether all rows of a constant are one row; asked at every call, for a constant may be changed."""
    return not value.requires_grad and bool((value == value[:1]).all())


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
