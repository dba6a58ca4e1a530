"""Windows that slide over axes of space: where they stand, and what is taken of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .misfit import Misfit


@dataclass(frozen=True)
class Window:
    """A window in each axis of space.

    Attributes:
        kernel, strides, dilations: a number for each axis.
        begin, end: what is padded, where `auto` is None.
        auto: same_upper, same_lower or valid.
        rounding: of the number of windows: floor, ceil, or ceil_torch, without one that begins in padding.
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    begin: Sequence[int]
    end: Sequence[int]
    auto: str | None = None
    rounding: str = "floor"

    def __post_init__(self) -> None:
        sizes = {len(part) for part in (self.kernel, self.strides, self.dilations, self.begin, self.end)}
        if len(sizes) > 1:
            raise Misfit("kernel, strides, dilations and pads have different lengths")
        if any(s < 1 for s in (*self.kernel, *self.strides, *self.dilations)):
            got = f"{list(self.kernel)}, {list(self.strides)}, {list(self.dilations)}"
            raise Misfit("kernel, strides and dilations must be at least 1", got=got)
        if any(not 0 <= p < 2**31 for p in (*self.begin, *self.end)):
            raise Misfit("pads must be >= 0", got=f"{self.begin}, {self.end}", expected="0 to 2**31 - 1")

    def check(self, x: Tensor) -> int:
        """How many axes of space it has.

        Raises:
            Misfit: x has others.
        """
        rank = x.dim() - 2
        if rank not in (1, 2, 3) or len(self.kernel) != rank:
            raise Misfit(
                f"kernel {list(self.kernel)} does not fit data {list(x.shape)}",
                dims=(x.dim(), len(self.kernel)),
            )
        return rank

    def pads(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """What is padded before and behind each axis."""
        if self.auto == "valid":
            return [(0, 0)] * len(self.kernel)
        if self.auto is None:
            return list(zip(self.begin, self.end, strict=True))
        pads = []
        for size, k, stride, dilation in zip(sizes, self.kernel, self.strides, self.dilations, strict=True):
            total = max(0, (math.ceil(size / stride) - 1) * stride + (k - 1) * dilation + 1 - size)
            small, big = total // 2, total - total // 2
            pads.append((small, big) if self.auto == "same_upper" else (big, small))
        return pads

    def more(self, sizes: Sequence[int]) -> list[int]:
        """What is padded besides, so that a last, incomplete window counts."""
        extra = []
        for i, (size, (a, b)) in enumerate(zip(sizes, self.pads(sizes), strict=True)):
            wide, step = (self.kernel[i] - 1) * self.dilations[i] + 1, self.strides[i]
            rest = size + a + b - wide
            inside = self.rounding == "ceil" or b + step <= wide  # where the last one begins, or need not
            if self.rounding == "floor" or (isinstance(rest, int) and rest < 0):
                extra.append(0)
            elif not isinstance(rest, int) and inside:
                extra.append(step - 1)  # what is too much is no window
            else:
                count = -(-rest // step) + 1
                count = count if inside else torch.sym_min(count, -(-(size + a) // step))
                extra.append((count - 1) * step - rest)
        return extra

    def pad(self, x: Tensor, value: float, *, more: bool = True) -> Tensor:
        """x with its padding; without `more`, that of incomplete windows is zero."""
        sizes = list(x.shape[2:])
        pads, extra = self.pads(sizes), self.more(sizes)
        flat = [n for (a, b), c in zip(pads[::-1], extra[::-1], strict=True) for n in (a, b + c * more)]
        x = F.pad(x, flat, value=value) if _some(flat) else x
        for axis, k, dilation in zip(range(2, x.dim()), self.kernel, self.dilations, strict=True):
            size, wide = x.shape[axis], (k - 1) * dilation + 1
            if isinstance(size, int) and size < wide:
                what, most = f"its window is wider than axis {axis}", f"at most {size}, with its padding"
                raise Misfit(what, f"a window of {wide}", most, dims=(size, wide))
        rest = [n for c in extra[::-1] for n in (0, c)]
        return x if more or not _some(rest) else F.pad(x, rest)

    def parts(self, x: Tensor) -> Tensor:
        """What padded data has in each window: [batch, channels, windows..., numbers]."""
        for axis, (k, stride, dilation) in enumerate(
            zip(self.kernel, self.strides, self.dilations, strict=True), 2
        ):
            x = x.unfold(axis, (k - 1) * dilation + 1, stride)[..., ::dilation]
        return x.flatten(2 + len(self.kernel))


def _some(sizes: Sequence[int]) -> bool:
    """Whether anything is padded; an open size may be."""
    return any(not isinstance(size, int) or size for size in sizes)


def max_pool(window: Window, x: Tensor) -> Tensor:
    """The largest number of each window."""
    rank = window.check(x)
    run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    return run(window.pad(x, _least(x)), list(window.kernel), list(window.strides), 0, list(window.dilations))


def max_places(window: Window, x: Tensor) -> Tensor:
    """Where the largest number of each window stands among all numbers."""
    window.check(x)
    values = window.parts(window.pad(x, _least(x)))
    places = torch.arange(math.prod(x.shape[2:]), dtype=torch.float64, device=x.device).reshape(x.shape[2:])
    places = window.parts(window.pad(places[None, None], -1.0).long())
    largest = values == values.amax(-1, True)
    at = torch.where(largest & (places >= 0), 1, 0).argmax(-1, True)
    channels = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(x.shape[2:])
    found = places.expand(values.shape).gather(-1, at).squeeze(-1)
    return found + channels.reshape(*x.shape[:2], *(1,) * (x.dim() - 2))


def _least(x: Tensor) -> float:
    return float("-inf") if x.is_floating_point() else float(torch.iinfo(x.dtype).min)


def mean_pool(window: Window, x: Tensor, *, with_padding: bool) -> Tensor:
    """The mean of each window; padding may count, with `ceil` what is added for incomplete windows, too."""
    rank = window.check(x)
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    more = not with_padding or window.rounding == "ceil"
    tables = window.pad(x, 0.0), window.pad(counted, 1.0 if with_padding else 0.0, more=more)
    if any(dilation > 1 for dilation in window.dilations):
        total, count = (window.parts(table).mean(-1) for table in tables)
    else:
        run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        total, count = (run(table, list(window.kernel), list(window.strides)) for table in tables)
    return total / count.masked_fill(count == 0, 1)  # zero where a window holds nothing


def transposed(
    window: Window, x: Tensor, weight: Tensor, bias: Tensor | None, *,
    groups: int, more: Sequence[int], sizes: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    """What a convolution with this window is the gradient of.

    Args:
        window: of the convolution; what it pads is cut off.
        x: [batch, channels, ...].
        weight: [channels, channels of a group, ...].
        bias: a number for each channel.
        groups: of channels.
        more: numbers behind each axis that no number of x reaches.
        sizes: of the axes of space, which say what is cut off; None: the window says it.
    """
    rank = window.check(x)
    if weight.shape[0] != x.shape[1] or len(more) != rank or (sizes is not None and len(sizes) != rank):
        raise Misfit(
            f"data {list(x.shape)} and kernel {list(weight.shape)} do not fit",
            dims=(x.shape[1], weight.shape[0]),
        )
    low, high = list(window.begin), list(window.end)
    if sizes is not None:
        for i, size in enumerate(sizes):
            last = window.strides[i] * (x.shape[i + 2] - 1) + window.dilations[i] * (window.kernel[i] - 1)
            total = last + 1 + more[i] - size
            half = max(total, 0) // 2
            if window.auto is not None:
                low[i] = half if window.auto == "same_upper" else max(total, 0) - half
            high[i] = total - low[i]
    run: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    out = run(x, weight, bias, list(window.strides), 0, 0, groups, list(window.dilations))
    for axis, (before, behind, extra) in enumerate(zip(low, high, more, strict=True), 2):
        if extra > behind:  # what no number of x reaches
            shape = list(out.shape)
            shape[axis] = extra - behind
            rest = out.new_zeros(shape)
            out = torch.cat([out, rest if bias is None else rest + bias.reshape(-1, *(1,) * rank)], axis)
        out = out.narrow(axis, before, max(out.shape[axis] - max(behind - extra, 0) - before, 0))
    return out
