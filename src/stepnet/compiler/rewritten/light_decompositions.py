"""Decompositions that do as torch's own, which import what torch compiles with to check their arguments or to
promote types: half a second. Of what is asked for seldom they leave it to those."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_FLOATS = (torch.float32, torch.float64)
_NUMBERS = (*_FLOATS, torch.complex64, torch.complex128)
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _has_numbers(x: Tensor, dims: Sequence[int]) -> bool:
    """Whether it has a known number of elements, which is not 0, along each of some dimensions."""
    return x.dim() > 0 and all(type(x.shape[dim]) is int and x.shape[dim] for dim in dims)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if half_to_float or not _has_numbers(x, [dim]):
        return NotImplemented
    wide = x.contiguous().to(_WIDER.get(x.dtype, x.dtype))
    raised = torch.exp(wide - torch.amax(wide, dim, keepdim=True))
    return (raised / torch.sum(raised, dim, keepdim=True)).to(x.dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if half_to_float or not _has_numbers(x, [dim]):
        return NotImplemented
    wide = x.contiguous().to(_WIDER.get(x.dtype, x.dtype))
    shifted = wide - torch.amax(wide, dim, keepdim=True)
    return (shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))).to(x.dtype)


def _vector_norm(
    x: Tensor, order: float = 2, dims: Sequence[int] | None = None, keep: bool = False, *, dtype: Any = None
) -> Any:
    dims = [*(dims or range(x.dim()))]
    if dtype is not None or x.dtype not in _FLOATS or not _has_numbers(x, dims):
        return NotImplemented
    if order == 0 or all(x.shape[dim] == 1 for dim in dims):
        return NotImplemented
    if math.isinf(order):
        return (torch.amax if order > 0 else torch.amin)(torch.abs(x), dims, keepdim=keep)
    powers = torch.pow(x if order % 2 == 0 else torch.abs(x), order)
    return torch.pow(torch.sum(powers, dims, keepdim=keep), 1.0 / order)


def _lerp(start: Tensor, end: Tensor, weight: Any) -> Any:
    tensors = [start, end, weight] if isinstance(weight, Tensor) else [start, end]
    dtype = start.dtype
    if dtype not in _FLOATS or any(t.dtype != dtype or not _in_order(t) for t in tensors):
        return NotImplemented
    if isinstance(weight, Tensor):
        near_end = weight.abs() >= 0.5
        share, base = torch.where(near_end, weight - 1, weight), torch.where(near_end, end, start)
    elif isinstance(weight, (int, float)):
        rounded = struct.unpack("f", struct.pack("f", weight))[0] if dtype == torch.float32 else weight
        share, base = (rounded - 1, end) if abs(rounded) >= 0.5 else (rounded, start)
    else:
        return NotImplemented
    return share * (end - start) + base


def _in_order(x: Tensor) -> bool:
    """Whether its elements stand in memory in the order of its dimensions, some perhaps left out."""
    steps = [step for size, step in zip(x.shape, x.stride(), strict=True) if size != 1]
    return all(a > b for a, b in itertools.pairwise(steps)) and 0 not in steps


def _unbind(x: Tensor, dim: int = 0) -> Any:
    count = x.shape[dim] if x.dim() else None
    return tuple(x.select(dim, i) for i in range(count)) if type(count) is int else NotImplemented


def _sgn(x: Tensor) -> Tensor:
    if not x.is_complex():
        return torch.sign(x)
    size = x.abs()
    return torch.where(size == 0, 0, x / size)


def _eye(rows: int, columns: int | None = None, *, dtype: Any = None, **how: Any) -> Any:
    columns = rows if columns is None else columns
    if type(rows) is not int or type(columns) is not int or not _is_plain(**how):
        return NotImplemented
    return (torch.arange(rows).unsqueeze(-1) == torch.arange(columns)).to(dtype or torch.get_default_dtype())


def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **how: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)) or dtype not in _FLOATS:
        return NotImplemented
    if type(steps) is not int or steps < 2 or not _is_plain(**how):
        return NotImplemented
    step, places = (end - start) / (steps - 1), torch.arange(steps)
    from_end = end - step * ((steps - 1) - places).to(dtype)
    return torch.where(places < steps / 2, start + step * places.to(dtype), from_end)


def _is_plain(*, layout: Any = None, device: Any = None, pin_memory: Any = None) -> bool:
    return layout in (None, torch.strided) and not pin_memory and device in (None, torch.device("cpu"))


def _triangle(kept: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    def cut(x: Tensor, diagonal: int = 0) -> Any:
        if x.dim() < 2 or type(x.shape[-2]) is not int or type(x.shape[-1]) is not int:
            return NotImplemented
        ahead = torch.arange(x.shape[-1]) - torch.arange(x.shape[-2]).unsqueeze(-1)
        return _masked(kept(ahead, diagonal), x)

    return cut


def _diag_embed(x: Tensor, offset: int = 0, one: int = -2, other: int = -1) -> Any:
    rank = x.dim() + 1
    if offset or (one % rank, other % rank) != (rank - 2, rank - 1) or type(x.shape[-1]) is not int:
        return NotImplemented
    places = torch.arange(x.shape[-1])
    return _masked(places == places.unsqueeze(-1), x.unsqueeze(-2))


def _masked(mask: Tensor, x: Tensor) -> Tensor:
    return (mask.logical_and(x) if x.dtype == torch.bool else torch.where(mask, x, 0)).contiguous()


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if x.dtype not in _FLOATS:
        return NotImplemented
    return torch.where(x > 0, scale * x, (alpha * scale) * torch.expm1(x * input_scale))


def _glu(x: Tensor, dim: int = -1) -> Any:
    size = x.shape[dim] if x.dim() else None
    if x.dtype not in _FLOATS or type(size) is not int or size % 2:
        return NotImplemented
    return x.narrow(dim, 0, size // 2) * torch.sigmoid(x.narrow(dim, size // 2, size // 2))


def _mv(matrix: Tensor, vector: Tensor) -> Any:
    if matrix.dtype not in _NUMBERS or vector.dtype != matrix.dtype or (matrix.dim(), vector.dim()) != (2, 1):
        return NotImplemented
    return (matrix * vector).sum(dim=1) if matrix.shape[1] == vector.shape[0] else NotImplemented


def _dot(one: Tensor, other: Tensor) -> Any:
    if one.dtype not in _FLOATS or other.dtype != one.dtype or not _has_numbers(one, [0]):
        return NotImplemented
    return (one * other).sum()


def _addcmul(x: Tensor, one: Tensor, other: Tensor, *, value: float = 1) -> Any:
    plain = x.dtype in _FLOATS and one.dtype == other.dtype == x.dtype and isinstance(value, (int, float))
    return x + value * one * other if plain else NotImplemented


def _index_add(x: Tensor, dim: int, index: Tensor, added: Tensor, *, alpha: float = 1) -> Any:
    if alpha != 1 or index.dim() != 1 or not x.dim() == added.dim() > 0 or index.shape[0] != added.shape[dim]:
        return NotImplemented
    places = (*(None,) * (dim % x.dim()), index)
    return _aten.index_put(x, places, added, accumulate=True).contiguous()


def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Any:
    if x.dtype not in _FLOATS or target.dtype != x.dtype or reduction not in _REDUCED or not delta > 0:
        return NotImplemented
    far = (x - target).abs()
    return _REDUCED[reduction](torch.where(far < delta, 0.5 * far * far, delta * (far - 0.5 * delta)))


_REDUCED: dict[int, Callable[[Tensor], Tensor]] = {0: lambda losses: losses, 1: torch.mean, 2: torch.sum}

_LIGHT: dict[Any, Callable[..., Any]] = {
    _aten._softmax.default: _softmax,
    _aten._log_softmax.default: _log_softmax,
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.lerp.Scalar: _lerp,
    _aten.lerp.Tensor: _lerp,
    _aten.unbind.int: _unbind,
    _aten.sgn.default: _sgn,
    _aten.eye.default: _eye,
    _aten.eye.m: _eye,
    _aten.tril.default: _triangle(torch.le),
    _aten.triu.default: _triangle(torch.ge),
    _aten.diag_embed.default: _diag_embed,
    _aten.elu.default: _elu,
    _aten.glu.default: _glu,
    _aten.mv.default: _mv,
    _aten.dot.default: _dot,
    _aten.addcmul.default: _addcmul,
    _aten.index_add.default: _index_add,
    _aten.huber_loss.default: _huber_loss,
    _aten.linspace.default: _linspace,
}


def lighter(overload: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of torch's that is asked only for what ours does not know."""
    light = _LIGHT.get(overload)
    if light is None:
        return decomposition

    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = light(*args, **kwargs)
        return decomposition(*args, **kwargs) if result is NotImplemented else result

    return decompose
