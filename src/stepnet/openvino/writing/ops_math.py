"""Aten calls that compute: element by element, reductions, products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .builder import Out
from .ops import AtenNet, is_size, rule

_UNARY = {
    "neg": "Negative", "abs": "Abs", "sign": "Sign", "sgn": "Sign", "relu": "ReLU", "floor": "Floor",
    "ceil": "Ceiling", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf", "hardswish": "HSwish", "mish": "Mish", "sinh": "Sinh",
    "cosh": "Cosh", "atan": "Atan", "asin": "Asin", "acos": "Acos", "silu": "Swish",
}  # fmt: skip
_BINARY = {
    "mul": "Multiply", "maximum": "Maximum", "minimum": "Minimum", "pow": "Power", "remainder": "FloorMod",
}  # fmt: skip
_COMPARE = {
    "eq": "Equal", "ne": "NotEqual", "lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual",
}  # fmt: skip
_LOGIC = {"and": "LogicalAnd", "or": "LogicalOr", "xor": "LogicalXor"}
_FREE = frozenset({"Add", "Multiply", "Maximum", "Minimum"})


def two(b: AtenNet, kind: str, x: Any, y: Any, dtype: torch.dtype | None = None) -> Out:
    """A layer of two operands; what depends on the state goes first where the order is free."""
    dtype = dtype or b.dtype()
    if kind in _FREE and y in b.late and x not in b.late:
        x, y = y, x
    return b.emit.call(kind, b.out(x, dtype), b.out(y, dtype))


def _unary(name: str, kind: str) -> None:
    @rule(name)
    def _(b: AtenNet, x: Any, *rest: Any, **_: Any) -> Out:
        return b.emit.call(kind, b.out(x, b.dtype()))


def _binary(name: str, kind: str) -> None:
    @rule(name)
    def _(b: AtenNet, x: Any, y: Any) -> Any:
        if b.dtype() == torch.bool:
            return two(b, "LogicalAnd", x, y) if name == "mul" else NotImplemented
        return two(b, kind, x, y)


def _comparison(name: str, kind: str) -> None:
    @rule(name)
    def _(b: AtenNet, x: Any, y: Any) -> Out:
        return two(b, kind, x, y, _promoted(x, y))


def _logical(name: str, kind: str) -> None:
    @rule(f"logical_{name}", f"bitwise_{name}")
    def _(b: AtenNet, x: Any, y: Any) -> Any:
        if b.dtype() != torch.bool:
            return NotImplemented
        return two(b, kind, x, y, torch.bool)


for _name, _kind in _UNARY.items():
    _unary(_name, _kind)
for _name, _kind in _BINARY.items():
    _binary(_name, _kind)
for _name, _kind in _COMPARE.items():
    _comparison(_name, _kind)
for _name, _kind in _LOGIC.items():
    _logical(_name, _kind)


def _promoted(x: Any, y: Any) -> torch.dtype:
    def stand_in(v: Any) -> Any:
        if is_size(v):
            return 1
        meta = getattr(v, "meta", None)
        if meta is None:
            return v
        return torch.empty([1] * meta["val"].dim(), dtype=meta["val"].dtype, device="meta")

    return torch.result_type(stand_in(x), stand_in(y))


def _scaled(b: AtenNet, y: Any, alpha: Any) -> Out:
    if alpha == 1:
        return b.out(y, b.dtype())
    if not hasattr(y, "meta"):
        return b.out(y * alpha, b.dtype())
    return b.emit.call("Multiply", b.out(y, b.dtype()), b.out(alpha, b.dtype()))


@rule("add")
def _add(b: AtenNet, x: Any, y: Any, alpha: Any = 1) -> Any:
    if b.dtype() == torch.bool:
        return NotImplemented
    first, second = b.out(x, b.dtype()), _scaled(b, y, alpha)
    if y in b.late and x not in b.late:
        first, second = second, first
    return b.emit.call("Add", first, second)


@rule("sub")
def _sub(b: AtenNet, x: Any, y: Any, alpha: Any = 1) -> Out:
    return b.emit.call("Subtract", b.out(x, b.dtype()), _scaled(b, y, alpha))


@rule("rsub")
def _rsub(b: AtenNet, x: Any, y: Any, alpha: Any = 1) -> Out:
    return b.emit.call("Subtract", b.out(y, b.dtype()), _scaled(b, x, alpha))


@rule("div", "true_divide")
def _div(b: AtenNet, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return two(b, "Divide", x, y)
    if not b.dtype().is_floating_point:
        return NotImplemented
    found = two(b, "Divide", x, y)
    return b.emit.call("Floor", found) if rounding_mode == "floor" else b.emit.trunc(found, b.dtype())


@rule("square")
def _square(b: AtenNet, x: Any) -> Out:
    return two(b, "Multiply", x, x)


@rule("rsqrt", "reciprocal")
def _rsqrt(b: AtenNet, x: Any) -> Out:
    if str(b.node.target).startswith("aten.reciprocal"):  # pyright: ignore[reportOptionalMemberAccess]
        return two(b, "Divide", 1.0, x)
    return two(b, "Power", x, -0.5)


@rule("expm1")
def _expm1(b: AtenNet, x: Any) -> Out:
    return b.emit.call("Subtract", b.emit.call("Exp", b.out(x)), b.out(1.0, b.dtype()))


@rule("log1p")
def _log1p(b: AtenNet, x: Any) -> Out:
    return b.emit.call("Log", two(b, "Add", x, 1.0))


@rule("log_sigmoid", "log_sigmoid_forward")
def _log_sigmoid(b: AtenNet, x: Any) -> Any:
    if isinstance(b.node.meta["val"], (tuple, list)):  # pyright: ignore[reportOptionalMemberAccess]
        return NotImplemented
    return b.emit.call("Negative", b.emit.call("SoftPlus", b.emit.call("Negative", b.out(x))))


@rule("round.default")
def _round(b: AtenNet, x: Any) -> Out:
    return b.emit.call("Round", b.out(x), mode="half_to_even")


@rule("trunc")
def _trunc(b: AtenNet, x: Any) -> Out:
    return b.emit.trunc(b.out(x), b.dtype())


@rule("logical_not", "bitwise_not")
def _not(b: AtenNet, x: Any) -> Any:
    return b.emit.call("LogicalNot", b.out(x, torch.bool)) if b.dtype() == torch.bool else NotImplemented


@rule("isnan")
def _isnan(b: AtenNet, x: Any) -> Out:
    return b.emit.call("IsNaN", b.out(x))


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: AtenNet, condition: Any, x: Any, y: Any) -> Out:
    return b.emit.call("Select", b.out(condition, torch.bool), b.out(x, b.dtype()), b.out(y, b.dtype()))


@rule("masked_fill")
def _masked_fill(b: AtenNet, x: Any, mask: Any, value: Any) -> Out:
    return b.emit.call("Select", b.out(mask, torch.bool), b.out(value, b.dtype()), b.out(x, b.dtype()))


@rule("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6")
def _clamp(b: AtenNet, x: Any, low: Any = None, high: Any = None) -> Out:
    name = str(b.node.target)  # pyright: ignore[reportOptionalMemberAccess]
    if "clamp_max" in name:
        low, high = None, low
    elif "hardtanh" in name:
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    elif "relu6" in name:
        low, high = 0.0, 6.0
    out = b.out(x, b.dtype())
    if low is not None:
        out = b.emit.call("Maximum", out, b.out(low, b.dtype()))
    return out if high is None else b.emit.call("Minimum", out, b.out(high, b.dtype()))


@rule("gelu")
def _gelu(b: AtenNet, x: Any, approximate: str = "none") -> Out:
    return b.emit.call("Gelu", b.out(x), approximation_mode="TANH" if approximate == "tanh" else "ERF")


@rule("leaky_relu")
def _leaky(b: AtenNet, x: Any, slope: float = 0.01) -> Out:
    return b.emit.call("PReLU", b.out(x), b.emit.tensor(torch.tensor([slope], dtype=b.dtype())))


@rule("elu")
def _elu(b: AtenNet, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if scale != 1 or input_scale != 1:
        return NotImplemented
    return b.emit.call("Elu", b.out(x), alpha=float(alpha))


@rule("softplus")
def _softplus(b: AtenNet, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return b.emit.call("SoftPlus", b.out(x)) if beta == 1 else NotImplemented


@rule("hardsigmoid")
def _hardsigmoid(b: AtenNet, x: Any) -> Out:
    return b.emit.call("HSigmoid", b.out(x))


@rule("dropout", "feature_dropout", "alpha_dropout")
def _dropout(b: AtenNet, x: Any, p: float, train: bool) -> Out:
    if train and p:
        raise b.refuse("a written model draws no noise; module.eval() first")
    return b.out(x)


@rule("clone", "alias", "detach", "detach_", "contiguous", "lift_fresh_copy", "positive")
def _same(b: AtenNet, x: Any, **_: Any) -> Out:
    return b.out(x)


@rule("_to_copy", "to", "type_as", "convert_element_type")
def _to(b: AtenNet, x: Any, *_: Any, **__: Any) -> Out:
    return b.out(x, b.dtype())


# reductions


def _axes(b: AtenNet, x: Any, dims: Any) -> list[int]:
    wanted = [dims] if isinstance(dims, int) else list(dims or range(len(b.shape(x))))
    return [b.axis(x, d) for d in wanted]


def _reduce(b: AtenNet, kind: str, x: Any, dims: Any, keepdim: bool) -> Out:
    axes = _axes(b, x, dims)
    value = b.out(x, b.dtype())
    if not axes:
        return value
    return b.emit.call(kind, value, b.emit.ints(axes), keep_dims=keepdim)


@rule("sum.dim_IntList", "sum.default")
def _sum(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Out:
    return _reduce(b, "ReduceSum", x, dims, keepdim)


@rule("mean.dim", "mean.default")
def _mean(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Out:
    return _reduce(b, "ReduceMean", x, dims, keepdim)


@rule("amax")
def _amax(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False) -> Out:
    return _reduce(b, "ReduceMax", x, dims, keepdim)


@rule("amin")
def _amin(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False) -> Out:
    return _reduce(b, "ReduceMin", x, dims, keepdim)


@rule("max.default", "min.default")
def _extreme(b: AtenNet, x: Any) -> Out:
    name = str(b.node.target)  # pyright: ignore[reportOptionalMemberAccess]
    return _reduce(b, "ReduceMax" if "max" in name else "ReduceMin", x, None, False)


@rule("prod.dim_int")
def _prod(b: AtenNet, x: Any, dim: int, keepdim: bool = False, **_: Any) -> Out:
    return _reduce(b, "ReduceProd", x, dim, keepdim)


@rule("max.dim", "min.dim")
def _top(b: AtenNet, x: Any, dim: int, keepdim: bool = False) -> tuple[Out, Out]:
    mode = "max" if "max" in str(b.node.target) else "min"  # pyright: ignore[reportOptionalMemberAccess]
    return _topk(b, x, dim, keepdim, mode)


@rule("argmax", "argmin")
def _arg(b: AtenNet, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return NotImplemented
    mode = "max" if "max" in str(b.node.target) else "min"  # pyright: ignore[reportOptionalMemberAccess]
    return _topk(b, x, dim, keepdim, mode)[1]


@rule("topk")
def _largest(b: AtenNet, x: Any, k: Any, dim: int = -1, largest: bool = True, *_: Any) -> Any:
    return _sorted(b, x, k, dim, "max" if largest else "min") if isinstance(k, int) else NotImplemented


def _topk(b: AtenNet, x: Any, dim: int, keepdim: bool, mode: str) -> tuple[Out, Out]:
    values, places = _sorted(b, x, 1, dim, mode)
    axis = b.axis(x, dim)
    return (values, places) if keepdim else (b.emit.squeeze(values, axis), b.emit.squeeze(places, axis))


def _sorted(b: AtenNet, x: Any, k: int, dim: int, mode: str) -> tuple[Out, Out]:
    values, places = b.emit.call(
        "TopK", b.out(x), b.emit.scalar(k), axis=b.axis(x, dim), mode=mode, sort="value",
        index_element_type="i64", stable=True, outputs=2,
    )  # fmt: skip
    return values, places


@rule("cumsum")
def _cumsum(b: AtenNet, x: Any, dim: int, **_: Any) -> Out:
    return b.emit.call("CumSum", b.out(x, b.dtype()), b.emit.scalar(b.axis(x, dim)))


@rule("softmax.int", "_softmax")
def _softmax(b: AtenNet, x: Any, dim: int, *_: Any, **__: Any) -> Out:
    return b.emit.call("SoftMax", b.out(x, b.dtype()), axis=b.axis(x, dim))


@rule("log_softmax.int", "_log_softmax")
def _log_softmax(b: AtenNet, x: Any, dim: int, *_: Any, **__: Any) -> Out:
    return b.emit.call("LogSoftmax", b.out(x, b.dtype()), axis=b.axis(x, dim))


@rule("layer_norm")
def _layer_norm(
    b: AtenNet, x: Any, size: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Out:
    rank = len(b.shape(x))
    axes = [b.axis(x, d) for d in range(rank - len(size), rank)]
    out = b.emit.call(
        "MVN", b.out(x), b.emit.ints(axes), normalize_variance=True, eps=float(eps), eps_mode="INSIDE_SQRT"
    )
    if weight is not None:
        out = b.emit.call("Multiply", out, b.out(weight))
    return out if bias is None else b.emit.call("Add", out, b.out(bias))


@rule("batch_norm")
def _batch_norm(
    b: AtenNet, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float, *_: Any,
) -> Any:  # fmt: skip
    if training or b.is_ragged(x):
        return NotImplemented
    scale = torch.rsqrt(b.constant(var) + eps)
    if weight is not None:
        scale = scale * b.constant(weight)
    shift = -b.constant(mean) * scale
    if bias is not None:
        shift = shift + b.constant(bias)
    shape = [-1] + [1] * (len(b.shape(x)) - 2)
    product = b.emit.call("Multiply", b.out(x), b.emit.tensor(scale.detach().reshape(shape)))
    return b.emit.call("Add", product, b.emit.tensor(shift.detach().reshape(shape)))


# products


def matmul(b: AtenNet, x: Out, y: Out, *, transposed: bool = False) -> Out:
    """x @ y, or x @ y^T."""
    return b.emit.call("MatMul", x, y, transpose_a=False, transpose_b=transposed)


@rule("mm", "bmm", "matmul", "mv", "dot")
def _matmul(b: AtenNet, x: Any, y: Any) -> Any:
    if b.is_ragged(y) or (b.is_ragged(x) and len(b.shape(y)) > 2):
        raise b.refuse("it mixes rows of ragged sequences")
    return matmul(b, b.out(x), b.out(y))


@rule("linear")
def _linear(b: AtenNet, x: Any, weight: Any, bias: Any = None) -> Out:
    out = matmul(b, b.out(x), b.out(weight), transposed=True)
    return out if bias is None else b.emit.call("Add", out, b.out(bias))


@rule("addmm", "baddbmm")
def _addmm(b: AtenNet, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    return b.emit.call("Add", matmul(b, b.out(x), b.out(y)), b.out(bias))


@rule("conv1d", "conv2d")
def _conv(
    b: AtenNet, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    dilation: Any = (1,), groups: int = 1,
) -> Any:  # fmt: skip
    spatial = len(b.shape(weight)) - 2
    if b.is_ragged(x) or len(b.shape(x)) != spatial + 2:
        return NotImplemented

    def each(v: Any) -> list[int]:
        v = [v] if isinstance(v, int) else list(v)
        return v * spatial if len(v) == 1 else v

    attributes: dict[str, Any] = {"strides": each(stride), "dilations": each(dilation)}
    if isinstance(padding, str):
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(each(dilation), b.shape(weight)[2:], strict=True)]
            begin = [t // 2 for t in total]
            end = [t - s for t, s in zip(total, begin, strict=True)]
        else:
            begin = end = [0] * spatial
    else:
        begin = end = each(padding)
    attributes |= {"pads_begin": begin, "pads_end": end, "auto_pad": "explicit"}
    kernel = b.out(weight)
    kind = "Convolution"
    if groups > 1:
        kind, shape = "GroupConvolution", b.shape(weight)
        kernel = b.emit.reshape(kernel, [groups, shape[0] // groups, *shape[1:]])
    out = b.emit.call(kind, b.out(x), kernel, **attributes)
    if bias is None:
        return out
    return b.emit.call("Add", out, b.emit.reshape(b.out(bias), [1, -1, *[1] * spatial]))


@rule("scaled_dot_product_attention")
def _attention(
    b: AtenNet, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    width = b.shape(q)[-1]
    if dropout or causal or enable_gqa or not isinstance(width, int) or any(map(b.is_ragged, (q, k, v))):
        return NotImplemented
    factor = 1 / math.sqrt(width) if scale is None else scale
    query = b.emit.call("Multiply", b.out(q), b.out(factor, b.dtype()))
    scores = matmul(b, query, b.out(k), transposed=True)
    if mask is not None:
        if b.dtype(mask) == torch.bool:
            return NotImplemented
        scores = b.emit.call("Add", scores, b.out(mask))
    return matmul(b, b.emit.call("SoftMax", scores, axis=len(b.shape(q)) - 1), b.out(v))
