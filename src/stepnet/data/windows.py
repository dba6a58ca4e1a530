"""Sequences cut into windows: the first of each, the second of those that have one, and so on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from stepnet.data.heap import give_back, new_table
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import LoD, offsets_of, ranges

Place: TypeAlias = "Tensor | tuple[int, int]"  # indices, or where they start and how many they are


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

    def places(self) -> list[Place]:
        """Of each window, the elements of the sequences that lie in it."""
        lod, elements = LoD.trusted((self.offsets,), int(self.offsets[-1])).take(self.order)
        ends = torch.tensor([0, *map(len, self.sequences)]).cumsum(0)
        spans = itertools.pairwise(lod.levels[0][ends].tolist())
        return [(a, b - a) if self.in_order else elements[a:b] for a, b in spans]

    def join(self, windows: list[LoDTensor], whole: Tensor) -> LoDTensor:
        """What has been made of the windows as sequences of the offsets `whole`. Differentiable."""
        y = LoDTensor.cat(windows) if len(windows) > 1 else windows[0]
        if not self.in_order:
            y = y.select_sequences(_inverse(self.order))
        return LoDTensor._make(y._values, LoD.trusted((whole, *y._lod.levels[1:]), y._lod.rows))


@outside_modes
def windows(offsets: Tensor, size: int, reverse: bool = False, first: int | None = None) -> Windows:
    """Cut sequences into windows of `size` elements, of which the first has `first`; those of a reversed run
    begin at the ends.

    >>> cut = windows(torch.tensor([0, 5, 5, 7]), 2)
    >>> cut.offsets, cut.order
    (tensor([0, 2, 4, 5, 5, 7]), tensor([0, 3, 4, 1, 2]))
    >>> cut.sequences
    (tensor([0, 1, 2]), tensor([0]), tensor([0]))
    """
    first = size if first is None else first
    lengths = offsets.diff()
    counts = 1 + (lengths - first + size - 1).div(size, rounding_mode="floor").clamp(min=0)
    ends = counts.cumsum(0)
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    place = torch.arange(len(owner)) - (ends - counts)[owner]  # of each piece in its sequence
    if reverse:
        place = counts[owner] - 1 - place
        own = (offsets[1:][owner] - (first + place * size)).maximum(offsets[:-1][owner])
    else:
        own = offsets[:-1][owner] + (first + (place - 1) * size).clamp(min=0)
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


_HOLES = 1 << 24  # bytes of results, after which what their windows freed is given back: it is taken anew


class Joined:
    """One result of all windows. Each is made in its place, or copied to it and let go: no row is there
    twice. Differentiable."""

    def __init__(self, size: int, axis: int = 0) -> None:
        self.size, self.axis = size, axis
        self.table: Tensor | None = None
        self.parts: list[Tensor] = []
        self.places: list[Place] = []
        self.spare: Tensor | None = None  # for windows whose rows lie apart
        self.lent = 0  # where the next window may be made
        self.written = 0  # bytes since the last holes were given back

    def room(self, place: Place) -> Tensor | None:
        """Memory for the next window, no view of others: its rows, or what is copied to them. It may be used
        until the next window is asked for. None before the first window."""
        self.lent = 0
        if self.table is None or type(self.table) is not Tensor or not self.table.is_cpu:
            return None
        count = len(place) if isinstance(place, Tensor) else place[1]
        rows = None if isinstance(place, Tensor) else self.table.narrow(self.axis, *place)
        if rows is None or not rows.is_contiguous():
            shape = [*self.table.shape]
            shape[self.axis] = count
            if self.spare is None or self.spare.numel() < math.prod(shape):
                self.spare = new_table((math.prod(shape),), self.table.dtype)
            rows = self.spare[: math.prod(shape)].view(shape)
        self.lent = rows.data_ptr()
        return rows.new_empty(0).set_(rows.untyped_storage(), rows.storage_offset(), rows.shape)  # pyright: ignore

    def add(self, part: Tensor, place: Place) -> None:
        """Take a window up, at the places along the axis."""
        own = part.detach()
        if self.table is None:
            shape = [*own.shape]
            shape[self.axis] = self.size
            plain = type(own) is Tensor and own.is_cpu
            self.table = new_table(shape, own.dtype) if plain else own.new_empty(shape)
        if isinstance(place, Tensor):
            self.table.index_copy_(self.axis, beside(place, own), own)
        elif (rows := self.table.narrow(self.axis, *place)).data_ptr() != own.data_ptr():
            rows.copy_(own)
        full = False
        if not self.lent or own.data_ptr() != self.lent:
            self.written += own.numel() * own.element_size()
            full = self.written >= _HOLES
        if full:
            self.written = 0
            give_back()
        self.parts.append(_Apart.apply(part, full))  # pyright: ignore[reportArgumentType]
        self.places.append(place)

    def whole(self) -> Tensor:
        """All windows."""
        table, self.table = self.table, None
        return _Whole.apply([table], self.axis, self.places, *self.parts)  # pyright: ignore[reportReturnType]


class Between:
    """The states between windows, one after the other in a table of so many rows: small tensors that stay
    would lie between large ones that go, whose room then fits no other."""

    def __init__(self, rows: int) -> None:
        self.rows, self.begin = rows, 0
        self.tables: list[Tensor] = []

    def put(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The leaves of a state, in their place. Differentiable."""
        if not all(type(leaf) is Tensor and leaf.is_cpu and leaf.dim() for leaf in leaves):
            return [*leaves]
        if not self.tables:
            self.tables = [leaf.detach().new_empty(self.rows, *leaf.shape[1:]) for leaf in leaves]
        begin, self.begin = self.begin, self.begin + max((len(leaf) for leaf in leaves), default=0)
        pairs = zip(leaves, self.tables, strict=True)
        return [_Copied.apply(leaf, [table[begin : self.begin]]) for leaf, table in pairs]  # pyright: ignore


class _Copied(torch.autograd.Function):
    """A tensor copied into memory that is there. No view, so that each is changed by itself."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, place: list[Tensor]) -> Tensor:  # pyright: ignore
        (to,) = place
        ctx.set_materialize_grads(False)
        own = tensor.new_empty(0).set_(to.untyped_storage(), to.storage_offset(), to.shape, to.stride())
        return own.copy_(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:  # pyright: ignore
        return grad, None


class _Apart(torch.autograd.Function):
    """A stand-in of the shape of a tensor, which takes a gradient and holds no numbers."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, full: bool) -> Tensor:  # pyright: ignore
        ctx.set_materialize_grads(False)
        ctx.full = full
        return part.new_empty(()).expand(part.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:  # pyright: ignore
        if ctx.full:
            give_back()
        return grad, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: list[Tensor], axis: int, places: list[Place], *parts: Tensor) -> Tensor:  # pyright: ignore
        ctx.set_materialize_grads(False)
        ctx.axis, ctx.places = axis, places
        return table.pop()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        axis = ctx.axis
        if grad is None:
            return (None, None, None, *(None for _ in ctx.places))
        own = [
            grad.index_select(axis, beside(place, grad))
            if isinstance(place, Tensor)
            else grad.narrow(axis, *place)
            for place in ctx.places
        ]
        return (None, None, None, *own)
