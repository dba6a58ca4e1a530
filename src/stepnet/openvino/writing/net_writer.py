"""OpenVINO nets as they are written: layers and the outputs that hold values, and which layer an op is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stepnet.export.graph import Node, Value

from .builder import NetBuilder, Out

# The layer of each op, with the opset if it is not the first.
LAYERS = {
    "neg": "Negative", "abs": "Abs", "sign": "Sign", "relu": "ReLU", "floor": "Floor", "ceil": "Ceiling",
    "round": "Round@5", "not": "LogicalNot", "isnan": "IsNaN@10", "cast": "Convert", "exp": "Exp",
    "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan", "tanh": "Tanh",
    "sigmoid": "Sigmoid", "erf": "Erf", "sinh": "Sinh", "cosh": "Cosh", "atan": "Atan", "asin": "Asin",
    "acos": "Acos", "asinh": "Asinh@4", "acosh": "Acosh@4", "atanh": "Atanh@4",
    "hardswish": "HSwish@4", "hardsigmoid": "HSigmoid@5", "mish": "Mish@4",
    "silu": "Swish@4", "softplus": "SoftPlus@4", "gelu": "Gelu@7", "elu": "Elu", "prelu": "PReLU",
    "add": "Add", "sub": "Subtract", "mul": "Multiply", "div": "Divide", "floor_divide": "Divide",
    "maximum": "Maximum", "minimum": "Minimum", "pow": "Power", "remainder": "FloorMod", "eq": "Equal",
    "ne": "NotEqual", "lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual",
    "and": "LogicalAnd", "or": "LogicalOr", "xor": "LogicalXor", "where": "Select",
    "sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin",
    "prod": "ReduceProd", "cumsum": "CumSum@3", "topk": "TopK@11", "softmax": "SoftMax@8",
    "log_softmax": "LogSoftmax@5", "normalize": "MVN@6", "matmul": "MatMul",
    "reshape": "Reshape", "squeeze": "Squeeze", "unsqueeze": "Unsqueeze", "permute": "Transpose",
    "expand": "Broadcast@3", "tile": "Tile", "pad": "Pad", "cat": "Concat", "split": "VariadicSplit",
    "slice": "Slice@8", "take": "Gather@8", "gather": "GatherElements@6", "shape": "ShapeOf@3",
    "range": "Range@4", "nonzero": "NonZero@3", "unique": "Unique@10", "fmod": "Mod",
    "scatter": "ScatterElementsUpdate@12", "gather_nd": "GatherND@8", "scatter_nd": "ScatterNDUpdate@4",
    "bitwise_and": "BitwiseAnd@13", "bitwise_or": "BitwiseOr@13", "bitwise_xor": "BitwiseXor@13",
    "bitwise_not": "BitwiseNot@13", "bitwise_right_shift": "BitwiseRightShift@15",
    "grid_sample": "GridSample@9",
}  # fmt: skip


class NetWriter:
    """Adds the layers of a graph, or of the body of a loop, to a net.

    `results` are the layers of the results by the number of their node, `instead` the outputs that a copy
    or a result is made of in place of its operand.
    """

    def __init__(self, net: NetBuilder) -> None:
        self.net = net
        self.results: dict[int, int] = {}
        self.instead: dict[int, Out] = {}
        self._made: list[tuple[Out, ...]] = []
        self._numbers: dict[str, Out] = {}  # of nodes
        self._own: dict[str, Out] = {}

    def write(self, nodes: Iterable[Node]) -> None:
        """The layers of nodes, in order."""
        for node in nodes:
            inputs = [self.at(value) for value in node.inputs]
            if node.op == "result":
                self._result(node, self.instead.get(len(self._made), inputs[0]))
            elif len(self._made) in self.instead:
                self._made.append((self.instead[len(self._made)],))
            else:
                out = self.layers_of(node, inputs)
                self._made.append(out if isinstance(out, tuple) else (out,))

    def at(self, value: Value) -> Out:
        """The output that holds a value."""
        return self._made[value.node][value.index]

    def numbers(self, values: int | list[int]) -> Out:
        """Whole numbers, as an int64 constant; one that is there already serves."""
        out = self._own.get(repr(values)) or self._numbers.get(repr(values))
        if out is None:
            out = self._own[repr(values)] = self.net.constant(torch.tensor(values, dtype=torch.int64))
        return out

    def layer(self, op: str, inputs: list[Out], dtype: torch.dtype, **attributes: Any) -> Out:
        """A layer that stands for no node of its own, by the row of an op. Its shape is inferred."""
        kind, _, opset = LAYERS[op].partition("@")
        return self.net.layer(kind, inputs, attributes, version=f"opset{opset or 1}", outputs=[dtype])

    def _result(self, node: Node, value: Out) -> None:
        names = node.attributes["names"]
        name = f"{names[0]}/result" if names else None
        self.results[len(self._made)] = self.net.result(value, names, name=name)
        self._made.append(())

    def layers_of(self, node: Node, inputs: list[Out]) -> Out | tuple[Out, ...]:
        """The layers that an op becomes; what they give."""
        raise NotImplementedError
