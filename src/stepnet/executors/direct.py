"""Calls like one before, of plans that are scans and maps, in backward one scan with maps around it: values
go by their places, not by their names.

Of a small step, to find values by their names takes longer than to compute them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.bounded_cache import Bounded
from stepnet.data.dtypes import dtype_of
from stepnet.data.modes import is_recorded
from stepnet.data.recording import LeftByRuns
from stepnet.data.storage import distinct
from stepnet.data.unpatched_torch import (
    contiguous,
    data_ptr,
    empty,
    empty_like,
    is_contiguous,
    stride,
    zeros_like,
)

from .addresses import (
    MOST,
    Place,
    Places,
    Size,
    bytes_of,
    made_like,
    made_of_rows,
    maker_of,
    outline,
    part,
    ran,
    read,
    size_of,
)
from .c.few_rows import earlier
from .direct_backward import Backward, WayBack
from .direct_forward import made_by_maps, way_there
from .gradient_flow import carry_for_any_lengths, carry_gradients, reached_for_any_lengths
from .gradients import asked_of
from .higher_order import is_finite, is_plain
from .layout import Layout
from .loop import run_nodes_as_written
from .ready import Ready
from .tables import as_table

_SURE = 3  # runs on the same sequences by names, for what is laid out takes as long as a few more of those
_LINE = 64  # numbers that one value of those begins after another at the least
_MOST_KINDS = 64  # of gradients that are asked of one
_MOST_RUNS = 16  # kinds of runs that are known at a time
_MOST_ROWS = 1 << 18  # of one
_native: Any = torch._C


class Direct:
    """Runs of a plan on the same sequences, of tensors that look the same, each in one piece; on others, too,
    over as many rows, or where sequences are ragged, over about as many.

    Scans are given the addresses of what is saved: inputs, y, and what else is kept, which lies in one piece;
    and of the last states, or of what comes in and the gradients.

    Attributes:
        layout: where rows stand.
        steps: see `call.Call`.
        most: the most rows of a call.
        widest: how many numbers the largest input has.
        trains: whether a backward may follow.
        ready: the plan.
        still: the results that need none.
    """

    def __init__(
        self, ready: Ready, layout: Layout, inputs: Sequence[Tensor], steps: tuple[int, ...],
        needs: Sequence[bool],
    ) -> None:  # fmt: skip
        """`needs`: which inputs need a gradient. Raises LookupError: the plan takes more than addresses."""
        plan, kinds = ready.plan, ready.plan.forward.body.values
        self.steps, self._threads = steps, torch.get_num_threads()
        self.trains = any(needs)
        self.ready, self.layout = ready, layout
        self._inputs = [outline(t.shape, t.dtype) for t in inputs]
        self._strides = {name: stride(t) for name, t in zip(ready.names, inputs, strict=False)}
        self._states = slice(ready.state_places.start, ready.state_places.stop)
        self.most = layout.rows if steps else (1 << layout.rows.bit_length()) - 1
        turns = ready.forward.turns()
        by_maps = made_by_maps(turns)
        rows = steps or (layout.rows,)
        self._y = [outline((*rows, *kinds[name].shape), dtype_of(kinds[name].dtype)) for name in plan.y]
        self._scanned = [k for k, name in enumerate(plan.y) if name not in by_maps]
        self._shapes = [kinds[name].shape for name in ready.extra]  # of a row
        self._types = [dtype_of(kinds[name].dtype) for name in ready.extra]
        pieces = self._lay_out_kept(by_maps)
        size = sum(map(bytes_of, pieces))
        if size >= MOST or not self._is_as_usual(inputs, by_maps):
            raise LookupError
        at = self._places(pieces)
        self._pieces = slice(len(self._scanned), len(self._scanned) + len(pieces))
        first = len(inputs) + self._pieces.stop
        self._there = way_there(ready, layout, self.most, turns, at, first, size)
        tables, states = [self._y[k] for k in self._scanned], inputs[self._states]
        self._made = [*tables, *pieces, *self._there.between, *(outline(t.shape, t.dtype) for t in states)]
        self._kept_end = len(self._made) - len(states)
        hidden = range(len(tables), self._kept_end)
        self._makers = [maker_of(like, k not in hidden) for k, like in enumerate(self._made)]
        self.widest = max(map(Tensor.numel, inputs))
        carry = carry_gradients(plan, layout, needs) if self.trains else ()
        self.still = [k for k, carries in enumerate(carry) if not carries]
        self._any_lengths = not self.trains or carry_for_any_lengths(plan, needs)
        self._backwards = Bounded[tuple[bool, ...], "Backward | None"](_MOST_KINDS)
        if self.trains:  # backward by names takes longer of what is kept here
            given = (True,) * (len(self._y) + len(states))
            self._backwards[(*given, *needs)] = self._backward(given, tuple(needs))

    def _lay_out_kept(self, by_maps: Collection[str]) -> list[Tensor]:
        """Where each value that is kept, and made by a scan, begins in the piece of its type; the pieces."""
        ends, self._begins = dict[torch.dtype, int](), list[int | None]()
        for name, shape, dtype in zip(self.ready.extra, self._shapes, self._types, strict=True):
            begin = None if name in by_maps else ends.get(dtype, 0)
            self._begins.append(begin)
            if begin is not None:
                ends[dtype] = begin - (-self.most * math.prod(shape) // _LINE) * _LINE
        return [outline((size,), dtype) for dtype, size in ends.items()]

    def _is_as_usual(self, inputs: Sequence[Tensor], by_maps: Collection[str]) -> bool:
        """Whether a run is no more than scans and maps of tensors in one piece."""
        ready, plan, kinds = self.ready, self.ready.plan, self.ready.plan.forward.body.values
        return (
            ready.owns_all_but(by_maps)
            and not plan.random
            and self.layout.rows > 0
            and all(map(is_contiguous, inputs))
            and not (self.trains and any(map(Tensor.is_inference, inputs)))
            and [t.dtype for t in inputs[self._states]] == [ready.carried_as[name] for name in plan.states]
            and all(kinds[name].kind == "row" for name in ready.extra)
        )

    def _places(self, pieces: Sequence[Tensor]) -> Places:
        """Where scans find inputs and boot values, and where what they make goes. What is saved stands in
        the order inputs, y, pieces, and each value of maps by itself."""
        ready, plan, n = self.ready, self.ready.plan, len(self._inputs)
        named = {name: Place(k) for k, name in enumerate(ready.names[:n])}
        boots = {name: named.pop(name) for name in plan.states}
        made = {plan.y[k]: Place(n + i) for i, k in enumerate(self._scanned)}
        self._saved = [Place(k) for k in range(n + len(plan.y))]
        types = [piece.dtype for piece in pieces]
        self._kept = [*pieces]
        for name, begin, shape, dtype in zip(
            ready.extra, self._begins, self._shapes, self._types, strict=True
        ):
            if begin is None:
                place = Place(n + len(plan.y) + len(self._kept))
                self._kept.append(outline((self.layout.rows, *shape), dtype))
            else:
                in_piece, offset = types.index(dtype), begin * dtype.itemsize
                place = Place(n + len(plan.y) + in_piece, offset)
                made[name] = Place(n + len(self._scanned) + in_piece, offset)
            self._saved.append(place)
        return Places(named, self._strides, boots, made, {})

    def forward(
        self, inputs: Sequence[Tensor], layout: Layout, into: Sequence[Tensor] = ()
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """y and the last states; and what is to be saved besides the inputs. None: not of these. `into`: what
        y and the last states are written into, each in one piece; in memory of their own if there is none."""
        y, kept = len(self._scanned), self._kept_end
        likes = self._made
        if layout is not self.layout:
            # strides of one row tell nothing of others
            if not (self._any_lengths and all(map(is_contiguous, inputs[: self._states.stop]))):
                return None
            likes = [*likes[:kept], *inputs[self._states]]
        if into and 0 < layout.rows <= self.most:
            made = [into[k] for k in self._scanned]
            made += [*[make() for make in self._makers[y:kept]], *into[len(self._y) :]]
        elif layout is self.layout:
            made = [make() for make in self._makers]
        elif layout.rows == self.layout.rows:
            made = [*[make() for make in self._makers[:kept]], *map(empty_like, likes[kept:])]
        elif 0 < layout.rows <= self.most:
            made = [made_of_rows(like, layout.rows) for like in likes[:y]]
            made += [*[make() for make in self._makers[y:kept]], *map(empty_like, likes[kept:])]
        else:
            return None
        shown = self._there.run(inputs, made, layout)
        if shown is None:
            return None
        if not shown:
            return made[:y] + made[kept:], made[: self._pieces.stop]
        tables = made[:y]
        for k in range(len(self._y)):
            if k not in self._scanned:
                table = shown.pop(0)
                table = table.resize_(self._y[k].shape) if self.steps else table
                tables.insert(k, into[k].copy_(table.view_as(into[k])) if into else table)
        return tables + made[kept:], [*tables, *made[self._pieces], *shown]

    @property
    def sizes(self) -> tuple[Sequence[Size], Sequence[int]]:
        """Of all that a run on the same sequences makes: sizes, strides and types. And the places of y and of
        the last states among that. Raises LookupError: maps make some of it."""
        if not self._there.scans:
            raise LookupError
        return [*map(size_of, self._made)], [*range(len(self._y)), *range(self._kept_end, len(self._made))]

    def run_at(self, addresses: Sequence[int], made: Sequence[Tensor]) -> bool:
        """A run on the same sequences that is given where its inputs lie, each in one piece, and what to make
        (`sizes`), in any shape; False: not of these."""
        return self._there.run_at([*addresses, *map(data_ptr, made)], self.layout)

    def each(self, runs: Sequence[Sequence[Tensor]], layout: Layout) -> list[Tensor] | None:
        """y and the last states of many runs, those of all in one table each; None: not of these."""
        sizes = [(layout.rows, *like.shape[1:]) for like in self._y]
        states = runs[0][self._states]
        sizes += [(*t.shape,) for t in states]
        found = [
            empty((len(runs), *size), dtype=t.dtype, device="cpu")
            for size, t in zip(sizes, (*self._y, *states), strict=True)
        ]
        for inputs, *into in zip(runs, *[t.unbind(0) for t in found], strict=True):
            if self.forward(inputs, layout, into) is None:
                return None
        return found

    def gradients(
        self, saved: Sequence[Tensor], grads: Sequence[Tensor | None], needed: tuple[bool, ...],
        layout: Layout,
    ) -> list[Tensor | None] | None:  # fmt: skip
        """The gradient of each input; None: not of these. `saved`: the inputs, and what `forward` gave."""
        way = self._way_back(grads, needed)
        if way is None or not (layout is self.layout or way.any_lengths):
            return None
        kept = [*map(data_ptr, saved)]
        if not (all(kept) and all(map(is_contiguous, saved))):
            return None
        tables, numbers = self._tables(way, grads, layout)
        same = layout is self.layout
        made = [make() if same or like is None else made_like(saved[like]) for make, like in way.made]
        made += [earlier(saved[k], (layout.rows, *row), saved[of], layout) for k, of, row in way.shifted]
        values = read((*saved, *tables, *made), way.reads, layout.rows) if way.reads else {}
        seen = [*values.values()] if way.loose else []
        if way.before:
            run_nodes_as_written(way.before, values, layout.rows)
            made += [as_table(values[name]) for name in way.given]
        addresses = [*kept, *map(data_ptr, tables), *map(data_ptr, made)]
        if way.fills:
            addresses += map(data_ptr, numbers)
        if not ran(way.run, addresses, layout.backward):
            return None
        out = [None if k is None else made[k] for k in way.out]
        for k in way.copies:
            out[k] = made[way.out[k] or 0].clone()
        if way.late:
            run_nodes_as_written(way.after, values, layout.rows)
            found = [values[name] for _, name in way.late]
            if way.loose:
                shapes = [saved[k].shape for k, _ in way.late]
                found = [t if t.shape == s else t.reshape(s) for t, s in zip(found, shapes, strict=True)]
                found = distinct(found, seen)
            for (k, _), t in zip(way.late, found, strict=True):
                out[k] = t
        return None if way.leaves_out and not all(map(is_finite, out)) else out

    def _way_back(self, grads: Sequence[Tensor | None], needed: tuple[bool, ...]) -> Backward | None:
        """How gradients are made of these; None: not by addresses."""
        around = _native._len_torch_function_stack() or _native._len_torch_dispatch_stack()
        if around or self._threads != torch.get_num_threads():
            return None
        given: list[bool] = []
        for grad in grads:
            if grad is not None and (not is_plain(grad) or grad.is_neg()):
                return None
            given.append(grad is not None)
        kind = *given, *needed
        if kind not in self._backwards:
            try:
                self._backwards[kind] = self._backward(kind[: len(grads)], needed)
            except LookupError:
                self._backwards[kind] = None
        return self._backwards.get(kind)

    def _tables(
        self, way: Backward, grads: Sequence[Tensor | None], layout: Layout
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients of the results, each in one piece; and of y, where the scan fills one, its number."""
        tables: list[Tensor] = []
        numbers: list[Tensor] = []
        n_y = len(self._y)
        for k, grad in enumerate(grads):
            if grad is None:
                tables.append(way.zero(k, layout.sequences if k >= n_y else 0 if self.steps else layout.rows))
            elif is_contiguous(grad):
                tables.append(grad)
            elif way.fills and k < n_y and not any(stride(grad)):
                tables.append(empty(grad.shape, dtype=grad.dtype, device="cpu"))
                numbers.append(grad)
            else:
                tables.append(contiguous(grad))
            if len(numbers) < len(tables):
                numbers.append(tables[-1])
        return tables, numbers[:n_y]

    def by_names(self, saved: Sequence[Tensor], layout: Layout) -> list[Tensor]:
        """What is saved, as calls by names save it: each kept value is one tensor."""
        n, rows = len(self._inputs) + len(self._y), layout.rows
        parts = zip(self._saved[n:], self._begins, self._shapes, strict=True)
        kept = (part(saved[at.which or 0], begin, (rows, *shape)) for at, begin, shape in parts)
        return [*saved[:n], *kept]

    def _backward(self, given: tuple[bool, ...], needed: tuple[bool, ...]) -> Backward:
        """How gradients are made. `given`: which results something comes in for. Raises LookupError."""
        ready, layout = self.ready, self.layout
        sources = ready.sources(len(self._inputs))
        if ready.backward is None or sources.held:
            raise LookupError
        asked = asked_of(ready, layout, given, needed)
        lone = ready.backward.lone(asked.wanted, ready.is_few(layout))
        if lone is None:
            raise LookupError
        results = [*self._y, *self._made[self._kept_end :]]
        likes = [*self._inputs, *self._y, *self._kept, *results]
        types = [*(t.dtype for t in (*self._inputs, *self._y)), *self._types]
        way = WayBack(ready, ready.backward, layout, self.most, lone, likes, len(likes) - len(results))
        way.read_saved(sources, self._saved, self._begins, types)
        way.read_gradients(sources, results)
        way.make(asked.has, self._inputs)
        zeros = [like if came else zeros_like(like) for like, came in zip(results, given, strict=True)]
        return way.found(
            self._strides, zeros, ready.leaves_out(given), reached_for_any_lengths(ready.plan, given)
        )


