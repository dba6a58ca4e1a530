"""Products of whole numbers, as quantised models hold them: of bytes in int32, others in float64, which is
exact up to 2^53."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.data.modes import traced, transforms_active
from stepnet.file_model import stays

from .info import Info, Misfit, Run, of_inputs, op
from .spaces import each
from .sums import convolution


def _from_zero(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """How far numbers are from those that stand for zero."""
    return x.double() if zero is None else x.double() - _along(zero, x, axis).double()


def _along(part: Tensor, x: Tensor, axis: int) -> Tensor:
    """What there is one of for all numbers, or one for each place of an axis."""
    return part if part.dim() == x.dim() else each(part, x, axis % x.dim())


def rounded(x: Tensor, zero: Tensor) -> Tensor:
    """Numbers in the type of a zero point, counted from it."""
    if zero.is_floating_point() or zero.dtype is torch.bool:
        raise Misfit("a zero point is no whole number", dtype_name(zero.dtype), "uint8 or int8")
    kind = torch.iinfo(zero.dtype)
    return (x.round() + zero.double()).clamp(kind.min, kind.max).to(zero.dtype)


_BYTES = torch.int8, torch.uint8
_MOST = 2**14  # products of two bytes, each from its zero, that are added up in int32


def _product(a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None) -> Tensor:
    for x, zero in ((a, a_zero), (b, b_zero)):
        if zero is not None and zero.dtype != x.dtype:
            raise Misfit("a zero point is of another type", dtype_name(zero.dtype), dtype_name(x.dtype))
    if _are_bytes(a, a_zero, b, b_zero):
        return _of_bytes(a, a_zero, b, b_zero)
    return _from_zero(a, a_zero, -2) @ _from_zero(b, b_zero, -1)


def _are_bytes(a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None) -> bool:
    """Whether torch multiplies them as they are, which nothing that traces knows."""
    if torch.compiler.is_compiling() or traced() or transforms_active() or not (a.is_cpu and b.is_cpu):
        return False
    if a.dtype not in _BYTES or b.dtype not in _BYTES or a.dim() < 2 or b.dim() != 2:
        return False
    rows, (depth, columns) = [*a.shape[:-1]], b.shape
    return (
        a.shape[-1] == depth <= _MOST
        and 0 not in (*rows, depth, columns)
        and (a_zero is None or a_zero.numel() == 1 or [*a_zero.shape] in (rows, [*rows, 1]))
        and (b_zero is None or b_zero.numel() == 1 or [*b_zero.shape] in ([columns], [1, columns]))
    )


def _of_bytes(a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None) -> Tensor:
    """(a - its zero) times (b - its zero), in int32."""
    (a, a_zero), (b, b_zero) = _signed(a, a_zero), _signed(b, b_zero)
    depth, columns = b.shape
    multiply = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
    out = multiply(a.reshape(-1, depth), b).reshape(*a.shape[:-1], columns)
    b_zero = None if b_zero is None else b_zero.reshape(-1)
    if b_zero is not None and stays([b_zero]) and not b_zero.any():
        b_zero = None
    if a_zero is not None:
        sums = b.sum(0, dtype=torch.int32)
        sums = sums if b_zero is None else sums - depth * b_zero
        out = out - (a_zero.reshape(-1) if a_zero.numel() == 1 else a_zero.reshape(*a.shape[:-1], 1)) * sums
    if b_zero is not None:
        out = out - a.sum(-1, keepdim=True, dtype=torch.int32) * b_zero
    return out


def _signed(x: Tensor, zero: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Bytes as int8, and their zero as int32; None: it is 0."""
    if x.dtype is torch.int8:
        return x, None if zero is None else zero.int()
    zero = torch.full((), -128, dtype=torch.int32) if zero is None else zero.int() - 128
    return (x ^ 128).view(torch.int8), zero


@of_inputs("MatMulInteger", inputs=(2, 4))
def _matmul(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    return _product(a, a_zero, b, b_zero).to(torch.int32)


def in_bytes(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the zero point by which bytes say the numbers between these two, and zero."""
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, 1.0, scale)
    return scale, (-low / scale).round().clamp(0, 255)


@of_inputs("DynamicQuantizeLinear")
def _dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if x.dtype is not torch.float32:
        raise Misfit("of another type", dtype_name(x.dtype), "float32")
    if not x.numel():
        raise Misfit("there are no numbers to be quantised", [*x.shape], "one at least")
    scale, zero = in_bytes(*torch.aminmax(x))
    return (x / scale).round().add(zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


@of_inputs("QLinearMatMul", inputs=(8, 8))
def _scaled_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, scale: Tensor,
    zero: Tensor,
) -> Tensor:  # fmt: skip
    out = _product(a, a_zero, b, b_zero)
    scales = _along(a_scale, out, -2).double() * _along(b_scale, out, -1).double()
    return rounded(out.double() * (scales / scale.double()), zero)


def _exact_convolution(node: Info) -> Run:
    """A convolution of bytes, each from its zero, without a bias, in float64. What is written is two in
    float32, which runtimes have, of the upper and the lower bits of weights: sums below 2^24 are exact."""
    conv = convolution(node)

    def run(x: Tensor, w: Tensor) -> Tensor:
        if not traced() or math.prod(w.shape[1:]) * 255 * 16 >= 2**24:
            return conv(x, w, None)
        high = torch.floor(w / 16)
        parts = (conv(x.float(), part.float(), None).double() for part in (high, w - 16 * high))
        return next(parts) * 16 + next(parts)

    return run


@op("ConvInteger", inputs=(2, 4))
def _conv(node: Info) -> Run:
    conv = _exact_convolution(node)

    def run(x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None) -> Tensor:
        return conv(_from_zero(x, x_zero, 1), _from_zero(w, w_zero, 0)).to(torch.int32)

    return run


@op("QLinearConv", inputs=(8, 9))
def _scaled_conv(node: Info) -> Run:
    conv = _exact_convolution(node)

    def run(
        x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, scale: Tensor,
        zero: Tensor, bias: Any = None,
    ) -> Tensor:  # fmt: skip
        out = conv(_from_zero(x, x_zero, 1), _from_zero(w, w_zero, 0))
        out = out if bias is None else out + each(bias, out, 1).double()
        return rounded(out * (x_scale.double() * each(w_scale, out, 1).double() / scale.double()), zero)

    return run
