"""Complex numbers as pairs of real ones: a trace may hold them, a graph never does.

A traced complex tensor is two values of the graph, its real and its imaginary part. What moves elements does
so with both; arithmetic is written out as torch's kernels do it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from stepnet.errors import Unsupported

from .builder import RULES, Builder, Ref
from .known_parts import slice_feature


@dataclass(frozen=True)
class Pair:
    """A traced complex tensor: its parts, both with their rows at one place."""

    re: Ref
    im: Ref


class _Real(NamedTuple):
    """What a part of a traced complex tensor looks like."""

    shape: Sequence[Any]
    dtype: torch.dtype


_REAL: dict[torch.dtype, torch.dtype] = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_OF_BOTH = frozenset(
    """view reshape _unsafe_view _reshape_copy view_copy permute permute_copy t transpose expand expand_copy
    squeeze unsqueeze squeeze_copy unsqueeze_copy slice select split_with_sizes constant_pad_nd slice_scatter
    flip clone alias detach contiguous lift_fresh_copy lift_fresh positive gather index
    index_select index_put scatter_add sum mean cumsum neg copy diagonal diagonal_scatter unfold zeros_like
    new_zeros zeros empty_like new_empty empty empty_strided new_empty_strided""".split()  # noqa: SIM905
)
_SAME = frozenset({"resolve_conj", "resolve_neg"})
# Of calls that are not compiled, by a part of their names: what is, in their place.
REWRITES = {
    "fft": "torch.fft.fft(x) of n features is x @ f.real and x @ f.imag with f = torch.fft.fft(torch.eye(n)) "
    "made once; these compile",
}
_CONJUGATES = frozenset({"conj", "_conj", "_conj_physical", "conj_physical"})


def is_complex(meta: Any, args: Sequence[Any]) -> bool:
    """Whether a call takes or makes complex numbers."""
    metas = meta if isinstance(meta, (tuple, list)) else [meta]
    if any(getattr(m, "dtype", None) in _REAL for m in metas):
        return True
    return any(
        isinstance(a, Pair) or (isinstance(a, list) and any(isinstance(i, Pair) for i in a)) for a in args
    )


def complex_call(b: Builder, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The meaning of an aten call on complex numbers.

    Raises:
        Unsupported: there is none here.
    """
    packet = name.split(".")[0]
    b.meta = _real_meta(b.meta)
    if packet in _SAME:
        return args[0]
    if packet in _CONJUGATES:
        given = args[0]
        return _conjugate(b, given) if isinstance(given, Pair) else complex(given).conjugate()
    if packet in _OF_BOTH:
        return _both(b, name, args, kwargs)
    found = _COMPLEX.get(packet)
    out = found(b, *args, **kwargs) if found is not None else NotImplemented
    return _refused(b, packet) if out is NotImplemented else out


def _real_meta(meta: Any) -> Any:
    if isinstance(meta, (tuple, list)):
        return [_real_meta(m) for m in meta]
    dtype: torch.dtype = meta.dtype
    return _Real(meta.shape, _REAL.get(dtype, dtype))


