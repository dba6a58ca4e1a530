"""Aten calls that compute: element by element, reductions, products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from stepnet.compiler.rules.torch_names import COMPARE, LOGIC, SHIFTS, UNARY, stand_in_for

from .aten import AtenNet, is_size, rule
from .graph import Value

_MORE = [
    "hardswish", "mish", "sinh", "cosh", "tan", "atan", "asin", "acos", "silu", "hardsigmoid", "asinh",
    "acosh", "atanh", "exp2", "log2", "log10", "erfc",
]  # fmt: skip
_UNARY = UNARY | dict(zip(_MORE, _MORE, strict=True))
_LOGIC = LOGIC | {f"__{op}__": op for op in ("and", "or", "xor")}  # operators of Python
_BINARY = ("mul", "maximum", "minimum", "pow", "remainder", "fmod")
_OF_TRUTHS = {"mul": "and", "minimum": "and", "maximum": "or"}


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
        return two(b, _OF_TRUTHS[b.name], x, y) if b.name in _OF_TRUTHS else NotImplemented
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
        return two(b, "or", x, y) if alpha == 1 else NotImplemented
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


@rule("isnan")
def _isnan(b: AtenNet, x: Any) -> Value:
    return b.emit.call("isnan", b.out(x, _of_reals(b, x)))


def _of_reals(b: AtenNet, x: Any) -> torch.dtype:
    """The dtype of a tensor, or one that whole numbers fit in."""
    return b.dtype(x) if b.dtype(x).is_floating_point else torch.float64


@rule("round.default")
def _whole(b: AtenNet, x: Any) -> Value:
    return b.emit.pointwise("round", b.out(x))


@rule("round.decimals")
def _rounded(b: AtenNet, x: Any, *, decimals: int = 0) -> Value:
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    scale = b.emit.number(10.0 ** abs(decimals), b.dtype())
    return b.emit.call(back, b.emit.call("round", b.emit.call(there, b.out(x), scale)), scale)


@rule("isinf")
def _isinf(b: AtenNet, x: Any) -> Value:
    dtype = _of_reals(b, x)
    return b.emit.call("eq", b.emit.call("abs", b.out(x, dtype)), b.emit.number(math.inf, dtype))


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
    shape = [1] * min(len(b.shape(x)), 1)
    return b.emit.call("prelu", b.out(x), b.emit.tensor(torch.full(shape, slope, dtype=b.dtype())))


@rule("elu")
def _elu(b: AtenNet, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale != 1:
        return NotImplemented
    out = b.emit.call("elu", b.out(x), alpha=float(alpha))
    return out if scale == 1 else b.emit.call("mul", out, b.out(float(scale), b.dtype()))


@rule("softplus")
def _softplus(b: AtenNet, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    own, scale = b.out(x), b.emit.number(float(beta), b.dtype())
    scaled = own if beta == 1 else b.emit.call("mul", own, scale)
    out = b.emit.call("softplus", scaled)
    out = out if beta == 1 else b.emit.call("div", out, scale)
    if threshold >= 20:  # above it they are the same
        return out
    return b.emit.call("where", b.emit.call("gt", scaled, b.emit.number(threshold, b.dtype())), own, out)


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
    "sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "prod.dim_int", "prod.default", "amax",
    "amin", "max.default", "min.default",
)  # fmt: skip
def _reduce(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Value:
    if b.dtype() == torch.bool:
        return _truth(b, x, dims, keepdim)
    axes, value = _axes(b, x, dims), b.out(x, b.dtype())
    return b.emit.call(_REDUCE[b.name], value, b.emit.ints(axes), keepdim=keepdim) if axes else value


@rule("var.correction", "var_mean.correction")
def _variance(b: AtenNet, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    axes, value, dtype = _axes(b, x, dims), b.out(x), b.dtype(x)
    over = b.emit.ints(axes)
    mean = b.emit.call("mean", value, over, keepdim=True)
    away = b.emit.call("sub", value, mean)
    total = b.emit.call("sum", b.emit.call("mul", away, away), over, keepdim=keepdim)
    sizes = [b.size(b.shape(x)[d]) for d in dims or range(len(b.shape(x)))]
    count = b.emit.cast(reduce(lambda n, size: b.emit.call("mul", n, size), sizes), dtype)
    left = b.emit.call("sub", b.emit.squeeze(count, 0), b.emit.number(correction or 0, dtype))
    variance = b.emit.call("div", total, b.emit.call("maximum", left, b.emit.number(0, dtype)))
    if b.name == "var":
        return variance
    return variance, mean if keepdim else b.emit.squeeze(mean, *axes)


@rule("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _truth(b: AtenNet, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
    axes, value = _axes(b, x, dims), b.out(x, torch.bool)
    if not axes:
        return value
    ones = b.emit.cast(value, torch.int32)
    op = {"any": "amax", "all": "amin"}.get(b.name) or _REDUCE[b.name]
    most = b.emit.call(op, ones, b.emit.ints(axes), keepdim=keepdim)
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
        if b.is_ragged(x):
            return NotImplemented
        place = b.emit.top(b.emit.reshape(b.out(x), [-1]), 1, 0, b.name.removeprefix("arg"))[1]
        return b.emit.reshape_to(place, b.emit.ints([1] * len(b.shape())))
    return _topk(b, x, dim, keepdim, b.name.removeprefix("arg"))[1]


@rule("topk")
def _largest(b: AtenNet, x: Any, k: Any, dim: int = -1, largest: bool = True, *_: Any) -> Any:
    return b.emit.top(b.out(x), b.count(k), b.axis(x, dim), "max" if largest else "min")


def _topk(b: AtenNet, x: Any, dim: int, keepdim: bool, mode: str) -> tuple[Value, Value]:
    axis = b.axis(x, dim)
    values, places = b.emit.top(b.out(x), 1, axis, mode)
    return (values, places) if keepdim else (b.emit.squeeze(values, axis), b.emit.squeeze(places, axis))


@rule("_unique2", "unique_dim")
def _unique(b: AtenNet, x: Any, *said: Any, **_: Any) -> Any:
    """What is distinct, in order, which one each is, and how often each is there."""
    if b.is_ragged(x):
        return NotImplemented
    if (why := b.emit.graph.target.refused.get(b.name)) is not None:
        raise b.refuse(why)
    along = (b.emit.scalar(b.axis(x, said[0])),) if b.name == "unique_dim" else ()
    value = b.out(x)
    kinds = (b.emit.graph.dtype(value), torch.int64, torch.int64, torch.int64)
    values, _first, places, counts = b.emit.graph.node("unique", (value, *along), kinds)
    if not along:
        places = b.emit.reshape_to(places, b.emit.shape(value))
    return values, places, counts


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


@rule("cdist")
def _distances(b: AtenNet, x: Any, y: Any, p: float = 2.0, *_: Any) -> Any:
    rank = len(b.shape(x))
    if p not in (1, 2) or any(map(b.is_ragged, (x, y))) or len(b.shape(y)) != rank:
        return NotImplemented
    apart = b.emit.call("sub", b.emit.unsqueeze(b.out(x), rank - 1), b.emit.unsqueeze(b.out(y), rank - 2))
    parts = b.emit.call("mul", apart, apart) if p == 2 else b.emit.call("abs", apart)
    total = b.emit.call("sum", parts, b.emit.ints([rank]), keepdim=False)
    return b.emit.call("sqrt", total) if p == 2 else total


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


@rule("bilinear")
def _bilinear(b: AtenNet, x: Any, y: Any, weight: Any, bias: Any = None) -> Value:
    rank = len(b.shape(x)) + b.is_ragged(x)
    rows = matmul(b, b.emit.unsqueeze(b.out(x), rank - 1, rank), b.out(weight))
    both = b.emit.call("mul", rows, b.emit.unsqueeze(b.out(y), rank - 1, rank))
    out = b.emit.call("sum", both, b.emit.ints([rank, rank + 1]), keepdim=False)
    return out if bias is None else b.emit.call("add", out, b.out(bias))


@rule("addmm", "baddbmm")
def _addmm(b: AtenNet, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    made = matmul(b, b.out(x), b.out(y))
    if alpha != 1:
        made = b.emit.call("mul", made, b.out(alpha, b.dtype()))
    if beta == 0:  # not even its nan counts
        return made
    value = b.out(bias) if beta == 1 else b.emit.call("mul", b.out(bias), b.out(beta, b.dtype()))
    return b.emit.call("add", made, value)


@rule("scaled_dot_product_attention")
def _attention(
    b: AtenNet, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    width = b.shape(q)[-1]
    if dropout or any(map(b.is_ragged, (q, k, v))):
        return NotImplemented
    if scale is None and not isinstance(width, int):
        query = b.emit.call("div", b.out(q), b.emit.call("sqrt", b.number(width, b.dtype())))
    else:
        factor = 1 / math.sqrt(width) if scale is None else scale
        query = b.emit.call("mul", b.out(q), b.out(factor, b.dtype()))
    keys, values = (_for_each_head(b, x, b.shape(q)[-3]) if enable_gqa else b.out(x) for x in (k, v))
    scores = matmul(b, query, keys, transposed=len(b.shape(k)))
    seen = None
    if causal:
        rows, columns = (b.emit.range(b.emit.squeeze(b.size(b.shape(of)[-2]), 0)) for of in (q, k))
        seen = b.emit.call("le", b.emit.unsqueeze(columns, 0), b.emit.unsqueeze(rows, 1))
    elif mask is not None and b.dtype(mask) == torch.bool:
        seen = b.out(mask)
    elif mask is not None:
        scores = b.emit.call("add", scores, b.out(mask))
    least = b.emit.number(-math.inf, b.dtype())
    if seen is not None:
        scores = b.emit.call("where", seen, scores, least)
    shares = b.emit.call("softmax", scores, axis=len(b.shape(q)) - 1)
    if mask is not None and not _each_sees(b, mask):  # what sees nothing is zero, and not nan
        seen = b.emit.call("gt", b.out(mask), least) if seen is None else seen
        shares = b.emit.call("where", seen, shares, b.emit.number(0.0, b.dtype()))
    return matmul(b, shares, values)


def _each_sees(b: AtenNet, mask: Any) -> bool:
    """Whether each row of a mask is known to leave something to be seen."""
    if not b.is_constant(mask):
        return False
    known = b.constant(mask)
    return bool((known if known.dtype == torch.bool else known > -math.inf).any(-1).all())


def _for_each_head(b: AtenNet, x: Any, heads: int) -> Value:
    """Keys or values of few heads, those of each as often as queries share it."""
    rank, few = len(b.shape(x)), b.shape(x)[-3]
    each = b.emit.broadcast(b.emit.unsqueeze(b.out(x), rank - 2), b.emit.ints([heads // few, 1, 1]))
    return b.emit.reshape(each, [*[0] * (rank - 3), heads, -1, b.shape(x)[-1]])
