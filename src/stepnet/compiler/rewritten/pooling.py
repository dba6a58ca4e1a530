"""Means and maxima of windows of a row, and what is beside its borders, in plain operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data.modes import autocast_dtype

_MOST = 128  # windows, or elements of one, that are written out


def sizes_of(value: Any, dims: int) -> list[Any]:
    """A number for each dimension, where one may stand for all."""
    return [*value] * (dims // len(value)) if isinstance(value, Sequence) else [value] * dims


def by_tap(
    x: Tensor, taps: Sequence[int], counts: Sequence[int], steps: Sequence[int], dilations: Sequence[int],
    behind: int = 0,
) -> list[Tensor]:  # fmt: skip
    """The elements of all windows over the last dimensions but those `behind`, by their place in them."""
    parts: list[Tensor] = []
    for tap in itertools.product(*map(range, taps)):
        each = zip(tap, counts, steps, dilations, strict=True)
        ends = [slice(at * d, at * d + (n - 1) * s + 1, s) for at, n, s, d in each]
        parts.append(x[(..., *ends, *[slice(None)] * behind)])
    return parts


class _Windows(NamedTuple):
    """Windows over the last dimensions: their sizes, how many there are, and how far apart."""

    taps: list[int]
    pads: list[int]
    beyond: list[int]  # how far the last window reaches behind what is padded
    counts: list[int]
    steps: list[int]
    dilations: list[int]

    @property
    def all_inside(self) -> bool:
        """Whether no window sees what is beyond a border."""
        return not any((*self.pads, *self.beyond))

    def padded(self, x: Tensor, beside: float) -> Tensor:
        """What windows go over, without what the last ones reach behind it."""
        return _beside(x, [(p, p) for p in self.pads], beside)

    def seen(self, x: Tensor, beside: float) -> list[Tensor]:
        """The elements of all windows, by their place in them; `beside` is what stands beyond the borders."""
        return by_tap(self._all(x, beside), self.taps, self.counts, self.steps, self.dilations)

    def stacked(self, x: Tensor, beside: float) -> Tensor:
        """The same, along a last dimension: where no two windows share an element, x in another shape."""
        apart = self.steps == self.taps and not any(d > 1 for d in self.dilations)
        if not apart:
            return torch.stack(self.seen(x, beside), -1)
        x, dims = self._all(x, beside), len(self.taps)
        for i, (count, tap) in enumerate(zip(reversed(self.counts), reversed(self.taps), strict=True)):
            x = x.narrow(-1 - 2 * i, 0, count * tap).unflatten(-1 - 2 * i, (count, tap))
        return x.movedim([*range(1 - 2 * dims, 0, 2)], [*range(-dims, 0)]).flatten(-dims)

    def _all(self, x: Tensor, beside: float) -> Tensor:
        return _beside(self.padded(x, beside), [(0, far) for far in self.beyond], beside)


def _beside(x: Tensor, sizes: Sequence[tuple[int, int]], value: float) -> Tensor:
    """x with so much of a value before and behind each of its last dimensions."""
    flat = [n for pair in reversed(sizes) for n in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


def _windows(
    x: Tensor, dims: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> _Windows | None:
    """None of those that are not written out; torch says what does not fit."""
    taps, pads, dilations = (sizes_of(value, dims) for value in (size, padding, dilation))
    steps = taps if stride is None or stride == [] else sizes_of(stride, dims)
    sizes = x.shape[-dims:]
    if x.dim() <= dims or not all(type(n) is int for n in (*sizes, *taps, *steps, *pads, *dilations)):
        return None
    if min([*taps, *steps, *dilations]) < 1 or prod(taps) > _MOST or not x.is_floating_point():
        return None
    each = zip(sizes, taps, steps, pads, dilations, strict=True)
    counts, beyond = [], []
    for n, k, s, p, d in each:
        whole, span = n + 2 * p, d * (k - 1) + 1
        if n < span:  # of which torch takes some
            return None
        count = (whole - span) // s + 1
        if ceil_mode and (whole - span) % s and count * s < n + p:
            count += 1  # one more that begins inside, and ends where there is nothing
        counts.append(count)
        beyond.append(max((count - 1) * s + span - whole, 0))
    wrong = any(p < 0 or 2 * p > k for p, k in zip(pads, taps, strict=True))
    return None if wrong else _Windows(taps, pads, beyond, counts, steps, dilations)


def _mean_pool(dims: int) -> Callable[..., Any]:
    def pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        """The elements of all windows by their place in them, added up."""
        windows = _windows(input, dims, kernel_size, stride, padding, 1, ceil_mode)
        if windows is None:
            return NotImplemented

        def summed(x: Tensor) -> Tensor:
            return reduce(torch.add, windows.seen(x, 0.0))

        if (
            divisor_override is not None
            or windows.all_inside
            or (count_include_pad and not any(windows.beyond))
        ):
            return summed(input) / (divisor_override or prod(windows.taps))
        ones = torch.ones(*input.shape[-dims:], dtype=input.dtype)
        if not count_include_pad:
            return summed(input) / summed(ones)
        counted = windows._replace(pads=[0] * dims)
        return summed(input) / reduce(torch.add, counted.seen(windows.padded(ones, 1.0), 0.0))

    return pool


def _max_pool(dims: int) -> Callable[..., Any]:
    def pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """The first that is largest gets the gradient, or the last that is NaN."""
        windows = _windows(input, dims, kernel_size, stride, padding, dilation, ceil_mode)
        if windows is None or return_indices:
            return NotImplemented
        taps = windows.stacked(input, -torch.inf)
        best = _largest(taps, -1).squeeze(-1)
        if windows.all_inside:
            return best
        there = torch.ones(*input.shape[-dims:], dtype=input.dtype)  # what is beyond a border is not chosen
        first = windows.stacked(there, 0.0).argmax(-1, keepdim=True).expand_as(taps[..., :1])
        return torch.where(best == -torch.inf, taps.gather(-1, first).squeeze(-1), best)

    return pool


def _adaptive_mean_pool(dims: int) -> Callable[..., Any]:
    def pool(input: Tensor, output_size: Any) -> Any:
        """The mean of each window along one dimension after the other."""
        wanted = sizes_of(output_size, dims)
        if input.dim() <= dims or not input.is_floating_point() or len(wanted) != dims:
            return NotImplemented
        for dim, out in zip(range(-dims, 0), wanted, strict=True):
            windows = _adaptive_windows(input.shape[dim], out)
            if windows is None:
                return NotImplemented
            means = [input.narrow(dim, a, b - a).mean(dim, keepdim=True) for a, b in windows]
            input = input if len(windows) == input.shape[dim] else torch.cat(means, dim)
        return input.clone() if list(wanted) == [None] * dims else input

    return pool


def _adaptive_max_pool(dims: int) -> Callable[..., Any]:
    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        """The largest of each window along the last dimension, then along those before it: of ties the first
        in a row gets the gradient."""
        wanted = sizes_of(output_size, dims)
        if return_indices or input.dim() <= dims or not input.is_floating_point() or len(wanted) != dims:
            return NotImplemented
        for dim, out in zip(range(-1, -dims - 1, -1), reversed(wanted), strict=True):
            windows = _adaptive_windows(input.shape[dim], out)
            if windows is None:
                return NotImplemented
            parts = [_largest(input.narrow(dim, a, b - a), dim) for a, b in windows]
            input = torch.cat(parts, dim)
        return input

    return pool


def _largest(x: Tensor, dim: int) -> Tensor:
    best = x.max(dim, keepdim=True)[0]
    return torch.where(best.isnan(), x.flip(dim).max(dim, keepdim=True)[0], best) if x.shape[dim] > 1 else x


def _adaptive_windows(size: Any, out: Any) -> list[tuple[int, int]] | None:
    """Where each of so many windows begins and ends; None of those that are not written out."""
    out = size if out is None else out
    if not (type(size) is int and type(out) is int and size and 0 < out <= _MOST):
        return None
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Beside the borders what is near them: mirrored, or the last."""
    sides = list(zip(pad[::2], pad[1::2], strict=False))
    if mode not in ("reflect", "replicate") or len(pad) % 2 or input.dim() <= len(sides):
        return NotImplemented
    on_the_list = (mode, len(sides)) != ("reflect", 3)  # of those that autocast computes in float32
    if on_the_list and autocast_dtype("cpu") is not None and input.dtype in (torch.bfloat16, torch.float16):
        input = input.float()
    for dim, (before, behind) in enumerate(sides, start=1):
        size = input.shape[-dim]
        most = size - 1 if mode == "reflect" else _MOST
        if type(size) is not int or not size or not 0 <= before <= most or not 0 <= behind <= most:
            return NotImplemented
        if mode == "reflect":
            left = input.narrow(-dim, 1, before).flip(-dim)
            right = input.narrow(-dim, size - 1 - behind, behind).flip(-dim)
        else:
            left = input.narrow(-dim, 0, 1).repeat_interleave(before, -dim)
            right = input.narrow(-dim, size - 1, 1).repeat_interleave(behind, -dim)
        parts = [part for part, n in ((left, before), (input, 1), (right, behind)) if n]
        input = torch.cat(parts, -dim) if len(parts) > 1 else input
    return input


