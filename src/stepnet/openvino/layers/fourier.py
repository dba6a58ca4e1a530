"""Transforms between time and frequency: complex numbers are pairs in the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import transformed

from .row import Function, Misfit, Row, axis_in, listed, plain


def _transform(by: Callable[..., Tensor], *, pairs: bool) -> Function:
    """A transform of torch that takes complex numbers, or real ones."""

    def run(x: Tensor, axes: Any, sizes: Any = None) -> Tensor:
        along = [axis_in(axis, x.dim() - pairs, "axes:") for axis in listed(axes)]
        if not along or len(set(along)) != len(along):
            raise Misfit("axes must be some, each once", got=listed(axes), dims=str(along))
        return transformed(by, x, along, None if sizes is None else listed(sizes), pairs=pairs)

    return run


ROWS = tuple(
    Row(kind, plain(_transform(by, pairs=pairs)), (2, 3), values=(1, 2))
    for kind, by, pairs in (
        ("DFT", torch.fft.fftn, True),
        ("IDFT", torch.fft.ifftn, True),
        ("RDFT", torch.fft.rfftn, False),
        ("IRDFT", torch.fft.irfftn, True),
    )
)
