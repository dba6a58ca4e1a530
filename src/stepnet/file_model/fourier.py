"""Transforms between time and frequency of tensors that hold complex numbers as pairs in their last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .misfit import Misfit, check_size


def transformed(
    by: Callable[..., Tensor], x: Tensor, axes: Sequence[int], sizes: Sequence[int] | None, *, pairs: bool
) -> Tensor:
    """What a transform of torch gives, with its complex numbers as pairs.

    Args:
        by: torch.fft.fftn, or another of its family.
        x: real numbers; with `pairs`, complex ones.
        axes: along which, from the front.
        sizes: of the signal along each: what is longer is cut, what is shorter padded; -1: as it is.
        pairs: whether the last axis of x holds pairs.

    Raises:
        Misfit: the sizes do not fit.
    """
    if pairs and (x.dim() < 2 or x.shape[-1] != 2):
        raise Misfit(f"{list(x.shape)} holds no pairs", expected="a last dimension of 2", dims=str(x.shape))
    if sizes is not None:
        if len(sizes) != len(axes) or not all(size > 0 or size == -1 for size in sizes):
            raise Misfit("needs one size for each axis, or -1", got=list(sizes), dims=str((sizes, axes)))
        shape = dict(enumerate(x.shape))
        shape.update((axis, size) for axis, size in zip(axes, sizes, strict=True) if size > 0)
        check_size([*shape.values()])
    few = x.dtype in (torch.float16, torch.bfloat16)  # of which torch transforms none on CPUs
    signal = x.float() if few else x
    bare = [axis for axis, size in enumerate(x.shape) if not size and axis not in axes]
    for axis in bare:  # of no signals MKL makes an error
        one = signal.new_zeros([*signal.shape[:axis], 1, *signal.shape[axis + 1 :]])
        signal = torch.cat([signal, one], axis)  # not F.pad, which torch 2.6 refuses here
    made = by(torch.view_as_complex(signal.contiguous()) if pairs else signal, s=sizes, dim=axes)
    made = torch.view_as_real(made) if made.is_complex() else made
    for axis in bare:
        made = made.narrow(axis, 0, 0)
    return made.to(x.dtype) if few else made
