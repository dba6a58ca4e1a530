"""Sequences cut into windows: the first of each, the second of those that have one, and so on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import LoD, offsets_of, ranges


@dataclass(frozen=True)
class Windows:
    """How sequences are cut.

    Attributes:
        offsets: of the pieces, as they lie in the sequences.
        order: the pieces in the order of their windows, and of their sequences in a window.
        sequences: of each window, the sequences that have rows in it; the first has all sequences.
        in_order: whether `order` is the order in which the pieces lie.
    """

    offsets: Tensor
    order: Tensor
    sequences: tuple[Tensor, ...]
    in_order: bool

    def cut(self, x: LoDTensor) -> list[LoDTensor]:
        """The windows of x, whose outermost sequences are cut. Differentiable, in one pass over the rows."""
        lod = LoD.trusted((self.offsets, *x._lod.levels[1:]), x._lod.rows)
        values = x._values
        if not self.in_order:
            lod, rows = lod.take(self.order)
            values = values.index_select(0, beside(rows, values))
        spans, start = [], 0
        for own in self.sequences:
            spans.append(lod.span(start, start + len(own)))
            start += len(own)
        parts = values.split([last - first for _, first, last in spans])
        return [
            LoDTensor._make(part, LoD.trusted(levels, last - first))
            for part, (levels, first, last) in zip(parts, spans, strict=True)
        ]

    def join(self, windows: list[LoDTensor], whole: Tensor) -> LoDTensor:
        """What has been made of the windows as sequences of the offsets `whole`. Differentiable."""
        y = LoDTensor.cat(windows) if len(windows) > 1 else windows[0]
        if not self.in_order:
            y = y.select_sequences(_inverse(self.order))
        return LoDTensor._make(y._values, LoD.trusted((whole, *y._lod.levels[1:]), y._lod.rows))


@outside_modes
def windows(offsets: Tensor, size: int, reverse: bool = False) -> Windows:
    """Cut sequences into windows of `size` elements, counted from their ends where `reverse` says so.

    >>> cut = windows(torch.tensor([0, 5, 5, 7]), 2)
    >>> cut.offsets, cut.order
    (tensor([0, 2, 4, 5, 5, 7]), tensor([0, 3, 4, 1, 2]))
    >>> cut.sequences
    (tensor([0, 1, 2]), tensor([0]), tensor([0]))
    """
    lengths = offsets.diff()
    counts = ((lengths + size - 1) // size).clamp(min=1)
    ends = counts.cumsum(0)
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    place = torch.arange(len(owner)) - (ends - counts)[owner]  # of each piece in its sequence
    if reverse:
        place = counts[owner] - 1 - place
        own = (offsets[1:][owner] - (place + 1) * size).maximum(offsets[:-1][owner])
    else:
        own = offsets[:-1][owner] + place * size
    order = place.sort(stable=True).indices
    each = torch.bincount(place).tolist() if len(place) else [0]
    in_order = torch.equal(order, torch.arange(len(order)))
    return Windows(pad(own, (0, 1), value=int(offsets[-1])), order, owner[order].split(each), in_order)


@outside_modes
def _inverse(order: Tensor) -> Tensor:
    out = torch.empty_like(order)
    out[order] = torch.arange(len(order))
    return out


def part(x: LoDTensor, sequences: Tensor, starts: Tensor, counts: Tensor) -> LoDTensor:
    """Of some of the outermost sequences of x, the elements from `starts` on, so many of each.

    >>> x = LoDTensor(torch.arange(7), [[0, 4, 7]])
    >>> part(x, torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 2])).values
    tensor([1, 2, 4, 5])
    """
    levels, index = _part(x._lod, sequences, starts, counts)
    first = int(index[0]) if len(index) else 0
    if len(sequences) == 1:
        return LoDTensor._make(x._values[first : first + len(index)], levels)
    return LoDTensor._make(x._values.index_select(0, beside(index, x._values)), levels)


@outside_modes
def _part(lod: LoD, sequences: Tensor, starts: Tensor, counts: Tensor) -> tuple[LoD, Tensor]:
    chosen = ranges(lod.levels[0][sequences] + starts, counts)
    if len(lod.levels) == 1:
        return LoD.trusted((offsets_of(counts),), len(chosen)), chosen
    below, rows = LoD.trusted(lod.levels[1:], lod.rows).take(chosen)
    return LoD.trusted((offsets_of(counts), *below.levels), below.rows), rows
