"""Convolutions as products of each row: what the taps see, side by side, times the weights."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .pooling import by_tap, sizes_of

_MOST_TAPS, _MOST_GROUPS = 128, 16  # of a convolution that is written out


def _padding(padding: Any, taps: Sequence[int], dilations: Sequence[int]) -> list[tuple[int, int]]:
    """Zeros before and behind each dimension; "same" has the odd one behind."""
    if padding == "same":
        spans = [d * (k - 1) for k, d in zip(taps, dilations, strict=True)]
        return [(n // 2, n - n // 2) for n in spans]
    return [(p, p) for p in sizes_of(0 if padding == "valid" else padding, len(taps))]


def _convolution(dims: int) -> Callable[..., Any]:
    def convolution(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        """The taps side by side, times the weights: a product of each row and a matrix."""
        taps = weight.shape[2:]
        if input.dim() != dims + 2 or taps.numel() > _MOST_TAPS:
            return NotImplemented
        steps, dilations = sizes_of(stride, dims), sizes_of(dilation, dims)
        pads = _padding(padding, taps, dilations)
        rows = None if type(groups) is int else groups
        if rows is not None:
            if not _has_a_row_for_each_group(input, weight.shape[1] * rows, weight, rows):
                return NotImplemented
            input = input.reshape(rows, weight.shape[1], *input.shape[2:])
        elif input.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
            return NotImplemented  # torch says what does not fit
        elif groups > _MOST_GROUPS and weight.shape[1] > 1:
            return NotImplemented
        found = _patches(input, taps, steps, pads, dilations)
        if found is None:
            return NotImplemented
        patches, sizes = found
        if rows is not None:
            own = weight.reshape(rows, -1, *weight.shape[1:]).flatten(3).permute(0, 3, 2, 1).flatten(1, 2)
            result = torch.cat([*patches], -1).flatten(1, -2) @ own
            result = result if bias is None else result + bias.reshape(rows, 1, -1)
            return result.transpose(1, 2).reshape(1, -1, *sizes)
        result = _of_patches(patches, weight.flatten(2), groups).flatten(1, -2)
        result = result if bias is None else result + bias
        return result.transpose(1, 2).reshape(-1, weight.shape[0], *sizes)

    return convolution


def _patches(
    input: Tensor, taps: Sequence[int], steps: Sequence[int], pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
) -> tuple[Sequence[Tensor], list[int]] | None:  # fmt: skip
    """What each tap sees, [rows, *sizes, channels], and those sizes; None where there is nothing to see."""
    widths: Sequence[int] = [p for pad in reversed(pads) for p in pad]
    last = input.movedim(1, -1)  # channels side by side: a patch is copied in long pieces
    x = F.pad(last, [0, 0, *widths]) if any(widths) else last
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[1:-1], taps, steps, dilations, strict=True)
    ]
    if min(sizes, default=0) <= 0:
        return None
    return by_tap(x, taps, sizes, steps, dilations, 1), sizes


def _has_a_row_for_each_group(input: Tensor, channels: Any, weight: Tensor, groups: Any) -> bool:
    """Whether rows lie among the channels, `x.view(1, -1, height, width)`, for weights of each row's own."""
    fits = input.shape[0] == 1 and input.shape[1] == channels and weight.shape[0] % groups == 0
    return fits and all(type(n) is int for n in (input.shape[0], *input.shape[2:], *weight.shape[1:]))


