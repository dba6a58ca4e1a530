"""Transforms between time and frequency: complex numbers are pairs in the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stepnet.file_model import transformed

from .row import (
    Function,
    Misfit,
    Row,
    axis_in,
    check_size,
    listed,
    named,
    number,
    plain,
    same_types,
    shape_text,
)


def _transform(by: Callable[..., Tensor], *, pairs: bool) -> Function:
    """A transform of torch that takes complex numbers, or real ones."""

    def run(x: Tensor, axes: Any, sizes: Any = None) -> Tensor:
        along = [axis_in(axis, x.dim() - pairs, "axes:") for axis in listed(axes)]
        if not along or len(set(along)) != len(along):
            raise Misfit("axes must be some, each once", got=listed(axes), dims=str(along))
        return transformed(by, x, along, None if sizes is None else listed(sizes), pairs=pairs)

    return run


def _framed(window: Tensor, size: Any, step: Any) -> tuple[Tensor, int, int]:
    """The window in the middle of a frame, and how long that is, and how far it moves."""
    size, step = number(size, "frame_size"), number(step, "frame_step")
    if size < 1 or step < 1 or window.dim() != 1 or len(window) > size:
        said = f"{shape_text(window)}, {size}, {step}"
        raise Misfit("the window, frame_size and frame_step do not fit", got=said, dims=said)
    before = (size - len(window)) // 2
    return functional.pad(window, (before, size - len(window) - before)), size, step


def _stft(x: Tensor, window: Tensor, size: Any, step: Any, *, transpose_frames: bool = False) -> Tensor:
    same_types([x, window])
    window, size, step = _framed(window, size, step)
    if x.dim() not in (1, 2) or x.shape[-1] < size:
        raise Misfit(f"no signals of a frame of {size}", got=shape_text(x), dims=str((x.shape, size)))
    frames = x.unfold(-1, size, step) * window
    made = transformed(torch.fft.rfftn, frames, [frames.dim() - 1], None, pairs=False)
    return made.transpose(-3, -2) if transpose_frames else made


def _istft(
    x: Tensor, window: Tensor, size: Any, step: Any, length: Any = None, *, center: bool = False,
    normalized: bool = False,
) -> Tensor:  # fmt: skip
    same_types([x, window])
    window, size, step = _framed(window, size, step)
    if x.dim() not in (3, 4) or x.shape[-3] != size // 2 + 1:
        said = f"[..., {size // 2 + 1}, frames, 2]"
        raise Misfit("the frequencies do not fit frame_size", shape_text(x), said, dims=str((x.shape, size)))
    frames = transformed(torch.fft.irfftn, x.transpose(-3, -2), [x.dim() - 2], [size], pairs=True)
    count, whole = frames.shape[-2], (frames.shape[-2] - 1) * step + size
    check_size([*x.shape[:-3], whole])
    parts = torch.cat([(frames * window).reshape(-1, count, size), (window**2).expand(1, count, size)])
    sums = functional.fold(parts.mT, (1, whole), (1, size), stride=(1, step)).reshape(-1, whole)
    total = torch.where(sums[-1] != 0, sums[:-1] / sums[-1], sums[:-1])
    made = total.reshape(*x.shape[:-3], whole) * (size**0.5 if normalized else 1.0)
    start = size // 2 if center else 0
    if length is None:
        return made[..., start : whole - start]
    wanted = check_size([number(length, "signal_length")])[0]
    made = made[..., start : start + wanted]
    return functional.pad(made, (0, wanted - made.shape[-1]))


ROWS = (
    *(
        Row(kind, plain(_transform(by, pairs=pairs)), (2, 3), values=(1, 2))
        for kind, by, pairs in (
            ("DFT", torch.fft.fftn, True),
            ("IDFT", torch.fft.ifftn, True),
            ("RDFT", torch.fft.rfftn, False),
            ("IRDFT", torch.fft.irfftn, True),
        )
    ),
    Row("STFT", named(_stft), (4, 4), values=(2, 3)),
    Row("ISTFT", named(_istft), (4, 5), values=(2, 3, 4)),
)
