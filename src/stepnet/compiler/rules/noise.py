"""Aten calls that draw noise: all of it is uniform or normal noise, drawn for all steps before the loop."""

from __future__ import annotations

import math
from typing import Any

from stepnet.errors import Unsupported
from stepnet.ir.ops import FLOATS

from .builder import Builder, Ref, rule, rules


def _drawn(b: Builder, op: str, dtype: str | None = None) -> Ref:
    """Noise as large as the result at hand."""
    at, times, own = b.shown()
    if at is None or (times != 1 and at):
        raise Unsupported(
            "noise that is shared by all rows of a step cannot be drawn for all steps",
            remedy="torch.randn_like(h) or torch.rand(x.shape[0], ...): a number for each row",
            line=b.line,
        )
    lead = () if times == 1 else (times,)
    return Ref(b.emit(op, (), (*lead, *own), dtype or b.meta_dtype(), "row"), at, len(lead))


def _noise(op: str, b: Builder, *_: Any, **__: Any) -> Ref:
    found = _drawn(b, op)
    return b.result(found.name, found.bdim, found.fold)


rules(_noise, {"rand": "rand", "rand_like": "rand", "randn": "randn", "randn_like": "randn"})


@rule("normal_functional")
def _normal(b: Builder, x: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
    return _scaled(b, _noise("randn", b), mean, std)


@rule("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float")
def _normal_of(b: Builder, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> Any:
    return _scaled(b, _noise("randn", b), mean, std)


@rule("uniform")
def _uniform(b: Builder, x: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    return _scaled(b, _noise("rand", b), low, high - low)


def _scaled(b: Builder, noise: Ref, shift: Any, scale: Any) -> Any:
    wide = noise if scale == 1 else b.pointwise("mul", [noise, scale])
    return wide if isinstance(shift, (int, float)) and shift == 0 else b.pointwise("add", [wide, shift])


@rule("exponential")
def _exponential(b: Builder, x: Any, rate: float = 1.0, **_: Any) -> Any:
    waited = _waiting(b, _noise("rand", b))
    return waited if rate == 1 else b.pointwise("div", [waited, rate])


def _waiting(b: Builder, noise: Ref) -> Ref:
    """Exponential noise of uniform noise, which may be 0 and is never 1."""
    log = b.like(noise.name, "log1p", b.like(noise.name, "neg", noise.name))
    return Ref(b.like(log, "neg", log), noise.bdim, noise.fold)


@rule("log_normal")
def _log_normal(b: Builder, x: Any, mean: float = 1.0, std: float = 2.0, **_: Any) -> Any:
    return b.pointwise("exp", [_scaled(b, _noise("randn", b), mean, std)])


@rule("cauchy")
def _cauchy(b: Builder, x: Any, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Any:
    turn = _scaled(b, _noise("rand", b), -math.pi / 2, math.pi)
    return _scaled(b, b.pointwise("tan", [turn]), median, sigma)


@rule("geometric")
def _geometric(b: Builder, x: Any, p: float, **_: Any) -> Any:
    """How many tries it takes: by the logarithm of what is left, whose whole part is one less."""
    if not 0 < p < 1 or b.meta_dtype() not in FLOATS:
        return NotImplemented
    tries = b.pointwise("div", [_waiting(b, _noise("rand", b)), -math.log1p(-p)])
    return b.pointwise("add", [b.pointwise("floor", [tries]), 1])


@rule("randint.default", "randint_like.default")
def _randint(b: Builder, first: Any, *args: Any, **__: Any) -> Any:
    return _whole_numbers(b, 0, args[0] if isinstance(first, Ref) else first)


@rule("randint.low", "randint_like.low_dtype")
def _randint_low(b: Builder, first: Any, *args: Any, **__: Any) -> Any:
    low, high = args[:2] if isinstance(first, Ref) else (first, args[0])
    return _whole_numbers(b, low, high)


def _whole_numbers(b: Builder, low: int, high: int) -> Any:
    noise = _drawn(b, "rand", dtype="float64")
    name = b.like(noise.name, "mul", noise.name, high - low)
    name = b.like(name, "add", name, low)
    whole = Ref(b.like(name, "floor", name), noise.bdim, noise.fold)
    return b.result(b.cast(whole, b.meta_dtype()).name, noise.bdim, noise.fold)


@rule("bernoulli.p", "bernoulli.default")
def _bernoulli(b: Builder, x: Ref, p: Any = None, **_: Any) -> Any:
    noise = _noise("rand", b)
    dtype, shape = b.values[noise.name].dtype, b.values[noise.name].shape
    name = b.operand(x if p is None else p, dtype, noise.bdim)
    hit = b.emit("lt", (noise.name, name), shape, "bool", "row")
    return b.cast(Ref(hit, noise.bdim, noise.fold), b.meta_dtype())


@rule("multinomial")
def _multinomial(b: Builder, p: Ref, count: int, replacement: bool = False, **_: Any) -> Any:
    """Where what the odds are, over exponential noise, is largest; -1 for odds that are none, which torch
    refuses."""
    if b.values[p.name].dtype not in FLOATS:
        return NotImplemented
    p = p if b.values[p.name].dtype == "float64" else b.cast(p, "float32")
    value = b.values[p.name]
    *outer, n = value.shape or (0,)
    if p.bdim != 0 or p.fold != len(outer):
        return NotImplemented
    own, dtype = len(outer), value.dtype
    again = replacement and count > 1
    shape = (*outer, count, n) if again else (*outer, n)
    rate = _waiting(b, Ref(b.emit("rand", (), shape, dtype, "row"), 0))
    odds = b.reshape(p.name, (*outer, 1, n)) if again else p.name
    race = b.emit("div", (odds, rate.name), shape, dtype)
    if again or count == 1:
        last = len(shape) - 1
        index = b.emit("argmax", (race,), (*shape[:-1], 1), "int64", dim=last)
        index = b.reshape(index, (*outer, count))
    else:
        index = b.emit("topk", (race,), (*outer, count), "int64", dim=own, largest=True, sorted=True)
    # a sum of odds that is a number above 0, and none of them below
    total = b.emit("sum", (p.name,), (*outer, 1), dtype, dims=(own,))
    fair = b.like(total, "gt", total, 0, dtype="bool")
    finite = b.like(total, "lt", total, float("inf"), dtype="bool")
    least = b.emit("amin", (p.name,), (*outer, 1), dtype, dims=(own,))
    right = b.like(least, "ge", least, 0, dtype="bool")
    for other in (fair, finite):
        right = b.like(right, "and", right, other)
    index = b.emit("where", (right, index, b.full(-1, (), "int64")), (*outer, count), "int64")
    return b.result(index, 0, p.fold)
