"""Sequences cut into windows: the first of each, the second of those that have one, and so on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from stepnet.data.heap import forget_older, give_back, new_table
from stepnet.data.in_graph import by_python
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import batches, beside, outside_modes, sees_saved_tensors, transformed
from stepnet.data.offsets import LoD, offsets_of, ranges

_by_python: Any = by_python("what joins windows of steps goes backward")  # compiled autograd would follow it

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

    def cut(self, x: LoDTensor, places: Sequence[Place]) -> Iterator[tuple[LoDTensor, Copied | None]]:
        """The windows of x, whose outermost sequences are cut, each when it is asked for; and what their rows
        were copied of, if they were. Differentiable. `places`: of the elements."""
        lod, rows = LoD.trusted((self.offsets, *x.structure.levels[1:]), x.structure.rows), None
        if not self.in_order:
            lod, rows = lod.take(self.order)
        spans, start = [], 0
        for own in self.sequences:
            spans.append(lod.span(start, start + len(own)))
            start += len(own)
        if x.lod_level > 1:
            places = [(a, b - a) if rows is None else rows[a:b] for _, a, b in spans]
        del rows
        parts = taken(x.values, 0, places)
        for part, (levels, first, last), place in zip(parts, spans, places, strict=True):
            copied = Copied(part, x.values, place) if isinstance(place, Tensor) else None
            yield LoDTensor.of(part, LoD.trusted(levels, last - first)), copied

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
        return LoDTensor.of(y.values, LoD.trusted((whole, *y.structure.levels[1:]), y.structure.rows))


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
    levels, index = _part(x.structure, sequences, starts, counts)
    first = int(index[0]) if len(index) else 0
    if len(sequences) == 1:
        return LoDTensor.of(x.values[first : first + len(index)], levels)
    return LoDTensor.of(x.values.index_select(0, beside(index, x.values)), levels)


@outside_modes
def _part(lod: LoD, sequences: Tensor, starts: Tensor, counts: Tensor) -> tuple[LoD, Tensor]:
    chosen = ranges(lod.levels[0][sequences] + starts, counts)
    if len(lod.levels) == 1:
        return LoD.trusted((offsets_of(counts),), len(chosen)), chosen
    below, rows = LoD.trusted(lod.levels[1:], lod.rows).take(chosen)
    return LoD.trusted((offsets_of(counts), *below.levels), below.rows), rows


_HOLES = 1 << 24  # bytes of results, after which what their windows freed is given back: it is taken anew
_NOTHING = torch.empty(0, device="cpu")
_LARGE = 1 << 26  # bytes of all results, from which memory of windows of other sizes is let go: time for room


def rows_in(table: Tensor, axis: int, place: Place) -> Tensor:
    """A part of a table; one that is copied lies where one before did that nobody holds any more."""
    if not isinstance(place, Tensor):
        return table.narrow(axis, *place)
    recorded = torch.is_grad_enabled() and table.requires_grad
    if recorded or transformed() or batches() or type(table.detach()) is not Tensor or not table.is_cpu:
        return table.index_select(axis, beside(place, table))
    shape = [*table.shape]
    shape[axis] = len(place)
    return torch.index_select(table, axis, place, out=new_table(shape, table.dtype, shown=False))


class Copied(NamedTuple):
    """Rows that were copied out of a table, and where they stand there."""

    part: Tensor
    table: Tensor
    place: Tensor


def taken(table: Tensor, axis: int, places: Sequence[Place]) -> Iterator[Tensor]:
    """The parts of a table along an axis, each when it is asked for; they are all of it. Differentiable: the
    gradients of parts go into one table, each when it is there.

    >>> [part.tolist() for part in taken(torch.arange(3), 0, [(1, 2), (0, 1)])]
    [[1, 2], [0]]
    """
    if not (torch.is_grad_enabled() and table.requires_grad):
        yield from (rows_in(table, axis, place) for place in places)
    elif transformed():
        spans = [place for place in places if not isinstance(place, Tensor)]
        if spans:
            order = sorted(spans)
            parts = dict(zip(order, table.split([count for _, count in order], axis), strict=True))
            yield from (parts[place] for place in spans)
        else:
            indices = [place for place in places if isinstance(place, Tensor)]
            copy = table.index_select(axis, beside(torch.cat(indices), table))
            yield from copy.split([*map(len, indices)], axis)
    else:
        rest, of = table, table.detach()
        for place in places:
            part, rest = _Taken.apply(rest, [of], axis, place)  # pyright: ignore
            yield part


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rest: Tensor, table: list[Tensor], axis: int, place: Place
    ) -> tuple[Tensor, Tensor]:  # pyright: ignore
        ctx.set_materialize_grads(False)
        ctx.at = tuple(rest.shape), axis, place
        return rows_in(table[0], axis, place), _stand_in(rest, rest.shape)

    @staticmethod
    @_by_python
    def backward(ctx: Any, grad: Tensor | None, rest: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        shape, axis, place = ctx.at
        if grad is not None:
            rest = grad.new_zeros(shape) if rest is None else rest
            if transformed() or batches():
                index = place if isinstance(place, Tensor) else torch.arange(place[1]) + place[0]
                rest = rest.index_copy(axis, beside(index, grad), grad)
            else:
                rest = _Written.apply(rest, grad, axis, place)  # pyright: ignore
        return rest, None, None, None


class _Written(torch.autograd.Function):
    """A table, zero at a place, with rows written there."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, axis: int, place: Place) -> Tensor:  # pyright: ignore
        ctx.set_materialize_grads(False)
        ctx.at = axis, place
        ctx.mark_dirty(table)
        if isinstance(place, Tensor):
            return table.index_copy_(axis, beside(place, rows), rows)
        table.narrow(axis, *place).copy_(rows)
        return table

    @staticmethod
    @_by_python
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        return grad, None if grad is None else rows_in(grad, *ctx.at), None, None