class Lately(LeftByRuns):
    """How runs go by places that are on the same threads as several before, and on sequences over about as
    many rows; of dense tables, on other pieces of them; where which results carry a gradient hangs on
    lengths, on the same sequences."""

    asked_by = frozenset()

    def __init__(self) -> None:
        self._known = Bounded[Any, "int | Direct | None"](_MOST_RUNS)  # a number: of runs so far
        self._last: tuple[Layout | None, Any, Direct | None] = None, None, None  # what was found at last
        self._any_lengths: bool | None = None  # whether they may be others where a backward follows

    @property
    def by_places(self) -> bool:
        """Whether some go so."""
        return any(isinstance(known, Direct) for known in self._known.values())

    def last(self, layout: Layout, steps: tuple[int, ...], trains: bool) -> Direct | None:
        """How the run before went by places, if this one is alike; see `direct`."""
        last = self._last
        alike = last[0] is layout and last[1] == (torch.get_num_threads(), steps, trains)
        return last[2] if alike else None

    def direct(
        self, ready: Ready, layout: Layout, inputs: Sequence[Tensor], steps: tuple[int, ...], trains: bool,
        needs: Sequence[bool] | None = None,
    ) -> Direct | None:  # fmt: skip
        """That of such a run; None: it goes by names. Inputs are known to look like those before. `trains`:
        whether a backward may follow. `needs`: which of them need a gradient; None: as they say."""
        threads, last = torch.get_num_threads(), self._last
        how = threads, steps, trains
        if last[0] is layout and last[1] == how:
            return last[2]
        if needs is None and trains:
            recorded = is_recorded()
            needs = [recorded and t.requires_grad for t in inputs]
        needs = needs or ()
        if trains and self._any_lengths is None:
            self._any_lengths = carry_for_any_lengths(ready.plan, needs)
        alone = trains and not (steps or self._any_lengths)
        rows = layout.rows if steps else layout.rows.bit_length()
        kind: Any = layout if alone else (rows, layout.stride, steps, trains, trains and ready.is_few(layout))
        kind = kind, threads
        known = self._known.get(kind, 0)
        if not isinstance(known, int):
            self._last = layout, how, known
            return known
        if known < _SURE:
            if layout.rows < _MOST_ROWS:  # else a number for each row is too much
                self._known[kind] = known + 1
            return None
        try:
            found = Direct(ready, layout, inputs, steps, needs)
        except LookupError:
            found = None
        self._known[kind] = found
        return found
