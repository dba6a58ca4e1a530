"""Images looked at between their pixels, numbers rounded as quantised ones, slopes that are drawn: in plain
operators."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """The four pixels around each place, by how near they are."""
    if input.dim() != 4 or grid.dim() != 4 or grid.shape[-1] != 2 or input.dtype != grid.dtype:
        return NotImplemented
    if mode != "bilinear" or padding_mode not in ("zeros", "border") or not input.is_floating_point():
        return NotImplemented
    sizes = input.shape[3], input.shape[2]
    if not all(type(n) is int and n > 0 for n in (*sizes, *input.shape[1:2], *grid.shape[1:3])):
        return NotImplemented
    pixels, out = input.flatten(2), grid.shape[1:3]
    columns, rows = (
        _neighbours(at.flatten(1), size, padding_mode == "border", bool(align_corners))
        for at, size in zip(grid.unbind(-1), sizes, strict=True)
    )
    result: Any = None
    for y, near_y, there_y in rows:
        for x, near_x, there_x in columns:
            index = (y * sizes[0] + x).unsqueeze(1).expand(-1, input.shape[1], -1)
            there = (there_x & there_y).unsqueeze(1)
            part = torch.where(there, torch.gather(pixels, 2, index), 0.0) * (near_x * near_y).unsqueeze(1)
            result = part if result is None else result + part
    return result.unflatten(2, out)


def _affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """Where the pixels of an image come from, by a matrix for each row."""
    if theta.dim() != 3 or len(size) != 4 or not theta.is_floating_point():
        return NotImplemented
    if tuple(theta.shape[1:]) != (2, 3) or str(size[0]) != str(theta.shape[0]):
        return NotImplemented
    if not all(type(n) is int and n > 0 for n in size[1:]):
        return NotImplemented

    def places(n: int) -> Tensor:
        how: Any = {"dtype": theta.dtype, "device": theta.device}
        line = torch.linspace(-1, 1, n, **how) if n > 1 else torch.zeros(1, **how)
        return line if align_corners else line * ((n - 1) / n)

    y, x = (places(n) for n in size[2:])
    across, down, shift = theta[:, None, None].unbind(-1)
    return across * x[:, None] + down * y[:, None, None] + shift


def _neighbours(at: Tensor, size: int, border: bool, corners: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The pixels before and behind each place of a dimension, how near each is, and whether there is one."""
    at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
    if border:
        edge = _number(at.detach()).clamp(0, size - 1)
        at = torch.where((at > 0) & (at < size - 1), at, edge)
    before = at.detach().floor()
    return [
        (_number(pixel).clamp(0, size - 1).long(), near, (pixel >= 0) & (pixel <= size - 1))
        for pixel, near in ((before, before + 1 - at), (before + 1, at - before))
    ]


def _number(at: Tensor) -> Tensor:
    """NaN is taken for the first pixel."""
    return torch.where(at.isnan(), 0.0, at)


def _fake_quantize(
    input: Tensor, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int
) -> Any:
    """Whole numbers between two, as torch's kernel rounds: it scales in float32, whatever the input is."""
    if isinstance(scale, Tensor) or isinstance(zero_point, Tensor) or not input.is_floating_point():
        return NotImplemented
    size = ctypes.c_float(scale).value
    if input.dtype not in (torch.float32, torch.float64) or not size or quant_max - quant_min >= 1 << 24:
        return NotImplemented
    level = torch.round(input * ctypes.c_float(1.0 / size).value) + zero_point
    inside = (level >= quant_min) & (level <= quant_max)  # NaN is not, and becomes the least
    level = torch.where(level.isnan(), float(quant_min), level)
    rounded = (level.clamp(quant_min, quant_max) - zero_point).detach() * size
    if input.dtype == torch.float64:  # the 24 bits of float32; C may fuse the product, so it is exact
        wide = rounded * 2.0**29
        rounded = (rounded + wide) - wide
    return rounded + torch.where(inside, input - input.detach(), 0.0)


def _rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """A slope below zero, drawn for each element in training."""
    if inplace or lower > upper or not input.is_floating_point():
        return NotImplemented
    if not training:
        return F.leaky_relu(input, (lower + upper) / 2)
    slopes = torch.rand_like(input) * (upper - lower) + lower
    return torch.where(input <= 0, input * slopes, input)


SAMPLING: dict[Any, Callable[..., Any]] = {
    F.grid_sample: _grid_sample,
    F.affine_grid: _affine_grid,
    torch.fake_quantize_per_tensor_affine: _fake_quantize,
    F.rrelu: _rrelu,
}
