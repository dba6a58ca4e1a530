"""Short ways to add layers to a net: constants made once, versions known, shapes by pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .builder import NetBuilder, Out

_VERSIONS = {
    "Broadcast": "opset3", "CumSum": "opset3", "GRUCell": "opset3", "Gather": "opset8",
    "GatherElements": "opset6", "Gelu": "opset7", "HSigmoid": "opset5", "HSwish": "opset4",
    "IsNaN": "opset10", "LSTMCell": "opset4", "LogSoftmax": "opset5", "MVN": "opset6",
    "Mish": "opset4", "Range": "opset4", "ReduceL2": "opset4", "Round": "opset5", "ShapeOf": "opset3",
    "Slice": "opset8",
    "SoftMax": "opset8", "SoftPlus": "opset4", "Swish": "opset4", "TopK": "opset11", "IsFinite": "opset10",
}  # fmt: skip

I64 = torch.int64
_TRUTH = frozenset(
    {"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr",
     "LogicalNot", "LogicalXor", "IsNaN"}
)  # fmt: skip


class Emit:
    """Adds layers to one net. A constant that is asked for twice is one layer."""

    def __init__(self, net: NetBuilder) -> None:
        self.net = net
        self._numbers: dict[object, Out] = {}
        self._tensors: dict[int, tuple[Tensor, Out]] = {}

    def call(
        self, kind: str, *inputs: Out, outputs: int = 1, name: str | None = None, **attributes: Any
    ) -> Any:
        """A layer of a type, in the version that OpenVINO writes."""
        made: Any = [self._dtype(kind, inputs, attributes)] * outputs
        if kind == "TopK":
            made = [self.dtype(inputs[0]), I64]
        version = _VERSIONS.get(kind, "opset1")
        if any(dtype is None for dtype in made):
            made = outputs
        return self.net.layer(kind, inputs, attributes, version=version, outputs=made, name=name)

    def dtype(self, x: Out) -> torch.dtype | None:
        """What is known of the dtype of an output."""
        kind = self.net.layers[x.layer].outputs[x.index].type
        return None if kind is None else kind.dtype

    def _dtype(self, kind: str, inputs: Sequence[Out], attributes: dict[str, Any]) -> torch.dtype | None:
        if kind in _TRUTH:
            return torch.bool
        if kind in ("ShapeOf", "Range"):
            return I64
        if kind == "Convert":
            return attributes["destination_type"]
        return self.dtype(inputs[1 if kind == "Select" else 0])

    def number(self, value: float, dtype: torch.dtype) -> Out:
        """A scalar constant."""
        key = (repr(value), dtype)
        if key not in self._numbers:
            self._numbers[key] = self.net.constant(torch.tensor(value, dtype=dtype))
        return self._numbers[key]

    def ints(self, values: Sequence[int]) -> Out:
        """A list of whole numbers, as an int64 constant."""
        key = tuple(values)
        if key not in self._numbers:
            self._numbers[key] = self.net.constant(torch.tensor(list(values), dtype=I64))
        return self._numbers[key]

    def scalar(self, value: int) -> Out:
        """An int64 scalar: an axis or an index."""
        return self.number(int(value), I64)

    def tensor(self, value: Tensor, name: str | None = None) -> Out:
        """A constant tensor; the same tensor is the same layer."""
        if id(value) not in self._tensors:
            self._tensors[id(value)] = (value, self.net.constant(value.detach(), name))
        return self._tensors[id(value)][1]

    def reshape(self, x: Out, pattern: Sequence[int]) -> Out:
        """Reshape; 0 keeps a dimension, -1 is what is left."""
        return self.call("Reshape", x, self.ints(pattern), special_zero=True)

    def reshape_to(self, x: Out, shape: Out) -> Out:
        """Reshape to a shape that the net computes."""
        return self.call("Reshape", x, shape, special_zero=False)

    def squeeze(self, x: Out, *axes: int) -> Out:
        """Drop dimensions of size 1."""
        return self.call("Squeeze", x, self.ints(axes))

    def unsqueeze(self, x: Out, *axes: int) -> Out:
        """Add dimensions of size 1; `axes` are those of the result."""
        return self.call("Unsqueeze", x, self.ints(axes))

    def transpose(self, x: Out, order: Sequence[int]) -> Out:
        """Permute dimensions."""
        if list(order) == list(range(len(order))):
            return x
        return self.call("Transpose", x, self.ints(order))

    def concat(self, parts: Sequence[Out], axis: int) -> Out:
        """Join along an axis."""
        return parts[0] if len(parts) == 1 else self.call("Concat", *parts, axis=axis)

    def slice(self, x: Out, axis: int, start: int, end: int, step: int = 1) -> Out:
        """Part of an axis, as Python slices; an end of 2**63 - 1 is the end of the axis."""
        return self.call(
            "Slice", x, self.ints([start]), self.ints([end]), self.ints([step]), self.ints([axis])
        )

    def gather(self, x: Out, index: Out, axis: int) -> Out:
        """Entries along an axis."""
        return self.call("Gather", x, index, self.scalar(axis), batch_dims=0)

    def shape(self, x: Out) -> Out:
        """The shape, as an int64 list."""
        return self.call("ShapeOf", x, output_type="i64")

    def size(self, x: Out, axis: int) -> Out:
        """The size of an axis, as an int64 list of one."""
        return self.gather(self.shape(x), self.ints([axis]), 0)

    def split(self, x: Out, axis: int, sizes: Sequence[int]) -> tuple[Out, ...]:
        """Parts of an axis, one after the other."""
        if len(sizes) == 1:
            return (x,)
        out = self.call("VariadicSplit", x, self.scalar(axis), self.ints(sizes), outputs=len(sizes))
        return tuple(out)

    def cast(self, x: Out, dtype: torch.dtype, source: torch.dtype) -> Out:
        """The same numbers in another dtype; truth is what differs from 0."""
        if dtype == source:
            return x
        if dtype == torch.bool:
            return self.call("NotEqual", x, self.number(0, source))
        if source.is_floating_point and not dtype.is_floating_point:  # OpenVINO may round; torch cuts off
            x = self.trunc(x, source)
        return self.call("Convert", x, destination_type=dtype)

    def trunc(self, x: Out, dtype: torch.dtype) -> Out:
        """Rounded towards zero."""
        return self.call("Multiply", self.call("Sign", x), self.call("Floor", self.call("Abs", x)))

    def broadcast(self, x: Out, shape: Out) -> Out:
        """x repeated to a shape, or to what both together have."""
        return self.call("Broadcast", x, shape, mode="bidirectional")

    def apart(self, x: Out, dtype: torch.dtype) -> Out:
        """The same values in memory of their own. A Result that is a Parameter shares its memory with the
        value of the next step, and OpenVINO then reads one for the other."""
        if self.net.layers[x.layer].type != "Parameter":
            return x
        if dtype == torch.bool:
            return self.call("LogicalOr", x, x)
        return self.call("Maximum", x, x)
