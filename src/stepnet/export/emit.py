"""Short ways to add nodes to a graph: shapes by pattern, parts by axis, ops that are made of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .composed_ops import MADE_OF
from .graph import Value
from .nodes import I64, Nodes

END = 2**63 - 1  # of an axis, whatever its size

_OF_REALS = {"floor", "ceil", "round", "trunc", "relu"}


class Emit(Nodes):
    """Adds nodes to one graph, some of them at once."""

    def pointwise(self, op: str, *operands: Value) -> Value:
        """An op element by element, also one that is made of others."""
        dtype = self.graph.dtype(operands[0])
        if not dtype.is_floating_point and op in _OF_REALS:  # of which files have these alone
            x = operands[0]
            return self.call("maximum", x, self.number(0, dtype)) if op == "relu" else x
        made = MADE_OF.get(op)
        return self.call(op, *operands) if made is None else made(self, *operands)

    def floored(self, x: Value, y: Value) -> Value:
        """x / y rounded down; what is left over is taken off first, as torch does it."""
        dtype = self.graph.dtype(x)
        if not dtype.is_floating_point:
            return self.call("floor_divide", self.call("sub", x, self.call("remainder", x, y)), y)
        zero, rest = self.number(0.0, dtype), self.call("fmod", x, y)
        signs = self.call("xor", self.call("lt", rest, zero), self.call("lt", y, zero))
        below = self.cast(self.call("and", self.call("ne", rest, zero), signs), dtype)
        whole = self.call("round", self.call("sub", self.call("div", self.call("sub", x, rest), y), below))
        return self.call("where", self.call("eq", y, zero), self.call("div", x, y), whole)

    def truncated(self, x: Value, y: Value) -> Value:
        """x / y rounded towards zero."""
        if self.graph.dtype(x).is_floating_point:
            return self.pointwise("trunc", self.call("div", x, y))
        return self.call("floor_divide", self.call("sub", x, self.call("fmod", x, y)), y)

    def ints(self, values: Sequence[int]) -> Value:
        """A list of whole numbers, as an int64 constant."""
        key = tuple(values)
        if key not in self._numbers:
            self._numbers[key] = self.graph.constant(torch.tensor(list(values), dtype=I64))
        return self._numbers[key]

    def scalar(self, value: int) -> Value:
        """An int64 scalar: an axis or an index."""
        return self.number(int(value), I64)

    def tensor(self, value: Tensor) -> Value:
        """A constant tensor; the same tensor is the same node."""
        if id(value) not in self._tensors:
            self._tensors[id(value)] = (value, self.graph.constant(value))
        return self._tensors[id(value)][1]

    def reshape(self, x: Value, pattern: Sequence[int]) -> Value:
        """Reshape; 0 keeps a dimension, -1 is what is left."""
        return self.call("reshape", x, self.ints(pattern), zero_keeps=True)

    def reshape_to(self, x: Value, shape: Value) -> Value:
        """Reshape to a shape that the graph computes."""
        return self.call("reshape", x, shape, zero_keeps=False)

    def squeeze(self, x: Value, *axes: int) -> Value:
        """Drop dimensions of size 1."""
        return self.call("squeeze", x, self.ints(axes))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Add dimensions of size 1; `axes` are those of the result."""
        return self.call("unsqueeze", x, self.ints(axes))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Permute dimensions."""
        if list(order) == list(range(len(order))):
            return x
        return self.call("permute", x, self.ints(order))

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Join along an axis."""
        return parts[0] if len(parts) == 1 else self.call("cat", *parts, axis=axis)

    def slice(self, x: Value, axis: int, start: int | Value, end: int | Value = END, step: int = 1) -> Value:
        """Part of an axis, as Python slices."""
        bounds = [v if isinstance(v, Value) else self.ints([v]) for v in (start, end)]
        return self.call("slice", x, *bounds, self.ints([step]), self.ints([axis]))

    def take(self, x: Value, index: Value, axis: int, *, batch_dims: int = 0) -> Value:
        """Entries along an axis; of each entry of the first `batch_dims` dimensions, its own."""
        return self.call("take", x, index, self.scalar(axis), batch_dims=batch_dims)

    def shape(self, x: Value) -> Value:
        """The shape, as an int64 list."""
        return self.call("shape", x)

    def size(self, x: Value, axis: int) -> Value:
        """The size of an axis, as an int64 list of one."""
        return self.take(self.shape(x), self.ints([axis]), 0)

    def range(self, end: Value, start: Value | None = None, step: Value | None = None) -> Value:
        """Whole numbers up to `end`, from 0 on by 1."""
        return self.call("range", start or self.scalar(0), end, step or self.scalar(1))

    def split(self, x: Value, axis: int, sizes: Value, count: int) -> tuple[Value, ...]:
        """Parts of an axis, one after the other; `sizes` is an int64 list."""
        if count == 1:
            return (x,)
        inputs = (x, self.scalar(axis), sizes)
        return self.graph.node("split", inputs, [self.graph.dtype(x)] * count)

    def top(self, x: Value, count: int | Value, axis: int, mode: str) -> tuple[Value, ...]:
        """The largest (`max`) or smallest (`min`) entries along an axis, in order, and where they are."""
        attributes = {"axis": axis, "mode": mode}
        many = count if isinstance(count, Value) else self.scalar(count)
        return self.graph.node("topk", (x, many), (self.graph.dtype(x), I64), attributes)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """The same numbers in another dtype; truth is what differs from 0."""
        source = self.graph.dtype(x)
        if dtype == source:
            return x
        if dtype == torch.bool:
            return self.call("ne", x, self.number(0, source))
        if source.is_floating_point and not dtype.is_floating_point:  # a runtime may round; torch cuts off
            x = self.pointwise("trunc", x)
        return self.call("cast", x, dtype=dtype)

    def broadcast(self, x: Value, shape: Value) -> Value:
        """x repeated to a shape, or to what both together have."""
        return self.call("expand", x, shape)

    def copied(self, x: Value) -> Value:
        """The same values in memory of their own, if x is a parameter: a runtime that hands states on one
        after the other would else read a new one for an old one."""
        return self.call("copy", x) if self.graph.nodes[x.node].op == "parameter" else x