def _stand_in(like: Tensor, shape: Sequence[int]) -> Tensor:
    """What takes a gradient of a shape, and holds no numbers."""
    return like.new_empty(()).expand(shape)


class Stood:
    """What stands where all windows are joined, while a backward goes through them. It holds nothing of the
    graph, which holds it: neither would ever be let go."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.table: Tensor | None = None
        self.first: Standing | None = None  # which backward comes to last
        self.counter, self.count = _NOTHING, 0

    def count_writes(self, table: Tensor) -> None:
        """Note from here on whether somebody writes to the table."""
        self.counter = table.detach()
        self.counter.data = _NOTHING  # it would keep the memory
        self.count = table._version


class Standing:
    """Rows that a run made, and where they stand once the windows are joined, if they are a result of it."""

    def __init__(self, rows: Tensor) -> None:
        self.pointer = rows.data_ptr() if type(rows) is Tensor else 0
        self.numel, self.dtype = rows.numel(), rows.dtype
        self.stood: Stood | None = None
        self.place: Place = (0, 0)

    def is_of(self, part: Tensor) -> bool:
        """Whether they are these rows, one after the other."""
        alike = type(part) is Tensor and part.dtype is self.dtype and part.numel() == self.numel > 0
        return alike and 0 != part.data_ptr() == self.pointer and part.is_contiguous()

    def rows(self) -> Tensor | None:
        """The rows, while a backward goes through what is joined; None if somebody wrote to it."""
        stood = self.stood
        table = None if stood is None else stood.table
        if stood is None or table is None:
            return None
        if stood.first is self:
            stood.table = None
        if stood.counter._version != stood.count:
            return None
        return rows_in(table, stood.axis, self.place).contiguous()


class Joined:
    """One result of all windows. Each is made in its place, or copied to it and let go: no row is there
    twice. Differentiable."""

    def __init__(self, size: int, axis: int = 0) -> None:
        self.size, self.axis = size, axis
        self.table: Tensor | None = None
        self.shape: list[int] = []
        self.before: Tensor | None = None  # all windows so far, for autograd
        self.spare: Tensor | None = None  # for windows whose rows lie apart
        self.lent = 0  # where the next window may be made
        self.written = 0  # bytes since the last holes were given back
        self.stood = Stood(axis)

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

    def add(self, part: Tensor, place: Place, made: Sequence[Standing] = ()) -> None:
        """Take a window up, at the places along the axis. `made`: rows that may be these."""
        own = part.detach()
        for each in made:
            if each.is_of(own):
                each.stood, each.place, self.stood.first = self.stood, place, self.stood.first or each
        if self.table is None:
            shape = [*own.shape]
            shape[self.axis] = self.size
            plain = type(own) is Tensor and own.is_cpu
            self.table = new_table(shape, own.dtype) if plain else own.new_empty(shape)
            self.shape = shape
        if isinstance(place, Tensor):
            self.table.index_copy_(self.axis, beside(place, own), own)
        elif (rows := self.table.narrow(self.axis, *place)).data_ptr() != own.data_ptr():
            rows.copy_(own)
        tidy = forget_older if self.table.nbytes >= _LARGE else None
        if isinstance(place, Tensor) or not self.lent or own.data_ptr() != self.lent:
            self.written += own.numel() * own.element_size()
            if self.written >= _HOLES:
                self.written, tidy = 0, give_back
        if tidy is not None:
            tidy()
        how = self.shape, self.axis, place, tidy
        self.before = _Added.apply(self.before, part, *how)  # pyright: ignore[reportAttributeAccessIssue]

    def whole(self) -> Tensor:
        """All windows."""
        table, self.table = self.table, None
        return _Whole.apply([table], self.before, self.stood)  # pyright: ignore[reportReturnType]


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


class _Added(torch.autograd.Function):
    """A window more, after those before: each gets its part of the gradient when it is its turn."""

    @staticmethod
    def forward(
        ctx: Any, before: Tensor | None, part: Tensor, shape: list[int], axis: int, place: Place,
        tidy: Callable[[], None] | None,
    ) -> Tensor:  # pyright: ignore  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.at, ctx.tidy = (axis, place), tidy
        return _stand_in(part, shape)

    @staticmethod
    @_by_python
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        if ctx.tidy is not None:
            ctx.tidy()
        before, own = ctx.needs_input_grad[:2]
        part = rows_in(grad, *ctx.at) if own and grad is not None else None
        return grad if before else None, part, None, None, None, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: list[Tensor], windows: Tensor, stood: Stood) -> Tensor:  # pyright: ignore
        ctx.set_materialize_grads(False)
        ctx.stood = None if stood.first is None or sees_saved_tensors() else stood
        if ctx.stood is not None:
            stood.count_writes(table[0])
            ctx.save_for_backward(table[0].data)
        return table.pop()

    @staticmethod
    @_by_python
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, Tensor | None, None]:  # pyright: ignore
        if ctx.stood is not None:
            (ctx.stood.table,) = ctx.saved_tensors
        return None, grad, None