def _both(b: Builder, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A call that does the same with either part."""
    rule = RULES.get(name) or RULES.get(name.split(".")[0])
    meta, parts = b.meta, []
    for which in ("re", "im"):
        b.meta = meta
        own = [_part(b, a, which) for a in args]
        named = {key: _part(b, a, which) for key, a in kwargs.items() if key != "dtype"}
        parts.append(rule(b, *own, **named) if rule is not None else NotImplemented)
    if any(part is NotImplemented for part in parts):
        return NotImplemented if rule is None else _refused(b, name)
    if isinstance(parts[0], list):
        return [Pair(re, im) for re, im in zip(*parts, strict=True)]
    return Pair(*parts)


def _transformed(b: Builder, x: Any, dims: Sequence[int], *_: Any) -> Any:
    if (x.re if isinstance(x, Pair) else x).bdim in dims:
        raise Unsupported("a Fourier transform over the rows: the step mixes rows", line=b.line)
    return NotImplemented


def _refused(b: Builder, name: str) -> Any:
    remedy = next((rewrite for part, rewrite in REWRITES.items() if part in name), None)
    raise Unsupported(f"'{name}' of complex numbers is not compiled", line=b.line, remedy=remedy)


def _part(b: Builder, arg: Any, which: str) -> Any:
    if isinstance(arg, Pair):
        return getattr(arg, which)
    if isinstance(arg, list) and any(isinstance(item, Pair) for item in arg):
        return [_part(b, item, which) for item in arg]
    return arg


# -- arithmetic ---------------------------------------------------------------------------------------------

Operand = Any  # a Pair, a Ref of real numbers, or a number


def _parts(operand: Operand) -> tuple[Any, Any]:
    """The parts; None for one that is 0 everywhere."""
    if isinstance(operand, Pair):
        return operand.re, operand.im
    if isinstance(operand, complex):
        return operand.real, operand.imag
    return operand, None


def _op(b: Builder, op: str, *operands: Any) -> Any:
    """A pointwise op of real operands; of Nones as of zeros."""
    return b.pointwise(op, list(operands))


def _sum(b: Builder, op: str, x: Any, y: Any) -> Any:
    if y is None:
        return None if x is None else b.widened(x)
    if x is None:
        return b.widened(y) if op == "add" else _op(b, "neg", b.widened(y))
    return _op(b, op, x, y)


def _pair(b: Builder, re: Any, im: Any) -> Pair:
    return Pair(b.widened(_or_zero(re)), b.widened(_or_zero(im)))


def _or_zero(part: Any) -> Any:
    return 0.0 if part is None else part


def _times(b: Builder, x: Any, y: Any) -> Any:
    return None if x is None or y is None else _op(b, "mul", x, y)


def _add(b: Builder, x: Operand, y: Operand, alpha: Any = 1, op: str = "add") -> Pair:
    if alpha != 1:
        meta = b.meta
        y = _mul_own(b, y, alpha)
        b.meta = meta
    (a, c), (d, e) = _parts(x), _parts(y)
    return _pair(b, _sum(b, op, a, d), _sum(b, op, c, e))


def _mul_own(b: Builder, x: Operand, number: Any) -> Operand:
    """An operand scaled, in its own shape."""
    if not isinstance(x, (Ref, Pair)):
        return x * number
    if isinstance(number, complex):
        raise Unsupported("a complex factor of one side of a sum is not compiled", line=b.line)

    def scaled(ref: Ref) -> Ref:
        return Ref(b.like(ref.name, "mul", ref.name, number), ref.bdim, ref.fold)

    return Pair(scaled(x.re), scaled(x.im)) if isinstance(x, Pair) else scaled(x)


def _mul(b: Builder, x: Operand, y: Operand) -> Pair:
    (a, c), (d, e) = _parts(x), _parts(y)
    re = _sum(b, "sub", _times(b, a, d), _times(b, c, e))
    return _pair(b, re, _sum(b, "add", _times(b, a, e), _times(b, c, d)))


def _div(b: Builder, x: Operand, y: Operand) -> Pair:
    """By the larger part of the divisor first, so that its square does not overflow."""
    a, c = _parts(x)
    if _parts(y)[1] is None:
        return _pair(b, *(None if part is None else _op(b, "div", part, y) for part in (a, c)))
    by = _as_pair(b, y)

    def reduced() -> tuple[Any, Any, Any]:
        size = _op(b, "maximum", _op(b, "abs", by.re), _op(b, "abs", by.im))
        d, e = _op(b, "div", by.re, size), _op(b, "div", by.im, size)
        return d, e, _op(b, "add", _op(b, "mul", by.re, d), _op(b, "mul", by.im, e))

    d_small, e_small, whole = _alone(b, by, reduced)
    re = _sum(b, "add", _times(b, a, d_small), _times(b, c, e_small))
    im = _sum(b, "sub", _times(b, c, d_small), _times(b, a, e_small))
    return Pair(_op(b, "div", re, whole), _op(b, "div", im, whole))


def _as_pair(b: Builder, x: Operand) -> Pair:
    """An operand as a pair; a number as one that all rows share."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, Ref):
        value = b.values[x.name]
        return Pair(x, Ref(b.full(0.0, value.shape, value.dtype, value.kind), x.bdim, x.fold))
    parts = (b.full(part, (), b.meta_dtype()) for part in (complex(x).real, complex(x).imag))
    return Pair(*(Ref(name, None, 0) for name in parts))


def _alone(b: Builder, x: Pair, made: Callable[[], Any]) -> Any:
    """What is made of an operand alone: it may be shared where the result has rows."""
    meta, value = b.meta, b.values[x.re.name]
    if value.kind == "shared":
        b.meta = _Real(value.shape, meta.dtype)
    found = made()
    b.meta = meta
    return found


def _conjugate(b: Builder, x: Pair) -> Pair:
    if b.is_full(x.im.name, 0):  # known to be one number it stays
        value = b.values[x.im.name]
        zero = b.full(-float(b.number_of(x.im.name)), value.shape, value.dtype, value.kind)
        return Pair(x.re, Ref(zero, x.im.bdim, x.im.fold))
    return Pair(x.re, Ref(b.like(x.im.name, "neg", x.im.name), x.im.bdim, x.im.fold))


def _abs(b: Builder, x: Pair) -> Any:
    return _op(b, "hypot", x.re, x.im)


def _angle(b: Builder, x: Pair) -> Any:
    return _op(b, "atan2", x.im, x.re)


def _is(b: Builder, x: Ref, number: float, op: str = "eq") -> Ref:
    """Where numbers are this one, or compare so with it."""
    return Ref(b.like(x.name, op, x.name, number, dtype="bool"), x.bdim, x.fold)


def _exp(b: Builder, x: Pair) -> Pair:
    """Of parts that are not finite, too: nothing has no angle, and what is real stays so."""
    size, cos = _op(b, "exp", x.re), _op(b, "cos", x.im)
    none, infinite = _is(b, size, 0), _is(b, size, math.inf)
    lost = Ref(b.like(cos.name, "isnan", cos.name, dtype="bool"), cos.bdim, cos.fold)
    re = _where(b, lost, _where(b, infinite, size, cos), _op(b, "mul", size, cos))
    im = _where(b, _is(b, x.im, 0), x.im, _op(b, "mul", size, _op(b, "sin", x.im)))
    return Pair(_where(b, none, size, re), _where(b, none, size, im))


def _log(b: Builder, x: Pair) -> Pair:
    return Pair(_op(b, "log", _abs(b, x)), _angle(b, x))


def _sqrt(b: Builder, x: Pair) -> Pair:
    """The larger part by a root, the other one by a quotient."""
    large = _op(b, "sqrt", _op(b, "mul", _op(b, "add", _abs(b, x), _op(b, "abs", x.re)), 0.5))
    none = _is(b, large, 0)
    small = _op(b, "div", x.im, _op(b, "mul", large, 2.0))
    small = _where(b, none, x.im, small)
    left = _is(b, x.re, 0, "lt")
    re = _where(b, left, _op(b, "abs", small), large)
    return Pair(re, _where(b, left, _op(b, "copysign", large, x.im), small))


def _where(b: Builder, chosen: Ref, x: Any, y: Any) -> Any:
    return RULES["where.self"](b, chosen, x, y)


def _wave(*ops: str, turned: bool = False) -> Callable[..., Pair]:
    """Each part is a product of functions of the parts: (f re * g im, h re * k im), the last one `turned`."""
    f, g, h, k = ops

    def wave(b: Builder, x: Pair) -> Pair:
        re = _op(b, "mul", _op(b, f, x.re), _op(b, g, x.im))
        im = _op(b, "mul", _op(b, h, x.re), _op(b, k, x.im))
        return Pair(re, _op(b, "neg", im) if turned else im)

    return wave


def _tanh(b: Builder, x: Pair) -> Pair:
    """(t + i u) / (1 + i t u) with t = tanh re, u = tan im: no part overflows."""
    t, u = _op(b, "tanh", x.re), _op(b, "tan", x.im)
    both = _op(b, "mul", t, u)
    return _div(b, Pair(t, u), Pair(b.widened(1.0), both))


def _sigmoid(b: Builder, x: Pair) -> Pair:
    low = _exp(b, Pair(_op(b, "neg", x.re), _op(b, "neg", x.im)))
    return _div(b, 1.0, Pair(_op(b, "add", low.re, 1.0), low.im))


def _pow(b: Builder, x: Operand, y: Operand) -> Any:
    if isinstance(x, Pair) and isinstance(y, (int, float)):
        if y in (1, 2, 3):
            out = x
            for _ in range(int(y) - 1):
                out = _mul(b, out, x)
            return out
        if y == 0.5:
            return _sqrt(b, x)
        if y == -1:
            return _div(b, 1.0, x)
    if isinstance(x, (int, float)) and x > 0 and isinstance(y, Pair):
        low = math.log(x)
        return _exp(b, Pair(_op(b, "mul", y.re, low), _op(b, "mul", y.im, low)))
    if y == 0 and not isinstance(y, (Ref, Pair)):
        return Pair(b.widened(1.0), b.widened(0.0))
    x, y = _as_pair(b, x), _as_pair(b, y)
    return _exp(b, _mul(b, _alone(b, x, lambda: _log(b, x)), y))


# -- between real and complex -------------------------------------------------------------------------------


def _view_as_real(b: Builder, x: Pair) -> Ref:
    value = b.values[x.re.name]
    names = [b.reshape(part.name, (*value.shape, 1)) for part in (x.re, x.im)]
    name = b.emit("cat", names, (*value.shape, 2), value.dtype, dim=len(value.shape))
    return b.result(name, x.re.bdim, x.re.fold)


def half(b: Builder, name: str, at: int) -> str:
    """The real or the imaginary parts of numbers whose parts are its last dimension."""
    value = b.values[name]
    part = slice_feature(b, name, len(value.shape) - 1, at, at + 1)
    return b.reshape(part, value.shape[:-1])


def _to_copy(b: Builder, x: Operand, dtype: Any = None, **_: Any) -> Any:
    wanted = b.meta_dtype()
    if isinstance(x, Pair):
        re = b.cast(x.re, wanted)
        return re if dtype not in _REAL and dtype is not None else Pair(re, b.cast(x.im, wanted))
    return _pair(b, b.cast(x, wanted), None)


def _full(b: Builder, *args: Any, **_: Any) -> Pair:
    number = complex(next(a for a in reversed(args) if isinstance(a, (bool, int, float, complex))))
    return Pair(b.widened(number.real), b.widened(number.imag))


def _cat(b: Builder, tensors: Sequence[Any], dim: int = 0) -> Any:
    if not all(isinstance(t, Pair) for t in tensors):
        return NotImplemented
    return _both(b, "cat", (list(tensors), dim), {})


def _chosen(b: Builder, condition: Ref, x: Operand, y: Operand) -> Pair:
    (a, c), (d, e) = _parts(x), _parts(y)
    return Pair(_where(b, condition, a, d), _where(b, condition, _or_zero(c), _or_zero(e)))


def _equal(b: Builder, x: Operand, y: Operand, op: str = "eq", join: str = "and") -> Any:
    (a, c), (d, e) = _parts(x), _parts(y)
    real = next(b.values[p.name].dtype for p in (a, d) if isinstance(p, Ref))
    same = [b.pointwise(op, [p, q], real) for p, q in ((a, d), (_or_zero(c), _or_zero(e)))]
    return b.pointwise(join, same, "bool")


def _isnan(b: Builder, x: Pair) -> Any:
    value = b.values[x.re.name].dtype
    return b.pointwise("or", [b.pointwise("isnan", [part], value) for part in (x.re, x.im)], "bool")


def _product(name: str) -> Callable[..., Any]:
    def product(b: Builder, x: Operand, y: Operand) -> Any:
        (a, c), (d, e) = _parts(x), _parts(y)
        meta = b.meta

        def of(left: Any, right: Any) -> Ref | None:
            b.meta = meta
            if left is None or right is None:
                return None
            known = _of_zeros(b, left, right) if name == "mm" else None
            return RULES[name](b, left, right) if known is None else known

        def joined(op: str, left: Ref | None, right: Ref | None) -> Ref | None:
            if left is None or right is None:
                return left or right
            if left.bdim != right.bdim:  # one is the same for all rows: of zeros
                b.meta = meta
                return b.pointwise(op, [left, right])
            return Ref(b.like(left.name, op, left.name, right.name), left.bdim, left.fold)

        re, im = joined("sub", of(a, d), of(c, e)), joined("add", of(a, e), of(c, d))
        return Pair(re, im) if re is not None and im is not None else NotImplemented

    return product


def _of_zeros(b: Builder, x: Ref, y: Ref) -> Ref | None:
    """A product with zeros: zeros, but NaN where the other operand is not finite. None of other products."""
    at = 0 if b.is_full(x.name, 0) else 1
    zeros, other = (x, y) if at == 0 else (y, x)
    if not b.is_full(zeros.name, 0) or x.fold or y.fold:
        return None
    value = b.values[other.name]
    none = b.like(other.name, "mul", other.name, 0.0)
    size = b.values[zeros.name].shape[-1]
    if (x.bdim, y.bdim) == (1, 0):  # over rows
        total = b.emit("sum_rows", (none,), value.shape, value.dtype, "sum")
        lone, shape = ((1, *value.shape), (size, *value.shape))
        if at == 1:
            lone, shape = ((*value.shape, 1), (*value.shape, size))
        return Ref(b.emit("expand", (b.reshape(total, lone),), shape, value.dtype))
    if at == 1 or (x.bdim, y.bdim) != (0, None):
        return None
    total = b.emit("sum", (none,), (1, value.shape[-1]), value.dtype, dims=(0,))
    return Ref(b.reshape(total, value.shape[-1:]))


_COMPLEX: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": partial(_add, op="sub"), "mul": _mul, "pow": _pow,
    **dict.fromkeys(("div", "true_divide"), _div), "reciprocal": lambda b, x: _div(b, 1.0, x),
    "abs": _abs, "angle": _angle, "exp": _exp, "log": _log, "sqrt": _sqrt,
    "sin": _wave("sin", "cosh", "cos", "sinh"), "cos": _wave("cos", "cosh", "sin", "sinh", turned=True),
    "sinh": _wave("sinh", "cos", "cosh", "sin"), "cosh": _wave("cosh", "cos", "sinh", "sin"),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _transformed),
    "tanh": _tanh, "sigmoid": _sigmoid, "real": lambda b, x: x.re, "imag": lambda b, x: x.im,
    "polar": lambda b, size, angle: Pair(*(_times(b, size, _op(b, part, angle)) for part in ("cos", "sin"))),
    "complex": lambda b, re, im: Pair(b.widened(re), b.widened(im)), "view_as_real": _view_as_real,
    "view_as_complex": lambda b, x: Pair(*(Ref(half(b, x.name, at), x.bdim, x.fold) for at in (0, 1))),
    **dict.fromkeys(("_to_copy", "convert_element_type"), _to_copy),
    **dict.fromkeys(("full", "full_like", "new_full", "scalar_tensor"), _full),
    **dict.fromkeys(("ones_like", "ones", "new_ones"), lambda b, *_, **__: _pair(b, 1.0, None)),
    "cat": _cat, "where": _chosen, "isnan": _isnan, "mm": _product("mm"), "bmm": _product("bmm"),
    "eq": _equal, "ne": partial(_equal, op="ne", join="or"),
}  # fmt: skip
