"""DFT and STFT: signals as frequencies, with complex numbers as pairs in the last axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import same_types, transformed

from .info import Info, Misfit, Run, check_size, op


@op("DFT", inputs=(1, 3))
def _dft(node: Info) -> Run:
    inverse, half = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    sizes, axes = node.numbers(1), node.numbers(2, "axis")
    usual = 1 if node.opset < 20 else -2

    def dft(*inputs: Any) -> Tensor:
        x, size, axis = inputs[0], _one(sizes(inputs), "length"), _one(axes(inputs), "axis")
        axis, rank = usual if axis is None else axis, x.dim()
        if not -rank <= axis < rank or axis % rank == rank - 1:
            raise Misfit("an axis holds no signal", axis, f"an axis of {[*x.shape]} besides the last")
        return _frequencies(x, axis % rank, size, half=half, inverse=inverse)

    return dft


@op("STFT", inputs=(2, 4))
def _stft(node: Info) -> Run:
    half, steps, sizes = bool(node.get("onesided", 1)), node.numbers(1), node.numbers(3)

    def stft(*inputs: Any) -> Tensor:
        x, window = inputs[0], inputs[2] if node.has(2) else None
        step, size = _one(steps(inputs), "step"), _one(sizes(inputs), "length")
        if x.dim() != 3:
            raise Misfit("needs [batch, signal, 1 or 2]", [*x.shape])
        if window is not None:
            same_types([x, window])
            if window.dim() != 1 or size not in (None, len(window)):
                raise Misfit("the window is not of one axis, as long as a frame", [*window.shape], size)
            size = len(window)
        size = x.shape[1] if size is None else size
        if step is None or step < 1 or not 0 < size <= x.shape[1]:
            raise Misfit(
                "frames do not fit the signal",
                f"frames of {size}, {step} apart, in {x.shape[1]}",
                f"frames of 1 to {x.shape[1]}, 1 or more apart",
            )
        check_size([x.shape[0], (x.shape[1] - size) // step + 1, size, 2])
        frames = x.unfold(1, size, step).transpose(2, 3)
        frames = frames if window is None else frames * window[:, None]
        return _frequencies(frames, 2, size, half=half, inverse=False)

    return stft


def _one(found: Any, what: str) -> Any:
    """A number that may be left out."""
    flat = found if isinstance(found, list) else [found]
    if len(flat) != 1 or not isinstance(flat[0], (int, torch.SymInt, type(None))):
        raise Misfit(f"the {what} is not one whole number", found)
    return flat[0]


def _frequencies(x: Tensor, axis: int, size: int | None, *, half: bool, inverse: bool) -> Tensor:
    """Signals along an axis as frequencies, or back; `half`: as those that say all of a real signal."""
    kinds = (2 if inverse else 1,) if half else (1, 2)
    if x.shape[-1] not in kinds:
        one_sided = "one-sided transforms take real numbers, and their inverses pairs"
        raise Misfit(
            one_sided if half else "holds no numbers, real or complex",
            [*x.shape],
            f"a last axis of {' or '.join(map(str, kinds))}",
        )
    if size is not None and size < 1:
        raise Misfit("the length must be 1 or more", size)
    if half:
        by = torch.fft.irfftn if inverse else torch.fft.rfftn
    else:
        by = torch.fft.ifftn if inverse else torch.fft.fftn
    pairs = x.shape[-1] == 2
    signal, sizes = x if pairs else x.squeeze(-1), None if size is None else [size]
    made = transformed(by, signal, [axis], sizes, pairs=pairs)
    return made.unsqueeze(-1) if half and inverse else made
