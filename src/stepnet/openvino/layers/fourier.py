"""Transforms between time and frequency: complex numbers are pairs in the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .row import Function, Misfit, Row, axis_in, listed, plain, shape_text

_MOST = 2**28  # the size of a signal that a file says


def _transform(by: Callable[..., Tensor], *, takes: bool, gives: bool) -> Function:
    """A transform of torch that takes, and gives, complex numbers or real ones."""

    def run(x: Tensor, axes: Any, sizes: Any = None) -> Tensor:
        if takes and (x.dim() < 2 or x.shape[-1] != 2):
            raise Misfit(
                f"{shape_text(x)} holds no pairs", expected="a last dimension of 2", dims=str(x.shape)
            )
        rank = x.dim() - takes
        along = [axis_in(axis, rank, "axes:") for axis in listed(axes)]
        if not along or len(set(along)) != len(along):
            raise Misfit("axes must be some, each once", got=listed(axes), dims=str(along))
        lengths = None if sizes is None else listed(sizes)
        if lengths is not None and (len(lengths) != len(along) or not all(-1 <= n <= _MOST for n in lengths)):
            raise Misfit("needs one size for each axis, or -1", got=lengths, dims=str((lengths, along)))
        made = by(torch.view_as_complex(x.contiguous()) if takes else x, s=lengths, dim=along)
        return torch.view_as_real(made) if gives else made

    return run


ROWS = tuple(
    Row(kind, plain(_transform(by, takes=takes, gives=gives)), (2, 3), values=(1, 2))
    for kind, by, takes, gives in (
        ("DFT", torch.fft.fftn, True, True),
        ("IDFT", torch.fft.ifftn, True, True),
        ("RDFT", torch.fft.rfftn, False, True),
        ("IRDFT", torch.fft.irfftn, True, False),
    )
)