_EXACT = (torch.float32, torch.float64)
_KINDS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}  # and of how many dimensions they are


def _interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """The elements around each place, by how near they are; the last dimension first, as torch does it."""
    dims = input.dim() - 2
    nearest = mode in ("nearest", "nearest-exact")
    if antialias or (align_corners is not None if nearest else _KINDS.get(mode) != dims):
        return NotImplemented
    if dims < 1 or (size is None) == (scale_factor is None) or not (nearest or input.dtype in _EXACT):
        return NotImplemented
    given = sizes_of(scale_factor if size is None else size, dims)
    if len(given) != dims or not all(isinstance(number, (int, float)) for number in given):
        return NotImplemented
    ways: list[tuple[int, int, float | None]] = []
    for old, number in zip(input.shape[2:], given, strict=True):
        if type(old) is not int or not old:
            return NotImplemented
        new = int(number) if size is not None else int(old * number)
        step = None if size is not None or recompute_scale_factor else 1 / number
        if not 0 < new <= _MOST or (new in (old, 2 * old) and step not in (None, old / new)):
            return NotImplemented  # torch's kernels differ in whether they look at the factor, then
        ways.append((old, new, step))
    corners = bool(align_corners)
    for dim, (old, new, step) in reversed(list(enumerate(ways, start=2))):
        if nearest and new % old == 0:
            input = input.repeat_interleave(new // old, dim) if new > old else input
        else:
            input = _resized(input, dim, _taps(mode, old, new, step, corners, input.dtype))
    return input.clone()


def _taps(
    mode: str, old: int, new: int, step: float | None, corners: bool, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor | None]]:
    """Which elements make each new one, and how much of each; None: all of it."""
    nearest = mode.startswith("nearest")
    real = torch.float32 if nearest else dtype
    along = torch.arange(new, dtype=real)
    if corners:
        at = along * ((torch.tensor(old - 1, dtype=real) / (new - 1)) if new > 1 else 0)
    else:
        step_of = torch.tensor(old, dtype=real) / new if step is None else torch.tensor(step, dtype=real)
        at = along * step_of if mode == "nearest" else (along + 0.5) * step_of
        at = at if nearest else at - 0.5
    if nearest:
        return [(at.long().clamp(max=old - 1), None)]
    if mode != "bicubic":
        at = at.clamp(min=0)
    first = at.floor().long().clamp(max=old - 1)
    t = (at - first).clamp(0, 1)
    if mode != "bicubic":
        return [(first, 1 - t), ((first + 1).clamp(max=old - 1), t)]
    far = [(((-0.75 * u + 3.75) * u - 6) * u + 3) for u in (t + 1, 2 - t)]
    near = [(1.25 * u - 2.25) * u * u + 1 for u in (t, 1 - t)]
    weights = (far[0], *near, far[1])
    return [((first + k).clamp(0, old - 1), weight) for k, weight in enumerate(weights, start=-1)]


def _resized(x: Tensor, dim: int, taps: list[tuple[Tensor, Tensor | None]]) -> Tensor:
    parts = [x.index_select(dim, at) for at, _ in taps]
    weights = [near.view(-1, *[1] * (x.dim() - 1 - dim)) for _, near in taps if near is not None]
    return reduce(torch.add, map(torch.mul, parts, weights)) if weights else parts[0]


POOLING: dict[Any, Callable[..., Any]] = {
    **{
        getattr(F, f"{name}{dims}d"): made(dims)
        for name, made in (
            ("avg_pool", _mean_pool), ("max_pool", _max_pool),
            ("adaptive_avg_pool", _adaptive_mean_pool), ("adaptive_max_pool", _adaptive_max_pool),
        )
        for dims in (1, 2, 3)
    },
    F.pad: _pad,
    F.interpolate: _interpolate,
}  # fmt: skip
