"""How a plan's gradients are made by one scan of its backward loop, which is given addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of

from .addresses import Place, Places, Read, Run, addressed, bytes_of, maker_of, outline
from .layout import Layout
from .loop import Lone, PreparedLoop
from .ready import Ready, Sources
from .schedule.views import contiguous as contiguous_strides


class Backward(NamedTuple):
    """How gradients are made.

    Attributes:
        run: the scan.
        zeros: what stands for each result that nothing comes in for.
        shifted: tables that are read one step earlier and boot values, among what is saved; and the shape of
            a row.
        made: what makes each table that the scan makes; or it is one like so many'th of what is saved.
        out: which of those each input gets.
        copies: the inputs that get a copy, because another one has it, too.
        before, after: the maps around it.
        given: what it is given of those before.
        reads: what maps read.
        late: the inputs that get a value of the maps.
        loose: whether some of those are no tensors made for them alone, as they are.
        leaves_out: see `Ready`; then gradients that are not finite are to go by names.
        any_lengths: whether it is the same for sequences of any lengths.
        fills: whether gradients of y may be a number each, which is told last.
    """

    run: Run
    zeros: list[Tensor]
    shifted: list[tuple[int, int, tuple[int, ...]]]
    made: list[tuple[Callable[[], Tensor], int | None]]
    out: list[int | None]
    copies: list[int]
    before: list[Any]
    after: list[Any]
    given: list[str]
    reads: list[Read]
    late: list[tuple[int, str]]
    loose: bool
    leaves_out: bool
    any_lengths: bool
    fills: bool

    def zero(self, k: int, rows: int) -> Tensor:
        """What stands for a result that nothing comes in for, of so many rows; 0: of as many as that has."""
        zero = self.zeros[k]
        if zero.shape[0] < rows:
            zero = self.zeros[k] = zero.new_zeros((2 * rows, *zero.shape[1:]))
        return zero[:rows] if rows and zero.shape[0] > rows else zero


class WayBack:
    """The scan of a backward loop by addresses, being found out. Each step raises LookupError: it is none.

    At hand are, one after the other: what is saved, the gradients of the results, what is made here, tables
    moved by a step, and what maps before the scan give it.

    Attributes:
        likes: what is at hand first, as tensors without memory; so many of that are saved.
        values, boots: see `Places`.
        at_hand: where the values that maps may read are, and `begins` in what is kept in one piece.
        places: where those are among what is made, and `of` the states whose gradients are.
        zeroed, copied: see `Places`.
    """

    def __init__(
        self, ready: Ready, loop: PreparedLoop, layout: Layout, most: int, lone: Lone, likes: list[Tensor],
        saved: int,
    ) -> None:  # fmt: skip
        """`most`: rows of a call."""
        self.ready, self.loop, self.layout, self.most, self.lone = ready, loop, layout, most, lone
        self.likes, self.saved, self.kinds = likes, saved, loop.plan.body.values
        self.values, self.boots = dict[str, Place](), dict[str, Place]()
        self.at_hand, self.places = dict[str, int](), dict[str, int]()
        self.begins = dict[str, int | None]()
        self.shifted = dict[str, tuple[int, int, tuple[int, ...]]]()
        self.made: list[tuple[Callable[[], Tensor], Tensor]] = []
        self.out: list[int | None] = []
        self.copies, self.late = list[int](), list[tuple[int, str]]()
        self.of = dict[int, int]()
        self.zeroed, self.copied = list[tuple[int, int]](), list[tuple[int, int, int]]()
        self.before, self.by_maps = (
            {name for node in nodes for name in node.outputs} for nodes in (lone.before, lone.after)
        )
        self.tangents = ready.plan.tangents[len(ready.plan.y) :]

    def read_saved(
        self, sources: Sources, saved: Sequence[Place], begins: Sequence[int | None],
        types: Sequence[torch.dtype],
    ) -> None:  # fmt: skip
        """Find what is saved, and what of that is read one step earlier."""
        whole = len(saved) - len(begins)  # before what is kept in one piece
        self.values = {name: saved[k] for name, k in sources.values}
        self.at_hand = {name: saved[k].which or 0 for name, k in sources.values}
        self.begins = {name: begins[k - whole] for name, k in sources.values if k >= whole}
        for name, k, of in sources.shifted:
            if types[k] is not types[of]:
                raise LookupError
            if self.ready.is_few(self.layout) and name in self.loop.moved:
                self.values[name], self.boots[name] = saved[k], saved[of]
            else:
                self.shifted[name] = k, of, self.kinds[name].shape

    def read_gradients(self, sources: Sources, results: Sequence[Tensor]) -> None:
        """Find what comes in for the results."""
        for name, k, _, dtype in sources.tangents:
            (self.values if dtype is None else self.boots)[name] = Place(self.saved + k)
            if dtype is None:
                self.at_hand[name] = self.saved + k
            elif dtype is not results[k].dtype:
                raise LookupError

    def make(self, has: Sequence[bool], inputs: Sequence[Tensor]) -> None:
        """Find where the gradients of the inputs that get one are made."""
        plan, layout = self.ready.plan, self.layout
        self.out = [None] * len(inputs)
        n_x = len(plan.x)
        names = [*plan.gradients[:n_x], *self.tangents, *plan.gradients[n_x + len(self.tangents) :]]
        for k, name in enumerate(names):
            if not has[k]:
                continue
            if name is None:
                raise LookupError
            like, value, first = inputs[k], self.kinds[name], self.places.get(name)
            if name in self.by_maps or name in self.before:
                self.late.append((k, name))
            elif first is None:
                self.places[name] = len(self.made)
                if name in self.tangents or value.kind == "row":
                    self.of[len(self.made)] = k
                self._add(name, like)
            rows = layout.sequences if name in self.tangents else layout.rows if value.kind == "row" else 1
            alike = like.dtype is dtype_of(value.dtype) and like.numel() == rows * math.prod(value.shape)
            if name in self.places:
                self.out[k] = at = self.places[name]
                if first is not None and (name in self.tangents or value.kind == "row"):  # of other sizes
                    self.copies.append(k)
                elif first is not None:
                    self.out[k], after = self._new(like), len(self.likes)
                    self.copied.append((after + len(self.made) - 1, after + at, bytes_of(like)))
                alike = alike and self.made[self.places[name]][1].shape == like.shape
            if not alike:
                raise LookupError

    def _add(self, name: str, like: Tensor) -> None:
        """Make a table; of sums, to which the scan adds, are zeros there."""
        if self.kinds[name].kind == "sum" and name not in (self.lone.products or ()):
            self.zeroed.append((len(self.likes) + len(self.made), bytes_of(like)))
        self._new(like)

    def _new(self, like: Tensor) -> int:
        """Make a table; gives its place among those."""
        self.made.append((maker_of(like), like))
        return len(self.made) - 1

    def _shape(self, name: str) -> tuple[int, ...]:
        rows = (self.layout.rows,) if self.kinds[name].kind == "row" else ()
        return (*rows, *self.kinds[name].shape)

    def found(
        self, strides: Mapping[str, Sequence[int]], zeros: list[Tensor], leaves_out: bool, any_lengths: bool
    ) -> Backward:
        """All of it, with what maps read besides."""
        lone, maps = self.lone, (*self.lone.before, *self.lone.after)
        asked = {name for name in self.tangents if name in self.places}  # of maps' own reads it is the rows
        read = {name for node in maps for name in node.inputs} - self.before - self.by_maps
        for name in sorted(read - {*self.at_hand, *self.shifted, *self.places}):
            self.places[name] = len(self.made)
            size = math.prod(self.kinds[name].shape) * (self.most if self.kinds[name].kind == "row" else 1)
            self.begins[name] = 0
            self._add(name, outline((size,), dtype_of(self.kinds[name].dtype)))
        after = len(self.likes)
        self.at_hand |= {name: after + k for name, k in self.places.items()}
        made = {name: Place(after + k) for name, k in self.places.items()}
        after += len(self.made)
        for k, name in enumerate((*self.shifted, *self.before), after):
            self.values[name] = Place(k)
        self.at_hand |= {name: k for k, name in enumerate(self.shifted, after)}
        strides = {**strides, **{name: contiguous_strides(self.kinds[name].shape) for name in self.before}}
        lasts = {name: made.pop(name) for name in asked}
        numbers = after + len(self.shifted)
        y = self.likes[self.saved :][: 0 if self.before else len(self.ready.plan.y)]  # which maps may read
        filled = [
            (self.saved + k, numbers + k, t.dtype.itemsize, t.numel() // self.layout.rows)
            for k, t in enumerate(y)
        ]
        at = Places(self.values, strides, self.boots, made, lasts, filled, self.zeroed, self.copied)
        run = addressed(lone, self.layout.backward, self.most, at)
        likes = [*self.likes, *(like for _, like in self.made)]
        reads: list[Read] = []
        for name in sorted(read):
            k, begin, shape = self.at_hand[name], self.begins.get(name), self._shape(name)
            if begin is None and k < len(likes) and likes[k].numel() != math.prod(shape):
                raise LookupError
            reads.append((name, k, begin, self.kinds[name].kind == "row", self.kinds[name].shape))
        made = [(make, self.of.get(k)) for k, (make, _) in enumerate(self.made)]
        parts = made, self.out, self.copies, lone.before, lone.after, [*self.before], reads, self.late
        names = {name for _, name in self.late}
        as_they_are = all(self._shape(name) == self.likes[k].shape for k, name in self.late)
        loose = len(names) < len(self.late) or not (names <= self.ready.own_gradients and as_they_are)
        return Backward(
            run, zeros, [*self.shifted.values()], *parts, loose, leaves_out, any_lengths, bool(filled)
        )
