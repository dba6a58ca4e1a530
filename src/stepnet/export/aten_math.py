"""Aten calls that compute: element by element, reductions, products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stepnet.compiler.torch_names import COMPARE, LOGIC, SHIFTS, UNARY, stand_in_for

from .aten import AtenNet, is_size, rule
from .graph import Value

_MORE = [
    "hardswish", "mish", "sinh", "cosh", "tan", "atan", "asin", "acos", "silu", "hardsigmoid", "asinh",
    "acosh", "atanh", "exp2", "log2", "log10",
]  # fmt: skip
_UNARY = UNARY | dict(zip(_MORE, _MORE, strict=True))
_LOGIC = LOGIC | {f"__{op}__": op for op in ("and", "or", "xor")}  # operators of Python
_BINARY = ("mul", "maximum", "minimum", "pow", "remainder", "fmod")


def two(b: AtenNet, op: str, x: Any, y: Any, dtype: torch.dtype | None = None) -> Value:
    """An op of two operands in one dtype, that of the result if it is not said."""
    dtype = dtype or b.dtype()
    return b.emit.call(op, b.out(x, dtype), b.out(y, dtype))


@rule(*_UNARY)
def _unary(b: AtenNet, x: Any) -> Value:
    return b.emit.pointwise(_UNARY[b.name], b.out(x, b.dtype()))


@rule(*_BINARY)
def _binary(b: AtenNet, x: Any, y: Any) -> Any:
    if b.dtype() == torch.bool:
        return two(b, "and", x, y) if b.name == "mul" else NotImplemented
    return two(b, b.name, x, y)


@rule("fmax", "fmin")
def _of_numbers(b: AtenNet, x: Any, y: Any) -> Value:
    """The other one where one is nan."""
    a, c = b.out(x, b.dtype()), b.out(y, b.dtype())
    out = b.emit.call("maximum" if b.name == "fmax" else "minimum", a, c)
    if not b.dtype().is_floating_point:
        return out
    out = b.emit.call("where", b.emit.call("isnan", a), c, out)
    return b.emit.call("where", b.emit.call("isnan", c), a, out)


@rule("atan2", "hypot", "copysign", "ldexp")
def _made(b: AtenNet, x: Any, y: Any) -> Value:
    return b.emit.pointwise(b.name, b.out(x, b.dtype()), b.out(y, b.dtype()))


@rule("signbit")
def _signbit(b: AtenNet, x: Any) -> Value:
    return b.emit.pointwise("signbit", b.out(x))


@rule(*COMPARE)
def _comparison(b: AtenNet, x: Any, y: Any) -> Value:
    return two(b, COMPARE[b.name], x, y, _promoted(x, y))


@rule(*_LOGIC)
def _logical(b: AtenNet, x: Any, y: Any) -> Any:
    return two(b, _LOGIC[b.name] if b.dtype() == torch.bool else f"bitwise_{_LOGIC[b.name]}", x, y)


@rule(*SHIFTS)
def _shifted(b: AtenNet, x: Any, y: Any) -> Any:
    if b.dtype().is_floating_point:
        return NotImplemented
    return b.emit.pointwise(SHIFTS[b.name], b.out(x, b.dtype()), b.out(y, b.dtype()))


def _promoted(x: Any, y: Any) -> torch.dtype:
    def stand_in(v: Any) -> Any:
        if is_size(v):
            return 1
        meta = getattr(v, "meta", None)
        if meta is None:
            return v
        return stand_in_for(meta["val"].dtype, meta["val"].dim())

    return torch.result_type(stand_in(x), stand_in(y))


def _scaled(b: AtenNet, y: Any, alpha: Any) -> Value:
    if alpha == 1:
        return b.out(y, b.dtype())
    if not hasattr(y, "meta"):
        return b.out(y * alpha, b.dtype())
    return b.emit.call("mul", b.out(y, b.dtype()), b.out(alpha, b.dtype()))


@rule("add")
def _add(b: AtenNet, x: Any, y: Any, alpha: Any = 1) -> Any:
    if b.dtype() == torch.bool:
        return NotImplemented
    return b.emit.call("add", b.out(x, b.dtype()), _scaled(b, y, alpha))


@rule("sub", "rsub")
def _sub(b: AtenNet, x: Any, y: Any, alpha: Any = 1) -> Value:
    x, y = (y, x) if b.name == "rsub" else (x, y)
    return b.emit.call("sub", b.out(x, b.dtype()), _scaled(b, y, alpha))


@rule("div", "true_divide")
def _div(b: AtenNet, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return two(b, "div", x, y)
    rounded = b.emit.floored if rounding_mode == "floor" else b.emit.truncated
    return rounded(b.out(x, b.dtype()), b.out(y, b.dtype()))


@rule("floor_divide")
def _floor_divide(b: AtenNet, x: Any, y: Any) -> Value:
    return b.emit.floored(b.out(x, b.dtype()), b.out(y, b.dtype()))


@rule("square")
def _square(b: AtenNet, x: Any) -> Value:
    return two(b, "mul", x, x)


@rule("log_sigmoid", "log_sigmoid_forward")
def _log_sigmoid(b: AtenNet, x: Any) -> Any:
    if isinstance(b.meta, (tuple, list)):
        return NotImplemented
    return b.emit.call("neg", b.emit.call("softplus", b.emit.call("neg", b.out(x))))


@rule("round.default", "isnan")
def _as_it_is(b: AtenNet, x: Any) -> Value:
    return b.emit.call(b.name, b.out(x))


@rule("isinf")
def _isinf(b: AtenNet, x: Any) -> Value:
    value = b.out(x)
    return b.emit.call("eq", b.emit.call("abs", value), b.emit.number(math.inf, b.emit.graph.dtype(value)))


@rule("logical_not", "bitwise_not")
def _not(b: AtenNet, x: Any) -> Any:
    if b.dtype() == torch.bool:
        return b.emit.call("not", b.out(x, torch.bool))
    return b.emit.call("bitwise_not", b.out(x))


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: AtenNet, condition: Any, x: Any, y: Any) -> Value:
    return b.emit.call("where", b.out(condition, torch.bool), b.out(x, b.dtype()), b.out(y, b.dtype()))


@rule("masked_fill")
def _masked_fill(b: AtenNet, x: Any, mask: Any, value: Any) -> Value:
    return b.emit.call("where", b.out(mask, torch.bool), b.out(value, b.dtype()), b.out(x, b.dtype()))


@rule("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6")
def _clamp(b: AtenNet, x: Any, low: Any = None, high: Any = None) -> Value:
    name = b.name
    if name == "clamp_max":
        low, high = None, low
    elif name == "hardtanh":
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    elif name == "relu6":
        low, high = 0.0, 6.0
    out = b.out(x, b.dtype())
    if low is not None:
        out = b.emit.call("maximum", out, b.out(low, b.dtype()))
    return out if high is None else b.emit.call("minimum", out, b.out(high, b.dtype()))


@rule("gelu")
def _gelu(b: AtenNet, x: Any, approximate: str = "none") -> Value:
    return b.emit.call("gelu", b.out(x), approximate=approximate)


@rule("leaky_relu")
def _leaky(b: AtenNet, x: Any, slope: float = 0.01) -> Value:
    return b.emit.call("prelu", b.out(x), b.emit.tensor(torch.tensor([slope], dtype=b.dtype())))


@rule("elu")
def _elu(b: AtenNet, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale != 1:
        return NotImplemented
    out = b.emit.call("elu", b.out(x), alpha=float(alpha))
    return out if scale == 1 else b.emit.call("mul", out, b.out(float(scale), b.dtype()))


@rule("softplus")
def _softplus(b: AtenNet, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return b.emit.call("softplus", b.out(x)) if beta == 1 else NotImplemented


@rule("dropout", "feature_dropout", "alpha_dropout")
def _dropout(b: AtenNet, x: Any, p: float, train: bool) -> Value:
    if train and p:
        raise b.refuse("a written model draws no noise; module.eval() first")
    return b.out(x)


@rule("clone", "alias", "detach", "detach_", "contiguous", "lift_fresh_copy", "positive")
def _same(b: AtenNet, x: Any, **_: Any) -> Value:
    return b.out(x)


@rule("_to_copy", "to", "type_as", "convert_element_type")
def _to(b: AtenNet, x: Any, *_: Any, **__: Any) -> Value:
    return b.out(x, b.dtype())


# reductions


_REDUCE = {name: name for name in ("sum", "mean", "prod", "amax", "amin")} | {"max": "amax", "min": "amin"}


@rule(
    "sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "prod.dim_int", "amax", "amin",
    "max.default", "min.default",
)  # fmt: skip
def _reduce(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Value:
    axes, value = _axes(b, x, dims), b.out(x, b.dtype())
    return b.emit.call(_REDUCE[b.name], value, b.emit.ints(axes), keepdim=keepdim) if axes else value


@rule("var.correction", "var_mean.correction")
def _variance(b: AtenNet, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    axes, value, dtype = _axes(b, x, dims), b.out(x), b.dtype(x)
    over = b.emit.ints(axes)
    mean = b.emit.call("mean", value, over, keepdim=True)
    away = b.emit.call("sub", value, mean)
    total = b.emit.call("sum", b.emit.call("mul", away, away), over, keepdim=keepdim)
    count: Any = 1
    for d in dims or range(len(b.shape(x))):
        count = count * b.shape(x)[d]
    variance = b.emit.call("div", total, b.number(torch.sym_max(count - (correction or 0), 0), dtype))
    if b.name == "var":
        return variance
    return variance, mean if keepdim else b.emit.squeeze(mean, *axes)


@rule("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _truth(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
    axes, value = _axes(b, x, dims), b.out(x, torch.bool)
    if not axes:
        return value
    ones = b.emit.cast(value, torch.int32)
    most = b.emit.call("amax" if b.name == "any" else "amin", ones, b.emit.ints(axes), keepdim=keepdim)
    return b.emit.call("gt", most, b.emit.number(0, torch.int32))


def _axes(b: AtenNet, x: Any, dims: Any) -> list[int]:
    """The axes of dimensions; of all where none is named."""
    return [b.axis(x, d) for d in ([dims] if isinstance(dims, int) else dims or range(len(b.shape(x))))]


@rule("linalg_vector_norm")
def _norm(b: AtenNet, x: Any, order: float = 2, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    op = {2: "sum", 1: "sum", math.inf: "amax", -math.inf: "amin"}.get(order)
    if op is None:
        return NotImplemented
    value = b.out(x, b.dtype())
    parts = b.emit.call("mul", value, value) if order == 2 else b.emit.call("abs", value)
    total = b.emit.call(op, parts, b.emit.ints(_axes(b, x, dims)), keepdim=keepdim)
    return b.emit.call("sqrt", total) if order == 2 else total


@rule("max.dim", "min.dim")
def _top(b: AtenNet, x: Any, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _topk(b, x, dim, keepdim, b.name)


@rule("argmax", "argmin")
def _arg(b: AtenNet, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return NotImplemented
    return _topk(b, x, dim, keepdim, b.name.removeprefix("arg"))[1]


@rule("topk")
def _largest(b: AtenNet, x: Any, k: Any, dim: int = -1, largest: bool = True, *_: Any) -> Any:
    return b.emit.top(b.out(x), b.count(k), b.axis(x, dim), "max" if largest else "min")


def _topk(b: AtenNet, x: Any, dim: int, keepdim: bool, mode: str) -> tuple[Value, Value]:
    axis = b.axis(x, dim)
    values, places = b.emit.top(b.out(x), 1, axis, mode)
    return (values, places) if keepdim else (b.emit.squeeze(values, axis), b.emit.squeeze(places, axis))


@rule("cumsum")
def _cumsum(b: AtenNet, x: Any, dim: int, **_: Any) -> Value:
    return b.emit.call("cumsum", b.out(x, b.dtype()), b.emit.scalar(b.axis(x, dim)))


@rule("softmax.int", "_softmax", "log_softmax.int", "_log_softmax")
def _softmax(b: AtenNet, x: Any, dim: int, *_: Any, **__: Any) -> Value:
    return b.emit.call(b.name.removeprefix("_"), b.out(x, b.dtype()), axis=b.axis(x, dim))


@rule("layer_norm")
def _layer_norm(
    b: AtenNet, x: Any, size: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    rank = len(b.shape(x))
    axes = [b.axis(x, d) for d in range(rank - len(size), rank)]
    sizes = tuple(size) if all(isinstance(s, int) for s in size) else ()
    out = b.emit.call("normalize", b.out(x), b.emit.ints(axes), eps=float(eps), sizes=sizes)
    if weight is not None:
        out = b.emit.call("mul", out, b.out(weight))
    return out if bias is None else b.emit.call("add", out, b.out(bias))


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
    product = b.emit.call("mul", b.out(x), b.emit.tensor(scale.detach().reshape(shape)))
    return b.emit.call("add", product, b.emit.tensor(shift.detach().reshape(shape)))


# products


def matmul(b: AtenNet, x: Value, y: Value, *, transposed: int = 0) -> Value:
    """x @ y, or x @ y^T for a y of `transposed` dimensions."""
    return b.emit.call("matmul", x, y, transposed=transposed)


@rule("mm", "bmm", "matmul", "mv", "dot")
def _matmul(b: AtenNet, x: Any, y: Any) -> Any:
    if b.is_ragged(y) or (b.is_ragged(x) and len(b.shape(y)) > 2):
        raise b.refuse("it mixes rows of ragged sequences")
    return matmul(b, b.out(x), b.out(y))


@rule("linear")
def _linear(b: AtenNet, x: Any, weight: Any, bias: Any = None) -> Value:
    out = matmul(b, b.out(x), b.out(weight), transposed=len(b.shape(weight)))
    return out if bias is None else b.emit.call("add", out, b.out(bias))


@rule("addmm", "baddbmm")
def _addmm(b: AtenNet, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    return b.emit.call("add", matmul(b, b.out(x), b.out(y)), b.out(bias))


def _each(v: Any, count: int) -> list[int]:
    """A number for each axis of space, of one or of all."""
    v = [v] if isinstance(v, int) else list(v)
    return v * count if len(v) == 1 else v


@rule("conv1d", "conv2d")
def _conv(
    b: AtenNet, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    dilation: Any = (1,), groups: int = 1,
) -> Any:  # fmt: skip
    spatial = len(b.shape(weight)) - 2
    if b.is_ragged(x) or len(b.shape(x)) != spatial + 2:
        return NotImplemented

    def each(v: Any) -> list[int]:
        return _each(v, spatial)

    if isinstance(padding, str):
        total = [0] * spatial
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(each(dilation), b.shape(weight)[2:], strict=True)]
        begin = [size // 2 for size in total]
        end = [size - front for size, front in zip(total, begin, strict=True)]
    else:
        begin = end = each(padding)
    out = b.emit.call(
        "conv", b.out(x), b.out(weight), strides=each(stride), dilations=each(dilation), pads_begin=begin,
        pads_end=end, groups=groups, kernel=b.shape(weight),
    )  # fmt: skip
    if bias is None:
        return out
    return b.emit.call("add", out, b.emit.reshape(b.out(bias), [1, -1, *[1] * spatial]))


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    b: AtenNet, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    several, users = b.name.endswith("_with_indices"), b.node.users if b.node is not None else ()
    if several and any(user.args[1] for user in users):  # the indices are read
        return NotImplemented
    out = _pooled(b, "max_pool", x, kernel, stride, padding, dilation, ceil)
    return (out,) if several and out is not NotImplemented else out


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _mean_pool(
    b: AtenNet, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    with_padding: bool = True, divisor: int | None = None,
) -> Any:  # fmt: skip
    if divisor is not None:
        return NotImplemented
    return _pooled(b, "mean_pool", x, kernel, stride, padding, 1, ceil, with_padding=bool(with_padding))


def _pooled(
    b: AtenNet, op: str, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    **more: bool,
) -> Any:  # fmt: skip
    count = int(b.name.split("_pool")[1][0])
    if ceil or b.is_ragged(x) or len(b.shape(x)) != count + 2:
        return NotImplemented
    kernel = _each(kernel, count)
    return b.emit.call(
        op, b.out(x), kernel=kernel, strides=_each(stride, count) or kernel,
        dilations=_each(dilation, count), pads=_each(padding, count), **more,
    )  # fmt: skip


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _whole_mean(b: AtenNet, x: Any, sizes: Any) -> Any:
    if b.is_ragged(x) or any(size != 1 for size in _each(sizes, 1)):
        return NotImplemented
    rank = len(b.shape(x))
    count = int(b.name.split("_pool")[1][0])
    return b.emit.call("mean", b.out(x), b.emit.ints([*range(rank - count, rank)]), keepdim=True)


@rule("scaled_dot_product_attention")
def _attention(
    b: AtenNet, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    width = b.shape(q)[-1]
    if dropout or enable_gqa or not isinstance(width, int) or any(map(b.is_ragged, (q, k, v))):
        return NotImplemented
    factor = 1 / math.sqrt(width) if scale is None else scale
    query = b.emit.call("mul", b.out(q), b.out(factor, b.dtype()))
    scores = matmul(b, query, b.out(k), transposed=len(b.shape(k)))
    seen = None
    if causal:
        rows, columns = (b.emit.range(b.emit.squeeze(b.size(b.shape(of)[-2]), 0)) for of in (q, k))
        seen = b.emit.call("le", b.emit.unsqueeze(columns, 0), b.emit.unsqueeze(rows, 1))
    elif mask is not None and b.dtype(mask) == torch.bool:
        seen = b.out(mask)
    elif mask is not None:
        scores = b.emit.call("add", scores, b.out(mask))
    if seen is not None:
        scores = b.emit.call("where", seen, scores, b.emit.number(-math.inf, b.dtype()))
    return matmul(b, b.emit.call("softmax", scores, axis=len(b.shape(q)) - 1), b.out(v))
