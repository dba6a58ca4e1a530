"""Ops element by element that no format has, of ops that every format has.

They keep the digits that torch keeps, and give what torch gives at zeros of either sign, infinities and NaN.
What is not chosen is finite where it can be, so that gradients of a model that is read are, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .graph import Value
from .nodes import I64, Nodes

MADE_OF: dict[str, Callable[..., Value]] = {}


def _made(fn: Callable[..., Value]) -> Callable[..., Value]:
    MADE_OF[fn.__name__.strip("_")] = fn
    return fn


def _number(emit: Nodes, value: float, like: Value) -> Value:
    return emit.number(value, emit.graph.dtype(like))


@_made
def _reciprocal(emit: Nodes, x: Value) -> Value:
    return emit.call("div", _number(emit, 1.0, x), x)


@_made
def _rsqrt(emit: Nodes, x: Value) -> Value:
    return _reciprocal(emit, emit.call("sqrt", x))


@_made
def _trunc(emit: Nodes, x: Value) -> Value:
    return emit.call("mul", emit.call("sign", x), emit.call("floor", emit.call("abs", x)))


@_made
def _sign(emit: Nodes, x: Value) -> Value:
    """Files have it that of what is no number, torch 0."""
    signs = emit.call("sign", x)
    if not emit.graph.dtype(x).is_floating_point:
        return signs
    return emit.call("where", emit.call("eq", x, x), signs, _number(emit, 0.0, x))


@_made
def _exp2(emit: Nodes, x: Value) -> Value:
    return emit.call("pow", _number(emit, 2.0, x), x)


@_made
def _log2(emit: Nodes, x: Value) -> Value:
    return emit.call("div", emit.call("log", x), _number(emit, math.log(2), x))


@_made
def _log10(emit: Nodes, x: Value) -> Value:
    return emit.call("div", emit.call("log", x), _number(emit, math.log(10), x))


def _near_zero(emit: Nodes, x: Value) -> tuple[Value, Value]:
    """Where x is small, and x there, else zero."""
    near = emit.call("lt", emit.call("abs", x), _number(emit, 0.5, x))
    return near, emit.call("where", near, x, _number(emit, 0.0, x))


@_made
def _expm1(emit: Nodes, x: Value) -> Value:
    """By the tangent of half of x, of which nothing cancels."""
    half = emit.call("tanh", emit.call("mul", x, _number(emit, 0.5, x)))
    return emit.call("mul", half, emit.call("add", emit.call("exp", x), _number(emit, 1.0, x)))


@_made
def _log1p(emit: Nodes, x: Value) -> Value:
    """By x / (x + 2), whose inverse tangent is half of it, where a sum would lose the digits of x."""
    near, small = _near_zero(emit, x)
    part = emit.call("div", small, emit.call("add", small, _number(emit, 2.0, x)))
    half = emit.call("atanh", part)
    far = emit.call("log", emit.call("add", x, _number(emit, 1.0, x)))
    return emit.call("where", near, emit.call("add", half, half), far)


@_made
def _erfc(emit: Nodes, x: Value) -> Value:
    """t exp(p(t) - z^2) for t = 2 / (2 + z) and a polynomial p, z the size of x: nothing cancels."""
    wide = emit.graph.dtype(x) == torch.float64
    size, most = emit.call("abs", x), _number(emit, 40.0, x)  # of which it is 0
    size = emit.call("where", emit.call("gt", size, most), most, size)
    t = emit.call("div", _number(emit, 2.0, x), emit.call("add", size, _number(emit, 2.0, x)))
    u = emit.call("sub", emit.call("add", t, t), _number(emit, 1.0, x))  # from -1 to 1
    last, before, both = _number(emit, 0.0, x), _number(emit, 0.0, x), emit.call("add", u, u)
    first, *others = _tail(28 if wide else 12)
    for factor in reversed(others):  # of Chebyshev's polynomials, by Clenshaw
        once = emit.call("sub", emit.call("mul", both, last), before)
        last, before = emit.call("add", once, _number(emit, factor, x)), last
    series = emit.call("sub", emit.call("mul", u, last), before)
    series = emit.call("add", series, _number(emit, first, x))
    steps = _number(emit, 16.0, x)  # z^2 is large: a part of it without rounding
    near = emit.call("div", emit.call("floor", emit.call("mul", size, steps)), steps)
    rest = emit.call("mul", emit.call("sub", size, near), emit.call("add", size, near))
    out = emit.call("mul", t, emit.call("exp", emit.call("sub", series, rest)))
    out = emit.call("mul", out, emit.call("exp", emit.call("neg", emit.call("mul", near, near))))
    other = emit.call("sub", _number(emit, 2.0, x), out)
    return emit.call("where", emit.call("lt", x, _number(emit, 0.0, x)), other, out)


def _tail(degree: int) -> list[float]:
    """Of log(erfc(z) exp(z^2) / t), as a series in 2 t - 1."""

    def of(u: np.ndarray) -> Any:
        t = torch.from_numpy((u + 1) / 2)
        return (torch.special.erfcx(2 / t - 2) / t).log().numpy()

    return np.polynomial.chebyshev.chebinterpolate(of, degree).tolist()


@_made
def _signbit(emit: Nodes, x: Value) -> Value:
    """Below zero, or the zero whose reciprocal is."""
    zero = emit.number(0, emit.graph.dtype(x))
    below = emit.call("lt", x, zero)
    if not emit.graph.dtype(x).is_floating_point:
        return below
    turned = emit.call("lt", _reciprocal(emit, x), zero)
    return emit.call("or", below, emit.call("and", emit.call("eq", x, zero), turned))


def _signed(emit: Nodes, size: Value, like: Value) -> Value:
    return emit.call("where", _signbit(emit, like), emit.call("neg", size), size)


@_made
def _copysign(emit: Nodes, x: Value, y: Value) -> Value:
    return _signed(emit, emit.call("abs", x), y)


@_made
def _ldexp(emit: Nodes, x: Value, y: Value) -> Value:
    return emit.call("mul", x, _exp2(emit, y))


def _ratio(emit: Nodes, x: Value, y: Value) -> tuple[Value, Value]:
    """The larger of the sizes of two numbers, and the other one by it: 0 of zeros, 1 of infinities."""
    sizes = [emit.call("abs", v) for v in (x, y)]
    large, small = emit.call("maximum", *sizes), emit.call("minimum", *sizes)
    zero, one = _number(emit, 0.0, x), _number(emit, 1.0, x)
    some = emit.call("where", emit.call("eq", large, zero), one, large)
    ratio = emit.call("div", small, some)
    both = emit.call("and", emit.call("eq", small, large), emit.call("ne", large, zero))
    return large, emit.call("where", both, one, ratio)


def _or_nan(emit: Nodes, made: Value, x: Value, y: Value) -> Value:
    """What was made, of numbers: a runtime need not hand on that one of two is none."""
    known = emit.call("and", emit.call("eq", x, x), emit.call("eq", y, y))
    return emit.call("where", known, made, emit.call("add", x, y))


@_made
def _atan2(emit: Nodes, y: Value, x: Value) -> Value:
    angle = emit.call("atan", _ratio(emit, x, y)[1])
    steep = emit.call("gt", emit.call("abs", y), emit.call("abs", x))
    turned = emit.call("sub", _number(emit, math.pi / 2, x), angle)
    angle = emit.call("where", steep, turned, angle)
    back = emit.call("sub", _number(emit, math.pi, x), angle)
    angle = emit.call("where", _signbit(emit, x), back, angle)
    return _or_nan(emit, _signed(emit, angle, y), x, y)


@_made
def _hypot(emit: Nodes, x: Value, y: Value) -> Value:
    large, ratio = _ratio(emit, x, y)
    one, inf = _number(emit, 1.0, x), _number(emit, math.inf, x)
    root = emit.call("sqrt", emit.call("add", one, emit.call("mul", ratio, ratio)))
    known = _or_nan(emit, emit.call("mul", large, root), x, y)
    ends = [emit.call("eq", emit.call("abs", v), inf) for v in (x, y)]
    return emit.call("where", emit.call("or", *ends), inf, known)


def _within(emit: Nodes, by: Value, bits: int) -> tuple[Value, Value]:
    """A number of bits, 0 where it is less than none or so many; and where it is."""
    none = _number(emit, 0, by)
    gone = emit.call("or", emit.call("lt", by, none), emit.call("ge", by, _number(emit, bits, by)))
    return emit.call("where", gone, none, by), gone


@_made
def _bitwise_left_shift(emit: Nodes, x: Value, by: Value) -> Value:
    dtype = emit.graph.dtype(x)
    by, gone = _within(emit, by, torch.iinfo(dtype).bits)
    return emit.call("where", gone, _number(emit, 0, x), emit.call("mul", x, _power_of_two(emit, by, dtype)))


@_made
def _bitwise_right_shift(emit: Nodes, x: Value, by: Value) -> Value:
    ends, none = torch.iinfo(emit.graph.dtype(x)), _number(emit, 0, x)
    by, gone = _within(emit, by, ends.bits - (ends.min < 0))
    sign = none if not ends.min else emit.call("where", emit.call("lt", x, none), _number(emit, -1, x), none)
    return emit.call("where", gone, sign, emit.call("bitwise_right_shift", x, by))


def _power_of_two(emit: Nodes, by: Value, dtype: torch.dtype) -> Value:
    """2 to a number of bits of a type of whole numbers."""
    powers = 2 ** torch.arange(torch.iinfo(dtype).bits, dtype=dtype)
    index = emit.call("cast", by, dtype=I64)
    return emit.call("take", emit.graph.constant(powers), index, emit.number(0, I64), batch_dims=0)
