"""Graphs as OpenVINO nets: a layer for each op, by a table with one row per op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from stepnet.compiler.torch_names import RARE
from stepnet.export.graph import Cell, Graph, LoopOp, Node, Target, Value
from stepnet.export.made_of import MADE_OF

from .builder import NetBuilder, Out
from .loop_form import cell_layers, loop_layers

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
    "range": "Range@4", "nonzero": "NonZero@3", "fmod": "Mod", "scatter": "ScatterElementsUpdate@12",
    "gather_nd": "GatherND@8", "scatter_nd": "ScatterNDUpdate@4", "bitwise_and": "BitwiseAnd@13",
    "bitwise_or": "BitwiseOr@13", "bitwise_xor": "BitwiseXor@13", "bitwise_not": "BitwiseNot@13",
    "bitwise_right_shift": "BitwiseRightShift@15",
}  # fmt: skip

OPENVINO = Target(
    name="OpenVINO",
    unit="layer",
    ops="ops that IR has",
    nested="a TensorIterator inside a TensorIterator, which OpenVINO refuses",
    refused=dict.fromkeys(
        (*RARE.keys() - LAYERS.keys() - MADE_OF.keys(), "trigamma"),
        "IR has no layer for it",
    ),
    takes=lambda cell: not cell.ragged,  # a mask in the body undoes the fusion that the layer is for
    idle=False,
)

_FEW = 16  # whole numbers: an axis, a shape
_GELU = {"none": "ERF", "tanh": "TANH"}

# The attributes of a layer from those of its op, where they are not the same.
_ATTRIBUTES: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "round": lambda a: {"mode": "half_to_even"},
    "cast": lambda a: {"destination_type": a["dtype"]},
    "gelu": lambda a: {"approximation_mode": _GELU[a["approximate"]]},
    "floor_divide": lambda a: {"m_pythondiv": True},
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod"), lambda a: {"keep_dims": a["keepdim"]}),
    "topk": lambda a: {**a, "sort": "value", "index_element_type": "i64", "stable": True},
    "normalize": lambda a: {"normalize_variance": True, "eps": a["eps"], "eps_mode": "INSIDE_SQRT"},
    "matmul": lambda a: {"transpose_a": False, "transpose_b": bool(a["transposed"])},
    "reshape": lambda a: {"special_zero": a["zero_keeps"]},
    "expand": lambda a: {"mode": "bidirectional"},
    "pad": lambda a: {"pad_mode": "constant"},
    "scatter": lambda a: {"reduction": "sum" if a["add"] else "none", "use_init_val": True},
    **dict.fromkeys(("shape", "range", "nonzero"), lambda a: {"output_type": "i64"}),
}


def net_of(graph: Graph) -> NetBuilder:
    """The net of a graph.

    >>> graph = Graph("double", OPENVINO)
    >>> x = graph.parameter("x", torch.float32, (-1, 3))
    >>> _ = graph.result(*graph.node("add", [x, x], [torch.float32]), ("y",))
    >>> [layer.type for layer in net_of(graph).net().layers.values()]
    ['Parameter', 'Add', 'Result']
    """
    net = NetBuilder(graph.name)
    NetWriter(net).write(graph.nodes)
    return net


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
                out = self._layers(node, inputs)
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

    def layer(self, op: str, inputs: list[Out], **attributes: Any) -> Out:
        """A layer that stands for no node of its own, by the row of an op. Types and shapes are inferred."""
        kind, _, opset = LAYERS[op].partition("@")
        return self.net.layer(kind, inputs, attributes, version=f"opset{opset or 1}")

    def _result(self, node: Node, value: Out) -> None:
        names = node.attributes["names"]
        name = f"{names[0]}/result" if names else None
        self.results[len(self._made)] = self.net.result(value, names, name=name)
        self._made.append(())

    def _layers(self, node: Node, inputs: list[Out]) -> Out | tuple[Out, ...]:
        content = node.content
        if isinstance(content, LoopOp):
            return loop_layers(self, content, node)
        if isinstance(content, Cell):
            return cell_layers(self, content, inputs, node)
        if isinstance(content, torch.Tensor):
            if content.dtype != torch.int64 or content.numel() > _FEW:
                return self.net.constant(content)
            key = repr(content.tolist())
            if key in self._own:
                return self._own[key]
            out = self.net.constant(content)
            self._numbers.setdefault(key, out)
            return out
        if node.op == "parameter":
            return self.net.parameter(str(node.name), node.dtypes[0], node.attributes["shape"])
        if node.op == "copy":  # the larger of a value and itself, which OpenVINO does not take for the same
            kind = "LogicalOr" if node.dtypes[0] == torch.bool else "Maximum"
            return self.net.layer(kind, [*inputs, *inputs], outputs=node.dtypes)
        if node.op == "conv":
            return self._conv(node, *inputs)
        if node.op in ("max_pool", "mean_pool"):
            return self._pool(node, *inputs)
        if node.op == "scatter":
            inputs = [*inputs, self.numbers(node.attributes["axis"])]
        attributes = _ATTRIBUTES.get(node.op, dict)(node.attributes)
        kind, _, opset = LAYERS[node.op].partition("@")
        return self.net.layer(kind, inputs, attributes, version=f"opset{opset or 1}", outputs=node.dtypes)

    def _pool(self, node: Node, x: Out) -> Any:
        said = node.attributes
        attributes = {
            "kernel": said["kernel"], "strides": said["strides"], "pads_begin": said["pads"],
            "pads_end": said["pads"], "rounding_type": "floor", "auto_pad": "explicit",
        }  # fmt: skip
        if node.op == "mean_pool":
            attributes["exclude-pad"] = not said["with_padding"]
            return self.net.layer("AvgPool", [x], attributes, outputs=node.dtypes)
        if all(size == 1 for size in said["dilations"]):
            return self.net.layer("MaxPool", [x], attributes, outputs=node.dtypes)
        attributes |= {"dilations": said["dilations"], "index_element_type": "i64", "axis": 0}
        outputs = [*node.dtypes, torch.int64]
        return self.net.layer("MaxPool", [x], attributes, version="opset8", outputs=outputs)[0]

    def _conv(self, node: Node, x: Out, kernel: Out) -> Out:
        said = node.attributes
        kind, groups, shape = "Convolution", said["groups"], said["kernel"]
        if groups > 1:
            kind = "GroupConvolution"
            pattern = self.numbers([groups, shape[0] // groups, *shape[1:]])
            kernel = self.net.layer("Reshape", [kernel, pattern], {"special_zero": True}, outputs=node.dtypes)
        attributes = {name: said[name] for name in ("strides", "dilations", "pads_begin", "pads_end")}
        return self.net.layer(kind, [x, kernel], attributes | {"auto_pad": "explicit"}, outputs=node.dtypes)
