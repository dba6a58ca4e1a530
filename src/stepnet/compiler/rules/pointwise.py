"""Aten calls that work element by element."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from stepnet.data.dtypes import dtype_name, dtype_of
from stepnet.errors import Unsupported
from stepnet.ir.agreement import INTEGERS
from stepnet.ir.ops import FLOATS, ROUNDED

from .builder import BATCH, Builder, Ref, rule, rules
from .torch_names import COMPARE, LOGIC, RARE, SHIFTS, UNARY, stand_in_for


def _one_op(op: str, b: Builder, *operands: Any) -> Any:
    return b.pointwise(op, list(operands))


_OF_TWO = ("maximum", "minimum", "remainder", "atan2", "floor_divide")
rules(_one_op, {**UNARY, **RARE, "round.default": "round", **dict(zip(_OF_TWO, _OF_TWO, strict=True))})


def _promoted(b: Builder, x: Any, y: Any) -> str:
    """The dtype two operands are compared in, by torch's promotion."""

    def stand_in(o: Any) -> Any:
        if not isinstance(o, Ref):
            return o
        value = b.values[o.name]
        rank = len(value.shape) + (o.bdim is not None)
        return stand_in_for(dtype_of(value.dtype), rank)

    return dtype_name(torch.result_type(stand_in(x), stand_in(y)))


def _comparison(op: str, b: Builder, x: Any, y: Any) -> Any:
    return b.pointwise(op, [x, y], _promoted(b, x, y))


def _logic(target: str, b: Builder, x: Any, y: Any) -> Any:
    if target.startswith("bitwise") and b.meta_dtype() != "bool":
        return b.pointwise(target, [x, y])
    return b.pointwise(LOGIC[target], [x, y], "bool")


rules(_comparison, COMPARE)
rules(_logic, {target: target for target in LOGIC})


def _of_kind(how: tuple[str, Any], b: Builder, x: Any, y: Any) -> Any:
    op, dtypes = how
    return b.pointwise(op, [x, y]) if b.meta_dtype() in dtypes else NotImplemented


_OF_FLOATS = {"hypot": "hypot", "fmod": "fmod", "copysign.Tensor": "copysign", "copysign.Scalar": "copysign"}
rules(_of_kind, {target: (op, INTEGERS) for target, op in SHIFTS.items()})
rules(_of_kind, {target: (op, FLOATS) for target, op in _OF_FLOATS.items()})


@rule("bitwise_not")
def _bitwise_not(b: Builder, x: Ref) -> Any:
    return _not(b, x) if b.meta_dtype() == "bool" else b.pointwise("bitwise_not", [x])


@rule("logical_not")
def _not(b: Builder, x: Ref) -> Any:
    if b.meta_dtype() != "bool":
        return NotImplemented
    own = b.values[x.name].dtype
    return b.pointwise("not", [x], "bool") if own == "bool" else b.pointwise("eq", [x, 0], own)


@rule("isnan")
def _isnan(b: Builder, x: Ref) -> Any:
    return b.pointwise("isnan", [x], b.values[x.name].dtype)


@rule("isinf")
def _isinf(b: Builder, x: Ref) -> Any:
    if b.values[x.name].dtype not in FLOATS:
        return NotImplemented
    size = b.like(x.name, "abs", x.name)
    return b.result(b.like(x.name, "eq", size, math.inf, dtype="bool"), x.bdim, x.fold)


@rule("signbit")
def _signbit(b: Builder, x: Ref) -> Any:
    own = b.values[x.name].dtype
    if own not in FLOATS:
        return b.pointwise("lt", [x, 0], own)
    sign = b.like(x.name, "copysign", 1.0, x.name)
    return b.result(b.like(x.name, "lt", sign, 0, dtype="bool"), x.bdim, x.fold)


@rule("angle")
def _angle(b: Builder, x: Ref) -> Any:
    x = b.cast(x, b.meta_dtype())
    turned = b.like(x.name, "where", b.like(x.name, "lt", x.name, 0, dtype="bool"), math.pi, 0.0)
    missing = b.like(x.name, "isnan", x.name, dtype="bool")
    return b.result(b.like(x.name, "where", missing, x.name, turned), x.bdim, x.fold)


@rule("ldexp")
def _ldexp(b: Builder, x: Ref, power: Ref) -> Any:
    if b.values[power.name].dtype not in FLOATS:
        return NotImplemented
    return b.pointwise("mul", [x, b.pointwise("pow", [2.0, power])])


def _scaled(b: Builder, y: Any, alpha: Any) -> Any:
    if alpha == 1:
        return y
    if not isinstance(y, Ref):
        return y * alpha
    if isinstance(alpha, Ref):
        alpha = b.cast(alpha, b.values[y.name].dtype).name
    return Ref(b.like(y.name, "mul", y.name, alpha), y.bdim, y.fold)


