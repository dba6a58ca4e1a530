"""Products of whole numbers, as quantised models hold them: exact in float64 up to 2^53."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name

from .info import Info, Misfit, Run, op
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


def _product(a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None) -> Tensor:
    return _from_zero(a, a_zero, -2) @ _from_zero(b, b_zero, -1)


@op("MatMulInteger", inputs=(2, 4))
def _matmul(node: Info) -> Run:
    def matmul(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
        return _product(a, a_zero, b, b_zero).to(torch.int32)

    return matmul


@op("QLinearMatMul", inputs=(8, 8))
def _scaled_matmul(node: Info) -> Run:
    def matmul(
        a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, scale: Tensor,
        zero: Tensor,
    ) -> Tensor:  # fmt: skip
        out = _product(a, a_zero, b, b_zero)
        scales = _along(a_scale, out, -2).double() * _along(b_scale, out, -1).double()
        return rounded(out * (scales / scale.double()), zero)

    return matmul


@op("ConvInteger", inputs=(2, 4))
def _conv(node: Info) -> Run:
    conv = convolution(node)

    def run(x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None) -> Tensor:
        return conv(_from_zero(x, x_zero, 1), _from_zero(w, w_zero, 0), None).to(torch.int32)

    return run


@op("QLinearConv", inputs=(8, 9))
def _scaled_conv(node: Info) -> Run:
    conv = convolution(node)

    def run(
        x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, scale: Tensor,
        zero: Tensor, bias: Any = None,
    ) -> Tensor:  # fmt: skip
        bias = None if bias is None else bias.double()
        out = conv(_from_zero(x, x_zero, 1), _from_zero(w, w_zero, 0), bias)
        return rounded(out * (x_scale.double() * each(w_scale, out, 1).double() / scale.double()), zero)

    return run