def _transposed_convolution(dims: int) -> Callable[..., Any]:
    def transposed(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Any:  # fmt: skip
        """What each element gives to each tap, a product, added up where the taps lie. No zeros are put
        between the elements or around them before the product: a weight may be infinite."""
        taps = weight.shape[2:]
        if input.dim() != dims + 2 or taps.numel() > _MOST_TAPS:
            return NotImplemented
        rows = None if type(groups) is int else groups
        if rows is not None:
            if not _has_a_row_for_each_group(input, weight.shape[0], weight, rows):
                return NotImplemented
            weight = weight.reshape(rows, -1, *weight.shape[1:])
            input, groups = input.reshape(rows, weight.shape[1], *input.shape[2:]), 1
        elif input.shape[1] != weight.shape[0] or groups > _MOST_GROUPS or weight.shape[0] % groups:
            return NotImplemented
        how = [sizes_of(v, dims) for v in (stride, padding, output_padding, dilation)]
        if any(more >= max(s, d) for s, _, more, d in zip(*how, strict=True)):
            return NotImplemented  # torch says what does not fit
        sizes = [
            (n - 1) * s - 2 * p + d * (k - 1) + more + 1
            for n, k, s, p, more, d in zip(input.shape[2:], taps, *how, strict=True)
        ]
        if min(sizes, default=0) <= 0 or 0 in input.shape[1:]:
            return NotImplemented
        given = input.movedim(1, -1)
        if rows is not None:
            result = _to_taps(given, weight, sizes, *how)
            result = result if bias is None else result + bias.reshape(rows, *(1,) * dims, -1)
            return result.movedim(-1, 1).reshape(1, -1, *sizes)
        given, own = given.chunk(groups, -1), weight.chunk(groups)
        parts = [_to_taps(x, w, sizes, *how) for x, w in zip(given, own, strict=True)]
        result = parts[0] if groups == 1 else torch.cat(parts, -1)
        return (result if bias is None else result + bias).movedim(-1, 1)

    return transposed


def _to_taps(
    x: Tensor, weight: Tensor, sizes: Sequence[int], steps: Sequence[int], pads: Sequence[int],
    _: Sequence[int], dilations: Sequence[int],
) -> Tensor:  # fmt: skip
    """[rows, ..., channels] times weights [channels, new channels, taps], perhaps of each row, as
    [rows, *sizes, new channels]."""
    dims = x.dim() - 2
    taps, matrix = weight.shape[-dims:], weight.flatten(-dims).transpose(-1, -2).flatten(-2)
    every = x @ matrix if matrix.dim() == 2 else (x.flatten(1, -2) @ matrix).unflatten(1, x.shape[1:-1])
    found: list[Tensor] = []
    for tap, part in zip(
        itertools.product(*(range(k) for k in taps)), every.chunk(taps.numel(), -1), strict=True
    ):
        widths: list[int] = []
        for axis, (at, size, s, p, d) in enumerate(
            zip(tap, sizes, steps, pads, dilations, strict=True), start=1
        ):
            if s > 1:
                wide = [0, 0] * (dims + 1 - axis) + [0, s - 1]
                part = F.pad(part.unsqueeze(axis + 1), wide).flatten(axis, axis + 1)
            before = at * d - p
            widths[:0] = [before, size - before - part.shape[axis]]
        found.append(F.pad(part, [0, 0, *widths]) if any(widths) else part)
    return functools.reduce(torch.add, found)


def _of_patches(patches: Sequence[Tensor], weight: Tensor, groups: int) -> Tensor:
    """What each tap sees, [rows, ..., channels], times weights [channels, channels of a group, taps]."""
    if groups == 1:
        return torch.cat([*patches], -1) @ weight.permute(2, 1, 0).reshape(-1, weight.shape[0])
    if weight.shape[1] == 1:
        each = weight.unflatten(0, (groups, -1))  # [groups, channels of each, 1, taps]
        parts = [patch.unsqueeze(-1) * each[:, :, 0, tap] for tap, patch in enumerate(patches)]
        return functools.reduce(torch.add, parts).flatten(-2)
    seen, own = [patch.chunk(groups, -1) for patch in patches], weight.chunk(groups)
    return torch.cat([_of_patches([parts[g] for parts in seen], own[g], 1) for g in range(groups)], -1)


CONVOLUTIONS: dict[Any, Callable[..., Any]] = {
    getattr(torch, f"{name}{dims}d"): made(dims)
    for name, made in (("conv", _convolution), ("conv_transpose", _transposed_convolution))
    for dims in (1, 2, 3)
}
