"""Nodes added to a graph one by one: constants made once, dtypes known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import Graph, Value

I64 = torch.int64
_TRUTH = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "isnan"])


class Nodes:
    """Adds nodes to one graph. A constant that is asked for twice is one node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._numbers: dict[object, Value] = {}
        self._tensors: dict[int, tuple[Tensor, Value]] = {}

    def call(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        """An op of one output."""
        (out,) = self.graph.node(op, inputs, [self._dtype(op, inputs, attributes)], attributes)
        return out

    def _dtype(self, op: str, inputs: Sequence[Value], attributes: dict[str, Any]) -> torch.dtype:
        if op in _TRUTH:
            return torch.bool
        if op in ("shape", "range", "nonzero"):
            return I64
        if op == "cast":
            return attributes["dtype"]
        return self.graph.dtype(inputs[op == "where"])

    def number(self, value: float, dtype: torch.dtype) -> Value:
        """A scalar constant."""
        key = (repr(value), dtype)
        if key not in self._numbers:
            self._numbers[key] = self.graph.constant(torch.tensor(value, dtype=dtype))
        return self._numbers[key]
