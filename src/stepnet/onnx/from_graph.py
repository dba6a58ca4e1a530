"""Graphs as ONNX graphs: a node for each op, by a table with one row per op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype
from torch import Tensor

from stepnet.compiler.rules.torch_names import RARE
from stepnet.export.composed_ops import MADE_OF
from stepnet.export.graph import Cell, LoopOp, Node, Target, Value

from .graph_writer import GraphWriter
from .loop_form import cell_nodes, loop_nodes

# The op of each op that takes the same operands, with what attributes it always has.
OPS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (kind, {})
        for name, kind in {
            "neg": "Neg", "abs": "Abs", "sign": "Sign", "relu": "Relu", "floor": "Floor", "ceil": "Ceil",
            "round": "Round", "not": "Not", "isnan": "IsNaN", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
            "sin": "Sin", "cos": "Cos", "tan": "Tan", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf",
            "sinh": "Sinh", "cosh": "Cosh", "atan": "Atan", "asin": "Asin", "acos": "Acos",
            "asinh": "Asinh", "acosh": "Acosh", "bitwise_and": "BitwiseAnd",
            "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "bitwise_not": "BitwiseNot",
            "hardswish": "HardSwish", "mish": "Mish", "copy": "Identity",
            "sub": "Sub", "div": "Div", "floor_divide": "Div", "pow": "Pow",
            "maximum": "Max", "minimum": "Min", "eq": "Equal", "lt": "Less", "le": "LessOrEqual",
            "gt": "Greater", "ge": "GreaterOrEqual", "and": "And", "or": "Or", "xor": "Xor",
            "prelu": "PRelu", "cumsum": "CumSum", "expand": "Expand", "tile": "Tile",
            "squeeze": "Squeeze", "unsqueeze": "Unsqueeze", "shape": "Shape", "range": "Range",
            "nonzero": "NonZero",
        }.items()
    },
    "hardsigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "fmod": ("Mod", {"fmod": 1}),
    "gather_nd": ("GatherND", {}),
    "scatter_nd": ("ScatterND", {}),
}  # fmt: skip
REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin",
           "prod": "ReduceProd"}  # fmt: skip
ALONG_AN_AXIS = {
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "cat": "Concat",
    "gather": "GatherElements",
}

ONNX = Target(
    name="ONNX",
    unit="op",
    refused=dict.fromkeys((*RARE.keys() - OPS.keys() - MADE_OF.keys(), "trigamma"), "ONNX has no op for it"),
    # ONNX Runtime has its LSTM, GRU and RNN for float32 alone, and none gives the rows of c.
    takes=lambda cell: cell.w.dtype == torch.float32 and set(cell.joined) <= {0},
    softplus=True,
)

Rule = Callable[[GraphWriter, Node, "list[ir.Value]"], "ir.Value | tuple[ir.Value, ...]"]
RULES: dict[str, Rule] = {}  # of ops that take something else


class OpWriter(GraphWriter):
    """Writes each op by the tables."""

    def nodes_of(self, node: Node, inputs: list[ir.Value]) -> Any:
        number, content = len(self._made), node.content
        if self.outer is not None and number in self.outer:
            return self.outer[number]
        if isinstance(content, LoopOp):
            return loop_nodes(self, content, node)
        if isinstance(content, Cell):
            return cell_nodes(self, content, inputs)
        if isinstance(content, Tensor):
            return self.constant(content)
        if node.op == "parameter":
            return self._input(node)
        if node.op == "result":
            self.results[number] = inputs[0]
            return inputs[0]
        dtypes = (*node.dtypes, *map(_dtype, node.inputs))
        return self._in_float32(node, inputs) if torch.bfloat16 in dtypes else self._op(node, inputs)

    def _in_float32(self, node: Node, inputs: list[ir.Value]) -> Any:
        """An op of bfloat16, for which ONNX Runtime has hardly any: each result is rounded."""
        if node.op in ("cast", "reshape", "shape"):
            return self._op(node, inputs)
        wide = [
            self.call("Cast", x, to=ir.DataType.FLOAT) if _dtype(value) == torch.bfloat16 else x
            for x, value in zip(inputs, node.inputs, strict=True)
        ]
        dtypes = tuple(torch.float32 if dtype == torch.bfloat16 else dtype for dtype in node.dtypes)
        made = self._op(replace(node, dtypes=dtypes), wide)
        back = tuple(
            self.call("Cast", x, to=ir.DataType.BFLOAT16) if dtype == torch.bfloat16 else x
            for x, dtype in zip(made if isinstance(made, tuple) else (made,), node.dtypes, strict=True)
        )
        return back if isinstance(made, tuple) else back[0]

    def _op(self, node: Node, inputs: list[ir.Value]) -> Any:
        if node.op in OPS:
            kind, attributes = OPS[node.op]
            return self.call(kind, *inputs, **attributes)
        if node.op in REDUCTIONS:
            return self.call(REDUCTIONS[node.op], *inputs, keepdims=int(node.attributes["keepdim"]))
        if node.op in ALONG_AN_AXIS:
            return self.call(ALONG_AN_AXIS[node.op], *inputs, axis=node.attributes["axis"])
        return RULES[node.op](self, node, inputs)

    def _input(self, node: Node) -> ir.Value:
        name = str(node.name) if self.outer is None else self.name(str(node.name))
        shape = [f"{name}_{i}" if size < 0 else size for i, size in enumerate(node.attributes["shape"])]
        made = ir.val(name, from_torch_dtype(node.dtypes[0]), ir.Shape(shape))
        self.inputs.append(made)
        return made


def _dtype(value: Value) -> torch.dtype:
    """The dtype of a value."""
    return value.graph.dtype(value)


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, fn))
        return fn

    return register


@_rule("cast")
def _cast(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    (dtype,), beyond = node.dtypes, {}
    if dtype.itemsize == 1 and dtype.is_floating_point:  # of which torch saturates some, by its version
        beyond = {"saturate": int(float(torch.tensor(torch.inf).to(dtype)) < torch.inf)}
    return w.call("Cast", *inputs, to=from_torch_dtype(dtype), **beyond)


@_rule("add")
def _add(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    made = None if w.outer is not None else _product_and_bias(w, node.inputs) or _more_bias(w, node.inputs)
    made = _norm(w, node) if made is None else made
    return w.call("Add", *inputs) if made is None else made


def _more_bias(w: GraphWriter, added: Sequence[Value]) -> ir.Value | None:
    """x W + b + c with b + c as the one bias, as where a state's own bias moved out of its loop."""
    for product, other in (added, added[::-1]):
        made, row = (w.graph.nodes[value.node] for value in (product, other))
        last = w.at(product).producer() if made.op in ("add", "split") and w.uses[product] == 1 else None
        if last is not None and last.op_type == "Reshape" and last.inputs[0] is not None:
            last = last.inputs[0].producer()
        bias = last.inputs[2] if last is not None and last.op_type == "Gemm" else None
        data = None if bias is None else bias.const_value
        if last is None or data is None or not isinstance(row.content, Tensor):
            continue
        if row.content.shape == tuple(data.shape):
            last.replace_input_with(2, w.constant(torch.from_numpy(data.numpy()) + row.content))
            return w.at(product)
    return None


