"""Axes of other sizes: numbers between those that are there, axis by axis.

places in x of the new numbers     place(k) by `where`
nearest                            x[rounded(place)]
linear, cubic                      sum of weight(place - j) * x[j] over the j around it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .by_data import by_data
from .misfit import Misfit, check_size

WHERE: dict[str, Callable[[Tensor, int, int, float], Tensor]] = {
    "half_pixel": lambda k, old, new, scale: (k + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda k, old, new, scale: ((k + 0.5) / scale - 0.5) * torch.sym_min(new - 1, 1),
    "asymmetric": lambda k, old, new, scale: k / scale,
    "tf_half_pixel_for_nn": lambda k, old, new, scale: (k + 0.5) / scale,
    "align_corners": lambda k, old, new, scale: k * ((old - 1) / torch.sym_max(new - 1, 1)),
    "half_pixel_symmetric": lambda k, old, new, scale: (
        old / 2 * (1 - new / (scale * old)) + (k + 0.5) / scale - 0.5
    ),
}
ROUNDED: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "round_prefer_floor": lambda at, fewer: (at - 0.5).ceil(),
    "round_prefer_ceil": lambda at, fewer: (at + 0.5).floor(),
    "floor": lambda at, fewer: at.floor(),
    "ceil": lambda at, fewer: at.ceil(),
    "simple": lambda at, fewer: at.ceil() if fewer else at.trunc(),
}


@dataclass(frozen=True)
class Resizing:
    """How numbers between others are made.

    Attributes:
        kind: nearest, linear or cubic.
        where: a key of `WHERE`.
        rounding: of nearest, a key of `ROUNDED`.
        cubic: its coefficient.
        antialias: fewer numbers are means of all that they stand for.
        inside: what lies outside of x has no weight; else the numbers at the edges are repeated.
    """

    kind: str
    where: str
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    inside: bool = False

    def run(self, x: Tensor, axes: Sequence[int], sizes: Sequence[int], scales: Sequence[float]) -> Tensor:
        """x with other sizes of some axes.

        Raises:
            Misfit: they do not fit.
        """
        check_new_sizes(x, axes, sizes)
        if self.kind != "nearest" and x.dtype not in (torch.float32, torch.float64):
            made = self.run(x.to(torch.float32), axes, sizes, scales)
            if not x.dtype.is_floating_point:
                made = made.round().clamp(torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
            return made.to(x.dtype)
        for axis, size, scale in zip(axes, sizes, scales, strict=True):
            if by_data((size, scale)) or scale != 1 or size != x.shape[axis]:
                x = self._along(x, axis, size, scale)
        return x

    def _along(self, x: Tensor, axis: int, size: int, scale: float) -> Tensor:
        old = x.shape[axis]
        k = torch.arange(size, dtype=torch.float32, device=x.device)
        at = WHERE[self.where](k, old, size, scale)
        if self.kind == "nearest":
            places = ROUNDED[self.rounding](at, scale < 1).clamp(0, old - 1)
            return x.index_select(axis, places.long())
        return self._between(x, axis, at, scale)

    def _between(self, x: Tensor, axis: int, at: Tensor, scale: float) -> Tensor:
        old, wide = x.shape[axis], 1.0 if not self.antialias or scale >= 1 else scale
        reach = min(math.ceil((1 if self.kind == "linear" else 2) / wide), old + 2)
        first = at.floor()
        near = torch.arange(1 - reach, reach + 1, dtype=at.dtype, device=at.device)
        places = first.unsqueeze(1) + near
        weights = self._weights((at.unsqueeze(1) - places).abs() * wide)
        if self.inside:
            weights = torch.where((places >= 0) & (places < old), weights, 0.0)
        if self.inside or wide != 1:
            weights = weights / weights.sum(1, keepdim=True)
        taken, weights = places.clamp(0, old - 1).long(), weights.to(x.dtype)
        shape = [-1 if d == axis else 1 for d in range(x.dim())]
        parts = [x.index_select(axis, taken[:, j]) * weights[:, j].reshape(shape) for j in range(len(near))]
        return sum(parts[1:], parts[0])

    def _weights(self, far: Tensor) -> Tensor:
        if self.kind == "linear":
            return (1 - far).clamp(min=0)
        a = self.cubic
        inner = ((a + 2) * far - (a + 3)) * far * far + 1
        outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        return torch.where(far <= 1, inner, torch.where(far < 2, outer, 0.0))


def times(size: Any, scale: float, slack: float = 0.0) -> Any:
    """A size that a scale makes; in whole numbers where it can be, which open sizes are."""
    if by_data((scale,)):
        return torch.sym_int(size * scale + slack)  # math.floor of what a trace knows nothing of has no node
    if scale == int(scale):
        return size * int(scale)
    return size // int(1 / scale) if 1 / scale == int(1 / scale) else math.floor(size * scale + slack)


def check_new_sizes(x: Tensor, axes: Sequence[int], sizes: Sequence[Any]) -> None:
    """Refuse sizes that no tensor has, or that x has no numbers for."""
    shape = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        if by_data((size,)):
            torch._check(size >= 0)
        elif size < 0 or (size and not shape[axis]):
            raise Misfit(f"axis {axis} of {list(x.shape)} cannot have such a size", size, dims=(axis, size))
        shape[axis] = size
    check_size(shape)
