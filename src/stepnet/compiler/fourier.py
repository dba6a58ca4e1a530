"""Fourier transforms of a few features of a row as products with the matrix of their roots of unity."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST = 128  # features: beyond, torch's own transform is faster than a product

_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_NORMS = (None, "backward", "ortho", "forward")


def _matrix(
    rows: int, columns: int, n: int, sign: float, norm: str | None, dtype: torch.dtype
) -> list[Tensor]:
    """The real and the imaginary parts of `exp(sign 2 pi i j k / n)`, normalised, [rows, columns]."""
    backward = sign > 0
    scale = n**-0.5 if norm == "ortho" else 1 / n if (norm == "forward") != backward else 1.0
    turns = [[j * k % n for k in range(columns)] for j in range(rows)]
    angles = [[2 * math.pi * t / n for t in row] for row in turns]
    real = [[scale * math.cos(a) for a in row] for row in angles]
    imaginary = [
        [0.0 if 2 * t == n else sign * scale * math.sin(a) for t, a in zip(*pair, strict=True)]
        for pair in zip(turns, angles, strict=True)
    ]
    return [torch.tensor(part, dtype=dtype) for part in (real, imaginary)]


def _resized(x: Tensor, n: int) -> Tensor:
    size = x.shape[-1]
    return x if n == size else x[..., :n] if n < size else torch.nn.functional.pad(x, (0, n - size))


def _transform(
    kind: str, x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, **more: Any
) -> Any:
    """torch.fft's `kind` of x; NotImplemented for what is left to torch."""
    if not isinstance(x, Tensor) or x.dim() < 2 or dim % x.dim() != x.dim() - 1 or more:
        return NotImplemented
    if torch.is_autocast_enabled("cpu") or x.dtype not in _DTYPES or norm not in _NORMS:
        return NotImplemented
    size = x.shape[-1]
    full = n if n is not None else 2 * (size - 1) if kind == "irfft" else size
    if not isinstance(full, int) or not 1 <= full <= MOST or (kind == "rfft" and x.is_complex()):
        return NotImplemented
    real = x.dtype.to_real()
    half = full // 2 + 1
    if kind == "irfft":
        x = _resized(x, half)
        re, im = _matrix(half, full, full, 1.0, norm, real)
        twice = torch.tensor([[1.0 if k == 0 or 2 * k == full else 2.0] for k in range(half)], dtype=real)
        product = torch.real(x) @ (re * twice)
        return product - torch.imag(x) @ (im * twice) if x.is_complex() else product
    x = _resized(x, full)
    sign = 1.0 if kind == "ifft" else -1.0
    re, im = _matrix(full, half if kind == "rfft" else full, full, sign, norm, real)
    if not x.is_complex():
        return torch.complex(x @ re, x @ im)
    a, b = torch.real(x), torch.imag(x)
    return torch.complex(a @ re - b @ im, a @ im + b @ re)


TRANSFORMS: dict[Any, Callable[..., Any]] = {
    getattr(torch.fft, kind): functools.partial(_transform, kind) for kind in ("fft", "ifft", "rfft", "irfft")
}
