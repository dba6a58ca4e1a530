"""Fourier transforms of a few features of a row as products with the matrix of their roots of unity."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
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
    kind: str, input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, **more: Any
) -> Any:
    """torch.fft's `kind` of input; NotImplemented for what is left to torch."""
    if not isinstance(input, Tensor) or not -input.dim() <= dim < input.dim() or more:
        return NotImplemented
    if not isinstance(input.shape[dim], int):
        return NotImplemented  # of rows
    if input.dim() == 1:  # a vector by a matrix: torch's own takes a dimension away in place
        found = _transform(kind, input.unsqueeze(0), n, -1, norm)
        return found if found is NotImplemented else found.squeeze(0)
    if dim % input.dim() != input.dim() - 1:
        found = _transform(kind, input.movedim(dim, -1), n, -1, norm)
        return found if found is NotImplemented else found.movedim(-1, dim)
    if input.dtype not in _DTYPES or norm not in _NORMS:
        return NotImplemented
    size = input.shape[-1]
    full = n if n is not None else 2 * (size - 1) if kind == "irfft" else size
    if not isinstance(full, int) or not 1 <= full <= MOST or (kind == "rfft" and input.is_complex()):
        return NotImplemented
    real = input.dtype.to_real()
    half = full // 2 + 1
    if kind == "irfft":
        input = _resized(input, half)
        re, im = _matrix(half, full, full, 1.0, norm, real)
        twice = torch.tensor([[1.0 if k == 0 or 2 * k == full else 2.0] for k in range(half)], dtype=real)
        product = torch.real(input) @ (re * twice)
        return product - torch.imag(input) @ (im * twice) if input.is_complex() else product
    input = _resized(input, full)
    sign = 1.0 if kind == "ifft" else -1.0
    re, im = _matrix(full, half if kind == "rfft" else full, full, sign, norm, real)
    if not input.is_complex():
        return torch.complex(input @ re, input @ im)
    a, b = torch.real(input), torch.imag(input)
    return torch.complex(a @ re - b @ im, a @ im + b @ re)


def _several(
    kind: str, input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, **more: Any
) -> Any:
    """torch.fft's `kind` along several dimensions: one after the other, the real one where torch has it."""
    if not isinstance(input, Tensor) or more or not isinstance(dim, Sequence) or not dim:
        return NotImplemented
    if len({d % input.dim() for d in dim}) < len(dim) or (s is not None and len(s) != len(dim)):
        return NotImplemented
    kinds = [*[kind.removeprefix("r").replace("irfft", "ifft")] * (len(dim) - 1), kind]
    ways = list(zip(kinds, dim, s or [None] * len(dim), strict=True))
    for how, d, n in reversed(ways) if kind == "rfft" else ways:
        input = _transform(how, input, n, d, norm)
        if input is NotImplemented:
            return input
    return input


def _of_the_last(
    kind: str, input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None
) -> Any:
    return _several(kind, input, s, dim, norm)


_KINDS = ("fft", "ifft", "rfft", "irfft")
TRANSFORMS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch.fft, kind): functools.partial(_transform, kind) for kind in _KINDS},
    **{getattr(torch.fft, f"{kind}n"): functools.partial(_several, kind) for kind in _KINDS},
    **{getattr(torch.fft, f"{kind}2"): functools.partial(_of_the_last, kind) for kind in _KINDS},
}
