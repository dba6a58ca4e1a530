"""Complex numbers as pairs of real ones, and transforms between time and frequency as products of matrices:
no format that is written has complex numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_any, tree_map

from stepnet.errors import IRError

MOST = 2**22  # numbers of the matrix of a transform
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor of complex numbers."""

    real: Any
    imag: Any


def makes(node: Any) -> bool:
    """Whether a traced call makes complex numbers of real ones."""
    return node.target in MADE or tree_any(lambda part: isinstance(part, complex), (node.args, node.kwargs))


def is_complex(target: Any, arguments: Any) -> bool:
    """Whether a call takes or makes complex numbers."""
    return target in MADE or tree_any(lambda part: isinstance(part, (Pair, complex)), arguments)


def called(target: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """What a call gives that takes or makes complex numbers.

    Raises:
        IRError: it is none of those that are known here.
    """
    args, kwargs = tree_map(_of_weights, (tuple(args), dict(kwargs)))
    rule = MADE.get(target) or _TAKEN.get(target)
    if rule is not None:
        return rule(*args, **kwargs)
    of_types = any(isinstance(part, torch.dtype) for part in (*args, *kwargs.values()))
    if getattr(target, "overloadpacket", target) in _MOVED and not of_types:
        real, imag = (target(*_part(args, name), **_part(kwargs, name)) for name in ("real", "imag"))
        return [*map(Pair, real, imag)] if isinstance(real, (tuple, list)) else Pair(real, imag)
    raise _refusal(f"'{target}' of complex numbers has no form of real ones here", str(target))


def check_results(results: Any) -> None:
    """Refuse complex results.

    Raises:
        IRError: there are some.
    """
    if tree_any(lambda part: isinstance(part, Pair), results):
        raise _refusal("a result is complex", "complex numbers")


def _refusal(what: str, got: str) -> IRError:
    return IRError(
        f"the module cannot be written: {what}",
        got=got,
        expected="sums, products, abs, angle, transforms, and what moves numbers",
        remedy="go on with torch.view_as_real, which gives complex numbers as pairs",
    )


def _no_matrix(what: str, got: str) -> IRError:
    """The refusal of a transform that is no product with a matrix."""
    return IRError(
        f"the module cannot be written: {what}",
        got=got,
        expected="a dimension of a known size, of which a matrix is made",
        remedy="cut frames of a known size out of it (unfold, torch.stft), or leave it out of dynamic=",
    )


def _part(values: Any, name: str) -> Any:
    return tree_map(lambda value: getattr(value, name) if isinstance(value, Pair) else value, values)


def _of_weights(x: Any) -> Any:
    """A tensor that holds complex numbers, as a pair."""
    if not isinstance(x, Tensor) or not x.is_complex():
        return x
    return Pair(*torch.view_as_real(x).unbind(-1))


def _pair(x: Any) -> Pair:
    if isinstance(x, Pair):
        return x
    return Pair(x, torch.zeros_like(x)) if isinstance(x, Tensor) else Pair(x.real, x.imag)


def _product(times: Callable[[Any, Any], Any]) -> Callable[..., Pair]:
    def run(x: Any, y: Any) -> Pair:
        a, b = _pair(x), _pair(y)
        if not isinstance(x, Pair):
            return Pair(times(a.real, b.real), times(a.real, b.imag))
        if not isinstance(y, (Pair, complex)):
            return Pair(times(a.real, b.real), times(a.imag, b.real))
        return Pair(
            times(a.real, b.real) - times(a.imag, b.imag), times(a.real, b.imag) + times(a.imag, b.real)
        )

    return run


def _quotient(x: Any, y: Any) -> Pair:
    if not isinstance(y, (Pair, complex)):
        return Pair(x.real / y, x.imag / y)
    b = _pair(y)
    whole = b.real * b.real + b.imag * b.imag
    return _product(operator.mul)(x, Pair(b.real / whole, -b.imag / whole))


def _sum(sign: int) -> Callable[..., Pair]:
    def run(x: Any, y: Any, *, alpha: float = 1) -> Pair:
        a, b, by = _pair(x), _pair(y), sign * alpha
        return Pair(a.real + b.real * by, a.imag + b.imag * by)

    return run


def _joined(by: Callable[..., Any]) -> Callable[..., Pair]:
    def run(xs: Sequence[Any], axis: int = 0) -> Pair:
        pairs = [*map(_pair, xs)]
        return Pair(by([x.real for x in pairs], axis), by([x.imag for x in pairs], axis))

    return run


def _padded(x: Pair, pads: Sequence[int], mode: str = "constant", value: Any = None) -> Pair:
    by = 0.0 if value is None else value
    filled = ({"value": part} if mode == "constant" else {} for part in (by.real, by.imag))
    parts = zip((x.real, x.imag), filled, strict=True)
    return Pair(*(functional.pad(part, pads, mode, **more) for part, more in parts))


def _abs(x: Pair) -> Tensor:
    return (x.real * x.real + x.imag * x.imag).sqrt()


def _exp(x: Pair) -> Pair:
    size = x.real.exp()
    return Pair(size * x.imag.cos(), size * x.imag.sin())


def _turns(along: int, across: int, size: int, like: Tensor) -> Pair:
    """The numbers exp(2 pi i j k / size), of which those of negative angles are the conjugates."""
    along, across, size = (_number(n) for n in (along, across, size))
    if along * across > MOST:
        raise _no_matrix("a transform is too long", f"{size} elements")
    rows, columns = (torch.arange(n, device=like.device) for n in (along, across))
    angles = (rows.unsqueeze(1) * columns % size).to(torch.float64) * (2 * math.pi / size)
    return Pair(angles.cos().to(like.dtype), angles.sin().to(like.dtype))


def _number(size: Any) -> int:
    expression = getattr(getattr(size, "node", None), "expr", size)
    if isinstance(size, int) or expression.is_number:
        return int(expression)
    raise _no_matrix("a transform is along a dimension that stays open", "any number of elements")


def _times(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """The product along an axis."""
    return (x.transpose(axis, -1) @ matrix).transpose(axis, -1)


def _times_both(x: Tensor, turns: Pair, axis: int) -> list[Tensor]:
    """The products with both parts, as one."""
    return [*_times(x, torch.cat([turns.real, turns.imag], 1), axis).chunk(2, axis)]


def _scaled(x: Any, sizes: Sequence[int], mode: int) -> Any:
    whole = math.prod(map(_number, sizes))
    by = (1.0, whole**-0.5, 1.0 / whole)[mode]
    if mode == 0:
        return x
    return Pair(x.real * by, x.imag * by) if isinstance(x, Pair) else x * by


def _turned(x: Pair, axis: int, *, forward: bool) -> Pair:
    size = x.real.shape[axis]
    turns, sign = _turns(size, size, size, x.real), -1 if forward else 1
    (a, b), (c, d) = (_times_both(part, turns, axis) for part in (x.real, x.imag))
    return Pair(a - d * sign, c + b * sign)


def _from_real(x: Tensor, axes: Sequence[int], mode: int, half: bool) -> Pair:
    *others, last = axes
    sizes = [x.shape[axis] for axis in axes]
    turns = _turns(sizes[-1], sizes[-1] // 2 + 1 if half else sizes[-1], sizes[-1], x)
    real, imag = _times_both(x, turns, last)
    found = Pair(real, -imag)
    for axis in others:
        found = _turned(found, axis, forward=True)
    return _scaled(found, sizes, mode)


def _to_real(x: Pair, axes: Sequence[int], mode: int, size: int) -> Tensor:
    *others, last = axes
    sizes = [*(x.real.shape[axis] for axis in others), size]
    for axis in others:
        x = _turned(x, axis, forward=False)
    half = size // 2 + 1
    turns = _turns(half, size, size, x.real)
    place = torch.arange(half, device=x.real.device).unsqueeze(1)
    count = torch.where((place == 0) | (place * 2 == size), 1.0, 2.0).to(x.real.dtype)
    found = _times(x.real, turns.real * count, last) - _times(x.imag, turns.imag * count, last)
    return _scaled(found, sizes, mode)


def _from_complex(x: Pair, axes: Sequence[int], mode: int, forward: bool) -> Pair:
    sizes = [x.real.shape[axis] for axis in axes]
    for axis in axes:
        x = _turned(x, axis, forward=forward)
    return _scaled(x, sizes, mode)


MADE: dict[Any, Callable[..., Any]] = {  # of real numbers
    aten._fft_r2c.default: _from_real,
    aten.complex.default: lambda *parts: Pair(*torch.broadcast_tensors(*parts)),
    aten.polar.default: lambda size, angle: Pair(size * angle.cos(), size * angle.sin()),
    aten.view_as_complex.default: lambda x: Pair(x[..., 0], x[..., 1]),
}
_TAKEN: dict[Any, Callable[..., Any]] = {
    aten._fft_c2r.default: _to_real,
    aten._fft_c2c.default: _from_complex,
    aten.view_as_real.default: lambda x: torch.stack([x.real, x.imag], -1),
    aten.real.default: lambda x: x.real,
    aten.imag.default: lambda x: x.imag,
    aten.abs.default: _abs,
    aten.cat.default: _joined(torch.cat),
    aten.stack.default: _joined(torch.stack),
    aten.pad.default: _padded,
    aten.constant_pad_nd.default: lambda x, pads, value=0: _padded(x, pads, value=value),
    aten.angle.default: lambda x: torch.atan2(x.imag, x.real),
    aten.exp.default: _exp,
    aten.add.Tensor: _sum(1),
    aten.sub.Tensor: _sum(-1),
    aten.mul.Tensor: _product(operator.mul),
    aten.div.Tensor: _quotient,
    **{product.default: _product(operator.matmul) for product in (aten.mm, aten.bmm, aten.matmul)},
    **{
        name.default: lambda x: Pair(x.real, -x.imag)
        for name in (aten.conj, aten._conj, aten.conj_physical, aten._conj_physical)
    },
    **{
        name.default: lambda x: x
        for name in (aten.resolve_conj, aten.resolve_neg, aten.alias, aten.detach)
    },
    aten.sym_size.int: lambda x, axis: x.real.shape[axis],
}  # fmt: skip
_MOVED = {
    aten.clone, aten.contiguous, aten.expand, aten.flatten, aten.flip,
    aten.index_select, aten.mean, aten.narrow, aten.neg, aten.permute, aten.reshape, aten.roll, aten.select,
    aten.slice, aten.split, aten.split_with_sizes, aten.squeeze, aten.sum, aten.t, aten.transpose,
    aten.unbind, aten.unflatten, aten.unsqueeze, aten.unsafe_split, aten.view, aten._unsafe_view,
}  # fmt: skip
