"""Arithmetic at its edges: of no numbers, and where torch ends the process."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .misfit import Misfit, axes_in, shape_text


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """One whole number by another, rounded towards zero; the least number by -1 is itself, as sums wrap.

    >>> quotient(torch.tensor([-7, -(2**63)]), torch.tensor([2, -1])).tolist()
    [-3, -9223372036854775808]
    """
    if not x.dtype.is_signed:  # there, 255 == -1
        return torch.div(x, y, rounding_mode="trunc")
    turned = y == -1  # the least number divided by which ends the process
    return torch.where(turned, -x, torch.div(x, y.masked_fill(turned, 1), rounding_mode="trunc"))


def extreme(x: Tensor, axes: list[int], keep: bool, kind: str) -> Tensor:
    """`amax` or `amin`; of no numbers, what is less, or more, than all of their type.

    >>> extreme(torch.ones(2, 0), [1], False, "amax").tolist()
    [-inf, -inf]
    """
    if isinstance(x.numel(), torch.SymInt) or x.numel():  # an open size is that of some numbers
        return getattr(x, kind)(axes, keep)
    gone = axes_in(axes, x.dim())
    sizes = [1 if k in gone else size for k, size in enumerate(x.shape) if keep or k not in gone]
    if x.dtype is torch.bool:
        least, most = False, True
    elif x.is_floating_point():
        least, most = -torch.inf, torch.inf
    else:
        least, most = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
    return x.new_full(sizes, least if kind == "amax" else most)


def mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The mean, of whole numbers towards zero.

    Raises:
        Misfit: whole numbers have none where there are none of them.

    >>> mean(torch.tensor([[-3, 0], [1, 4]]), [1], False).tolist()
    [-1, 2]
    """
    if x.is_floating_point():
        return x.mean(axes, keep)
    count = math.prod(x.shape[axis] for axis in axes)
    if isinstance(count, int) and not count:
        raise Misfit("whole numbers have no mean", shape_text(x), "one at least", dims=str(x.shape))
    return torch.div(x.sum(axes, keep), count, rounding_mode="trunc").to(x.dtype)
