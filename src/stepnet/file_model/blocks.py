"""Blocks of images put back where they were cut out, summed where they overlap; blocks as channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor

from .misfit import Misfit, check_size


def put_back(
    x: Tensor, image: Sequence[int], block: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    begin: Sequence[int], end: Sequence[int],
) -> Tensor:  # fmt: skip
    """Images `[batch, channels, *image]` of blocks `[batch, channels * elements of a block, blocks]`.

    Args:
        x: the blocks.
        image, block: sizes, a number for each axis, as all that follows.
        strides: from a block to the next one.
        dilations: from an element of a block to the next one.
        begin, end: how many places stand around the image.

    Raises:
        Misfit: there are other blocks than the image has.
    """
    rank = len(image)
    if any(len(part) != rank for part in (block, strides, dilations, begin, end)):
        raise Misfit("image, block, strides, dilations and pads have different lengths")
    if min((*strides, *dilations, *block), default=0) < 1 or min((*begin, *end), default=0) < 0:
        raise Misfit("block, strides and dilations must be at least 1, and pads not negative")
    padded = [a + size + b for a, size, b in zip(begin, image, end, strict=True)]
    reach = [(b - 1) * d + 1 for b, d in zip(block, dilations, strict=True)]
    counts = [(p - r) // s + 1 for p, r, s in zip(padded, reach, strides, strict=True)]
    size = math.prod(block)
    if x.dim() != 3 or x.shape[1] % size or x.shape[2] != math.prod(counts) or min(counts, default=0) < 0:
        raise Misfit(
            "holds other blocks than the image has",
            got=list(x.shape),
            expected=f"[batch, channels * {size}, {math.prod(max(n, 0) for n in counts)}]",
            dims=str(x.shape),
        )
    batch, channels = x.shape[0], x.shape[1] // size
    out = x.new_zeros(check_size([batch, channels, *padded]))
    parts = x.reshape(batch, channels, size, *counts).unbind(2) if all(counts) else ()
    for part, at in zip(parts, itertools.product(*map(range, block)), strict=False):
        ways = zip(at, dilations, strides, counts, strict=True)
        out[(..., *(slice(k * d, k * d + s * (n - 1) + 1, s) for k, d, s, n in ways))] += part
    return out[(..., *(slice(a, a + size) for a, size in zip(begin, image, strict=True)))]


def depth_to_space(x: Tensor, block: int, blocks_first: bool) -> Tensor:
    """Blocks of so many channels side by side in space. `blocks_first`: how the channels are numbered."""
    batch, channels, *space = x.shape
    rank = len(space)
    kept, blocks = channels // block**rank, [block] * rank
    x = x.reshape([batch, *blocks, kept, *space] if blocks_first else [batch, kept, *blocks, *space])
    at = 1 if blocks_first else 2
    order = [0, rank + 1 if blocks_first else 1]
    order += [place for k in range(rank) for place in (rank + 2 + k, at + k)]
    return x.permute(order).reshape([batch, kept, *(size * block for size in space)])


def space_to_depth(x: Tensor, block: int, blocks_first: bool) -> Tensor:
    """The inverse."""
    batch, channels, *space = x.shape
    rank = len(space)
    x = x.reshape([batch, channels, *(part for size in space for part in (size // block, block))])
    inner, outer = [3 + 2 * k for k in range(rank)], [2 + 2 * k for k in range(rank)]
    x = x.permute([0, *inner, 1, *outer] if blocks_first else [0, 1, *inner, *outer])
    return x.reshape([batch, channels * block**rank, *(size // block for size in space)])