@_rule("mul")
def _mul(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    made = _norm(w, node)
    return w.call("Mul", *inputs) if made is None else made


def _norm(w: GraphWriter, node: Node) -> ir.Value | None:
    """What is normalized, times a weight, plus a bias, as one op: each would be one more pass over memory."""
    bias, value = None, None
    if node.op == "add":
        parts = [(v, _made_once(w, v, "mul")) for v in node.inputs]
        value = next((made for _, made in parts if made is not None), None)
        bias = next((v for v, made in parts if made is None), None)
        if value is None or bias is None:
            return None
    parts = [(v, _made_once(w, v, "normalize")) for v in (node if value is None else value).inputs]
    norm = next((made for _, made in parts if made is not None), None)
    weight = next((v for v, made in parts if made is None), None)
    if norm is None or weight is None or not norm.attributes["sizes"]:
        return None
    if norm.dtypes[0] == torch.float64:  # whose epsilon an attribute would round to float32
        return None
    sizes = tuple(norm.attributes["sizes"])
    if any(_known_shape(w, v) != sizes for v in (weight, bias) if v is not None):
        return None
    given = [w.at(v) for v in (norm.inputs[0], weight, bias) if v is not None]
    return w.call("LayerNormalization", *given, axis=-len(sizes), epsilon=norm.attributes["eps"])


def _known_shape(w: GraphWriter, value: Value) -> tuple[Any, ...] | None:
    """The shape of a constant, of this graph or of one around it."""
    content, outer = w.graph.nodes[value.node].content, w.at(value).const_value
    found = content if isinstance(content, Tensor) else outer
    return None if found is None else tuple(found.shape)


def _made_once(w: GraphWriter, value: Value, op: str) -> Node | None:
    """The op that makes a value, if it is of this kind and nothing else reads it."""
    made = w.graph.nodes[value.node]
    alone = w.uses[value] == 1 and made.dtypes[0] != torch.bfloat16
    return made if made.op == op and alone else None


def _product_and_bias(w: GraphWriter, added: Sequence[Value], parts: Sequence[int] = ()) -> Any:
    """x W + b as a Gemm over all rows, or one for each of its parts: to add b is one more pass over memory,
    and to split what was made another. None if it is something else."""
    nodes = w.graph.nodes
    product, bias = added
    made, row = nodes[product.node], nodes[bias.node].content
    once = w.uses[product] == 1 and made.dtypes[0] != torch.bfloat16
    if made.op != "matmul" or not once or not isinstance(row, Tensor) or row.dim() != 1:
        return None
    x, factor = made.inputs
    weight = nodes[factor.node].content
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    turned = bool(made.attributes["transposed"])
    inner, width = weight.shape[::-1] if turned else weight.shape
    if row.shape[0] != width or not row.is_floating_point():
        return None
    source = w.at(x)
    rows = w.call("Reshape", source, w.numbers([-1, inner]))
    lead = None if rows is source else w.call("Shape", source, start=0, end=-1)  # it is rows already

    def gemm(weight: ir.Value, bias: ir.Value, width: int) -> ir.Value:
        out = w.call("Gemm", rows, weight, bias, transB=int(turned))
        if lead is None:
            return out
        return w.call("Reshape", out, w.call("Concat", lead, w.numbers([width]), axis=0), allowzero=1)

    if not parts:
        return gemm(w.at(factor), w.at(bias), width)
    if w.uses[factor] > 1:  # its parts would be a copy of it
        return None
    cut = zip(weight.split(list(parts), int(not turned)), row.split(list(parts)), parts, strict=True)
    return tuple(gemm(w.constant(a), w.constant(b), size) for a, b, size in cut)


@_rule("ne")
def _ne(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    return w.call("Not", w.call("Equal", *inputs))


@_rule("where")
def _where(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    condition, x, y = inputs
    if node.dtypes[0] != torch.bool:  # for which ONNX Runtime has none
        return w.call("Where", condition, x, y)
    return w.call("Or", w.call("And", condition, x), w.call("And", w.call("Not", condition), y))


@_rule("silu")
def _silu(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    return w.call("Mul", *inputs, w.call("Sigmoid", *inputs))


@_rule("gelu")
def _gelu(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    return w.call("Gelu", *inputs, approximate=node.attributes["approximate"])


@_rule("atanh")
def _atanh(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    """Half of log((1 - a) / (1 + a)) for a of x's size, with the sign of x."""
    if node.dtypes[0] != torch.float64:
        return w.call("Atanh", *inputs)
    one, two, half = (w.constant(torch.tensor(n, dtype=torch.float64)) for n in (1.0, 2.0, 0.5))
    size = w.call("Abs", *inputs)
    above = w.call("Add", one, size)
    near = _log1p(w, w.call("Neg", w.call("Div", w.call("Mul", size, two), above)), one)
    far = w.call("Log", w.call("Div", w.call("Sub", one, size), above))
    twice = w.call("Where", w.call("Less", size, half), near, far)
    return w.call("Neg", w.call("Mul", w.call("Mul", twice, half), w.call("Sign", *inputs)))


@_rule("softplus")
def _softplus(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    if node.dtypes[0] != torch.float64:
        return w.call("Softplus", *inputs)
    power = w.call("Exp", w.call("Neg", w.call("Abs", *inputs)))
    one = w.constant(torch.tensor(1.0, dtype=torch.float64))
    return w.call("Add", w.call("Relu", *inputs), _log1p(w, power, one))


def _log1p(w: GraphWriter, x: ir.Value, one: ir.Value) -> ir.Value:
    """log(1 + x) of doubles from -1 to 1, for which ONNX Runtime has no Atanh and no Softplus: what the sum
    lost of x is the same part of its logarithm."""
    total = w.call("Add", one, x)
    kept = w.call("Sub", total, one)
    none = w.call("Equal", total, one)
    part = w.call("Div", x, w.call("Where", none, one, kept))
    return w.call("Where", none, x, w.call("Mul", w.call("Log", total), part))


@_rule("elu")
def _elu(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    return w.call("Elu", *inputs, alpha=node.attributes["alpha"])


@_rule("remainder")
def _remainder(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    x, y = inputs
    if not node.dtypes[0].is_floating_point:
        return w.call("Mod", x, y)
    rest, zero = w.call("Mod", x, y, fmod=1), w.constant(torch.zeros((), dtype=node.dtypes[0]))
    other = w.call("Xor", w.call("Less", rest, zero), w.call("Less", y, zero))
    turned = w.call("And", other, w.call("Not", w.call("Equal", rest, zero)))
    return w.call("Where", turned, w.call("Add", rest, y), rest)


@_rule("bitwise_right_shift")
def _right_shift(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    """A quotient rounded down: ONNX shifts what has no sign."""
    x, by = inputs
    (dtype,) = node.dtypes
    powers = w.constant(2 ** torch.arange(torch.iinfo(dtype).bits, dtype=dtype))
    power = w.call("Gather", powers, w.call("Cast", by, to=ir.DataType.INT64), axis=0)
    return w.call("Div", w.call("Sub", x, w.call("Mod", x, power)), power)


@_rule("normalize")
def _normalize(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    (x, axes), sizes, dtype = inputs, node.attributes["sizes"], node.dtypes[0]
    if sizes and dtype != torch.float64:
        one = w.constant(torch.ones(sizes, dtype=dtype))
        return w.call("LayerNormalization", x, one, axis=-len(sizes), epsilon=node.attributes["eps"])
    centred = w.call("Sub", x, w.call("ReduceMean", x, axes, keepdims=1))
    variance = w.call("ReduceMean", w.call("Mul", centred, centred), axes, keepdims=1)
    eps = w.constant(torch.tensor(node.attributes["eps"], dtype=dtype))
    return w.call("Div", centred, w.call("Sqrt", w.call("Add", variance, eps)))


@_rule("matmul")
def _matmul(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    (x, y), rank = inputs, node.attributes["transposed"]
    if rank:
        content = node.inputs[1].graph.nodes[node.inputs[1].node].content
        if isinstance(content, Tensor):
            y = w.constant(content.transpose(-2, -1).to(node.dtypes[0]))
        else:
            y = w.call("Transpose", y, perm=[*range(rank - 2), rank - 1, rank - 2])
    return w.call("MatMul", x, y)


@_rule("conv", "conv_transpose")
def _conv(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    said = node.attributes
    more = {name: said[name] for name in ("output_padding",) if name in said}
    return w.call(
        "ConvTranspose" if more else "Conv", *inputs, strides=said["strides"], dilations=said["dilations"],
        group=said["groups"], pads=[*said["pads_begin"], *said["pads_end"]], **more,
    )  # fmt: skip


@_rule("grid_sample")
def _grid_sample(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    said, modes = node.attributes, {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    return w.call(
        "GridSample", *inputs, mode=modes[said["mode"]],
        padding_mode=said["padding_mode"], align_corners=int(said["align_corners"]),
    )  # fmt: skip


@_rule("max_pool", "mean_pool")
def _pool(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    said = node.attributes
    how = {"kernel_shape": said["kernel"], "strides": said["strides"], "pads": [*said["pads"]] * 2}
    if node.op == "max_pool":
        return w.call("MaxPool", *inputs, dilations=said["dilations"], **how)
    return w.call("AveragePool", *inputs, count_include_pad=int(said["with_padding"]), **how)


@_rule("reshape")
def _reshape(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    return w.call("Reshape", *inputs, allowzero=int(not node.attributes["zero_keeps"]))


@_rule("permute")
def _permute(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    return w.call("Transpose", inputs[0], perm=w.known(node.inputs[1]))


@_rule("pad")
def _pad(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    x, before, after, number = inputs
    sizes = [w.graph.nodes[value.node].content for value in node.inputs[1:3]]
    if all(isinstance(content, Tensor) for content in sizes):
        pads = w.numbers([*w.known(node.inputs[1]), *w.known(node.inputs[2])])
    else:
        pads = w.call("Concat", before, after, axis=0)
    return w.call("Pad", x, pads, number)


@_rule("slice")
def _slice(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    x, starts, ends, steps, axes = inputs
    return w.call("Slice", x, starts, ends, axes, steps)


@_rule("split")
def _split(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> tuple[ir.Value, ...]:
    x, _, sizes = inputs
    (axis,) = w.known(node.inputs[1])
    whole = None if w.outer is not None or axis != -1 else _made_once(w, node.inputs[0], "add")
    made = None if whole is None else _product_and_bias(w, whole.inputs, w.known(node.inputs[2]))
    return made or w.call("Split", x, sizes, axis=axis, outputs=len(node.dtypes))


@_rule("take")
def _take(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    x, index, _ = inputs
    (axis,) = w.known(node.inputs[2])
    if not node.attributes["batch_dims"]:
        return w.call("Gather", x, index, axis=axis)
    assert axis == node.attributes["batch_dims"] == 1
    return w.call("GatherND", x, w.call("Unsqueeze", index, w.numbers([-1])), batch_dims=1)


@_rule("scatter")
def _scatter(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> ir.Value:
    said = node.attributes
    return w.call("ScatterElements", *inputs, axis=said["axis"], reduction=said["how"])


@_rule("unique")
def _unique(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> tuple[ir.Value, ...]:
    """ONNX Runtime has it of float32, float64 and int64 alone."""
    dtype, inside = node.dtypes[0], node.dtypes[0]
    if dtype not in (torch.float32, torch.float64, torch.int64):
        inside = torch.float32 if dtype.is_floating_point else torch.int64
    along = {"axis": w.known(node.inputs[1])[0]} if len(inputs) > 1 else {}
    x = inputs[0] if inside == dtype else w.call("Cast", inputs[0], to=from_torch_dtype(inside))
    values, *rest = w.call("Unique", x, sorted=1, outputs=4, **along)
    return (values if inside == dtype else w.call("Cast", values, to=from_torch_dtype(dtype)), *rest)


@_rule("topk")
def _topk(w: GraphWriter, node: Node, inputs: list[ir.Value]) -> tuple[ir.Value, ...]:
    fixed = isinstance(w.graph.nodes[node.inputs[1].node].content, Tensor)
    count = w.numbers(w.known(node.inputs[1])) if fixed else w.call("Unsqueeze", inputs[1], w.numbers([0]))
    largest = int(node.attributes["mode"] == "max")
    return w.call("TopK", inputs[0], count, axis=node.attributes["axis"], largest=largest, outputs=2)