def _sum(op: str, b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    if b.meta_dtype() == "bool":
        op = "or"  # torch subtracts no truth values
    return b.pointwise(op, [x, _scaled(b, y, alpha)])


rules(_sum, {"add": "add", "sub": "sub"})


@rule("rsub")
def _rsub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sum("sub", b, y, x, alpha)


def _slope(slope: Any, b: Builder, grad: Ref, y: Ref) -> Any:
    """The gradient of a function whose slope is known of what it gives."""
    y = b.cast(y, b.meta_dtype())
    return b.pointwise("mul", [grad, replace(y, name=slope(b, y.name))])


rules(_slope, {
    "sigmoid_backward": lambda b, y: b.like(y, "mul", y, b.like(y, "sub", 1, y)),
    "tanh_backward": lambda b, y: b.like(y, "sub", 1, b.like(y, "mul", y, y)),
})  # fmt: skip


@rule("mul")
def _mul(b: Builder, x: Any, y: Any) -> Any:
    if y is BATCH or x is BATCH:
        raise Unsupported("the step computes with the number of rows", line=b.line)
    if b.meta_dtype() == "bool":
        return b.pointwise("and", [x, y], "bool")
    return b.pointwise("mul", [x, y])


@rule("div.Tensor", "div.Scalar", "true_divide")
def _div(b: Builder, x: Any, y: Any) -> Any:
    if not isinstance(x, (Ref, int, float)) or not isinstance(y, (Ref, int, float)):
        raise Unsupported("the step divides by the number of rows (a mean over the batch)", line=b.line)
    return b.pointwise("div", [x, y])


def _bound(b: Builder, x: Ref, op: str, number: Any) -> Ref:
    """A number where x is beyond it. A choice, for maximum and minimum may turn -0.0 to 0.0."""
    x = b.cast(x, b.meta_dtype())
    beyond = b.like(x.name, "lt" if op == "maximum" else "gt", x.name, number, dtype="bool")
    return Ref(b.like(x.name, "where", beyond, number, x.name), x.bdim, x.fold)


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(b: Builder, x: Any, low: Any = None, high: Any = None) -> Any:
    out = x
    for op, limit in (("maximum", low), ("minimum", high)):
        if isinstance(limit, (int, float)) and limit == limit:
            out = _bound(b, out, op, limit)
        elif limit is not None:
            out = b.pointwise(op, [out, limit])
    return out


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


@rule("pow")
def _pow(b: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, (int, float)):
        if y == 1:
            return x
        if y in _ROOTS:
            return b.pointwise(_ROOTS[y], [x])
        if y in (2, 3, -2):
            square = b.pointwise("mul", [x, x])
            if y == 3:
                return b.pointwise("mul", [square, x])
            return square if y == 2 else b.pointwise("reciprocal", [square])  # 0 where it overflows, as torch
    return b.pointwise("pow", [x, y])


def _unless_nan(op: str, b: Builder, x: Any, y: Any) -> Any:
    """The other one where one is NaN."""
    most = b.pointwise(op, [x, y])
    if b.values[most.name].dtype not in FLOATS:
        return most
    for own, other in ((x, y), (y, x)):
        wide = b.widened(own)
        missing = b.like(most.name, "isnan", wide.name, dtype="bool")
        spare = b.widened(other)
        most = Ref(b.like(most.name, "where", missing, spare.name, most.name), most.bdim, most.fold)
    return most


rules(_unless_nan, {"fmax": "maximum", "fmin": "minimum"})


@rule("polygamma")
def _polygamma(b: Builder, n: int, x: Ref) -> Any:
    return b.pointwise(("digamma", "trigamma")[n], [x]) if n in (0, 1) else NotImplemented


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(b: Builder, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return b.pointwise("floor_divide", [x, y])
    if b.meta_dtype() not in FLOATS or (rounding_mode == "trunc" and b.meta_dtype() in ROUNDED):
        return NotImplemented  # of 16 bits torch truncates what it has not rounded
    quotient = _div(b, x, y)
    return quotient if rounding_mode is None else b.pointwise("trunc", [quotient])


@rule("round.decimals")
def _round_decimals(b: Builder, x: Ref, *, decimals: int) -> Any:
    if b.meta_dtype() not in FLOATS:
        return NotImplemented
    scale = float(10 ** abs(decimals))
    there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
    dtype = b.meta_dtype()
    x = b.cast(x, dtype)
    if dtype in ROUNDED:  # what is scaled has 16 bits, and no more of them are lost on the way
        x = replace(x, name=b.emit("cast", (x.name,), b.values[x.name].shape, "float32", written=1))
    scaled = b.like(x.name, "round", b.like(x.name, there, x.name, scale))
    return b.cast(replace(x, name=b.like(x.name, back, scaled, scale)), dtype)


@rule("where.self")
def _where(b: Builder, condition: Ref, x: Any, y: Any) -> Any:
    if b.values[condition.name].dtype != "bool":
        return NotImplemented
    (bdim, times, shape), dtype = b.shown(), b.meta_dtype()
    fold, lead = b.folded([r for r in (condition, x, y) if isinstance(r, Ref)], times)
    names = [b.operand(condition, "bool", bdim), *(b.operand(side, dtype, bdim) for side in (x, y))]
    return b.result(b.emit("where", names, (*lead, *shape), dtype), bdim, fold)


@rule("_to_copy", "convert_element_type")
def _to_copy(b: Builder, x: Any, dtype: Any = None, **rest: Any) -> Any:
    if not isinstance(x, Ref):  # a number that stands for a tensor
        return b.result(b.full(x, b.row_shape(b.meta.shape, None), b.meta_dtype()), None)
    return b.cast(x, b.meta_dtype())


@rule("conj", "_conj", "_conj_physical", "conj_physical")
def _conj(b: Builder, x: Ref) -> Any:
    return NotImplemented if b.meta_dtype().startswith("complex") else x


@rule("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "positive",
      "prims.copy_strided.default")  # fmt: skip
def _same(b: Builder, x: Ref, *_: Any, **rest: Any) -> Any:
    return x
