"""Calls like one before, of plans that are one scan each way, that of backward perhaps with maps around it:
values go by their places, not by their names.

Of a small step, to find values by their names takes longer than to compute them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.as_imported import data_ptr, empty, empty_like, is_contiguous, stride, zeros_like
from stepnet.data.bounded import Bounded
from stepnet.data.dtypes import dtype_of
from stepnet.data.modes import is_as_written
from stepnet.data.storage import distinct

from .flow import carry_gradients
from .gradients import asked_of
from .layout import Layout
from .loop import Lone, run_nodes, shift
from .ready import Ready
from .tables import as_table
from .twice import is_plain

MOST = 1 << 20  # bytes of a table, and of what is kept for backward, which lies in one piece
_SURE = 3  # runs on the same sequences by names, for what is laid out takes as long as a few more of those
_LINE = 64  # numbers that one value of those begins after another at the least
_MOST_KINDS = 64  # of gradients that are asked of one
_MOST_RUNS = 16  # kinds of runs that are known at a time
_CPU = torch.device("cpu")

Run = Callable[[Sequence[int], Layout], None]  # a scan of some sequences, on what lies at some addresses


class Place(NamedTuple):
    """So many bytes after one of the addresses that a scan is given; None: in memory of its own."""

    which: int | None
    offset: int = 0


class Places(NamedTuple):
    """Where a call has what a scan reads and makes, by name.

    Attributes:
        values: what it reads.
        strides: of inputs among those.
        boots: of carries, and of the rows that are moved by a step.
        made: what it makes that is asked for: tables, sums (of zeros) and products.
        lasts: the last values of carries that are asked for.
    """

    values: Mapping[str, Place]
    strides: Mapping[str, Sequence[int]]
    boots: Mapping[str, Place]
    made: Mapping[str, Place]
    lasts: Mapping[str, Place]


class _Backward(NamedTuple):
    """How gradients are made.

    Attributes:
        run: the scan.
        zeros: what stands for each result that nothing comes in for.
        shifted: tables that are read one step earlier and boot values, among what is saved; and the shape.
        made: what makes each table that the scan makes, and of what it makes one like.
        out: which of those each input gets.
        copies: the inputs that get a copy, because another one has it, too.
        before, after: the maps around it.
        given: what it is given of those before.
        reads: what maps read, its place among what is at hand, and its part of that.
        late: the inputs that get a value of the maps after it.
    """

    run: Run
    zeros: list[Tensor]
    shifted: list[tuple[int, int, tuple[int, ...]]]
    made: list[tuple[Callable[[Tensor], Tensor], Tensor]]
    out: list[int | None]
    copies: list[int]
    before: list[Any]
    after: list[Any]
    given: list[str]
    reads: list[tuple[str, int, int | None, tuple[int, ...]]]
    late: list[tuple[int, str]]


class Direct:
    """Runs of a plan on the same sequences, of tensors that look the same, each in one piece. Where no
    backward follows, on other sequences, too, over about as many rows.

    Scans are given the addresses of what is saved: inputs, y, and what else is kept, which lies in one piece;
    and of the last states, or of what comes in and the gradients.

    Attributes:
        layout: where rows stand.
        steps: see `call.Call`.
        most: the most rows of a call.
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
        states = inputs[len(plan.x) : len(plan.x) + len(plan.states)]
        self.steps, self._threads = steps, torch.get_num_threads()
        self.trains = any(needs)
        self.ready, self.layout = ready, layout
        self._inputs = [_outline(t.shape, t.dtype) for t in inputs]
        self._strides = {name: stride(t) for name, t in zip(ready.names, inputs, strict=False)}
        self.most = layout.rows if self.trains or steps else _to_next_power(layout.rows)
        rows = steps or (layout.rows,)
        self._y = [_outline((*rows, *kinds[name].shape), dtype_of(kinds[name].dtype)) for name in plan.y]
        self._shapes = {name: (self.most, *kinds[name].shape) for name in ready.extra}
        sizes = [-(-math.prod(shape) // _LINE) * _LINE for shape in self._shapes.values()]
        types = {kinds[name].dtype for name in ready.extra}
        self._kept = [_outline((sum(sizes),), dtype_of(each)) for each in types]
        item = sum(t.dtype.itemsize for t in self._kept)
        self._begins = [sum(sizes[:k]) for k in range(len(sizes))]
        as_usual = (
            ready.owned
            and not plan.random
            and layout.rows > 0
            and all(map(is_contiguous, inputs))
            and not (self.trains and any(map(Tensor.is_inference, inputs)))
            and [t.dtype for t in states] == [ready.carried_as[name] for name in plan.states]
            and all(kinds[name].kind == "row" for name in ready.extra)
            and len(types) < 2
            and sum(sizes) * item < MOST
        )
        if not as_usual:
            raise LookupError
        n = len(inputs) + len(self._y)
        self._saved = [Place(k) for k in range(n)] + [Place(n, begin * item) for begin in self._begins]
        named = {name: Place(k) for k, name in enumerate(ready.names[: len(inputs)])}
        boots = {name: named.pop(name) for name in plan.states}
        made = dict(zip((*plan.y, *ready.extra), self._saved[len(inputs) :], strict=True))
        lasts = {name: Place(n + len(self._kept) + k) for k, name in enumerate(plan.states)}
        lone = ready.forward.lone(None, False)
        if lone is not None and (lone.before or lone.after):
            raise LookupError
        self._run = _addressed(lone, layout, self.most, Places(named, self._strides, boots, made, lasts))
        self._made = [*self._y, *self._kept, *(_outline(t.shape, t.dtype) for t in states)]
        self._states = slice(len(plan.x), len(plan.x) + len(plan.states))
        carry = carry_gradients(plan, layout, needs) if self.trains else ()
        self.still = [k for k, carries in enumerate(carry) if not carries]
        self._backwards = Bounded[tuple[bool, ...], "_Backward | None"](_MOST_KINDS)
        if self.trains:  # backward by names takes longer of what is kept here
            given = (True,) * (len(self._y) + len(states))
            self._backwards[(*given, *needs)] = self._backward(given, tuple(needs))

    def forward(self, inputs: Sequence[Tensor], layout: Layout) -> tuple[list[Tensor], list[Tensor]] | None:
        """y and the last states; and what is to be saved besides the inputs. None: not of these."""
        y, kept = len(self._y), len(self._y) + len(self._kept)
        likes = self._made
        if layout is not self.layout:
            # strides of one row tell nothing of others
            if not all(map(is_contiguous, inputs[: self._states.stop])):
                return None
            likes = [*likes[:kept], *inputs[self._states]]
        if layout.rows == self.layout.rows:
            made = [empty_like(like) for like in likes]
        elif 0 < layout.rows <= self.most:
            shapes = [(layout.rows, *like.shape[1:]) for like in likes[:y]]
            made = [empty(s, dtype=t.dtype, device="cpu") for s, t in zip(shapes, likes, strict=False)]
            made += map(empty_like, likes[y:])
        else:
            return None
        addresses = [*map(data_ptr, inputs), *map(data_ptr, made)]
        if not all(addresses):
            return None
        try:
            self._run(addresses, layout)
        except LookupError:
            return None
        return made[:y] + made[kept:], made[:kept]

    def gradients(
        self, saved: Sequence[Tensor], grads: Sequence[Tensor | None], needed: tuple[bool, ...]
    ) -> list[Tensor | None] | None:
        """The gradient of each input; None: not of these. `saved`: the inputs, and what `forward` gave."""
        nobody_else = is_as_written(_CPU) and not torch._C._len_torch_dispatch_stack()
        if not (nobody_else and self._threads == torch.get_num_threads() and all(map(is_plain, grads))):
            return None
        kind = *[grad is not None for grad in grads], *needed
        if kind not in self._backwards:
            try:
                self._backwards[kind] = self._backward(kind[: len(grads)], needed)
            except LookupError:
                self._backwards[kind] = None
        way = self._backwards.get(kind)
        if way is None or not all(map(is_contiguous, saved)):
            return None
        came = zip(grads, way.zeros, strict=True)
        tables = [zero if grad is None else as_table(grad) for grad, zero in came]
        made = [make(like) for make, like in way.made]
        made += [shift(saved[k].view(shape), saved[of], self.layout) for k, of, shape in way.shifted]
        at_hand = (*saved, *tables, *made)
        values = {name: self._part(at_hand[k], begin, shape) for name, k, begin, shape in way.reads}
        read = [*values.values()]
        if way.before:
            run_nodes(way.before, values, self.layout.rows)
            made += [as_table(values[name]) for name in way.given]
        addresses = [data_ptr(t) for t in (*saved, *tables, *made)]
        if not all(addresses) or any(map(Tensor.is_neg, tables)):
            return None
        try:
            way.run(addresses, self.layout.backward)
        except LookupError:
            return None
        out = [None if k is None else made[k] for k in way.out]
        for k in way.copies:
            out[k] = made[way.out[k] or 0].clone()
        if way.late:
            run_nodes(way.after, values, self.layout.rows)
            found = [values[name] for _, name in way.late]
            shapes = [self._inputs[k].shape for k, _ in way.late]
            found = [t if t.shape == s else t.reshape(s) for t, s in zip(found, shapes, strict=True)]
            for (k, _), t in zip(way.late, distinct(found, read), strict=True):
                out[k] = t
        return out

    def by_names(self, saved: Sequence[Tensor]) -> list[Tensor]:
        """What is saved, as calls by names save it: each kept value is one tensor."""
        n = len(self._inputs) + len(self._y)
        parts = zip(self._begins, self._shapes.values(), strict=True)
        return [*saved[:n], *(self._part(saved[n], begin, shape) for begin, shape in parts)]

    @staticmethod
    def _part(table: Tensor, begin: int | None, shape: tuple[int, ...]) -> Tensor:
        """A table of rows; of what is kept in one piece, the one that begins there."""
        return (table if begin is None else table[begin : begin + math.prod(shape)]).view(shape)

    def _backward(self, given: tuple[bool, ...], needed: tuple[bool, ...]) -> _Backward:
        """How gradients are made. `given`: which results something comes in for. Raises LookupError."""
        ready, layout, plan = self.ready, self.layout, self.ready.plan
        n_x, n_y, few = len(plan.x), len(self._y), ready.is_few(layout)
        sources, results = ready.sources(len(self._inputs)), [*self._y, *self._made[n_y + len(self._kept) :]]
        if ready.backward is None or sources.held or ready.leaves_out(given):
            raise LookupError
        asked = asked_of(ready, layout, given, needed)
        lone = ready.backward.lone(asked.wanted, few)
        if lone is None:
            raise LookupError
        kinds = ready.backward.plan.body.values
        values, boots = {name: self._saved[k] for name, k in sources.values}, dict[str, Place]()
        types = [t.dtype for t in (*self._inputs, *self._y, *self._kept * len(self._shapes))]
        n_saved, n_whole = len(self._inputs) + n_y + len(self._kept), len(self._inputs) + n_y
        at_hand = {name: min(k, n_whole) for name, k in sources.values}
        begins = {name: self._begins[k - n_whole] for name, k in sources.values if k >= n_whole}
        shifted = dict[str, tuple[int, int, tuple[int, ...]]]()
        for name, k, of in sources.shifted:
            if types[k] is not types[of]:
                raise LookupError
            if few and name in ready.backward.moved:
                values[name], boots[name] = self._saved[k], self._saved[of]
            else:
                shifted[name] = k, of, (layout.rows, *kinds[name].shape)
        for name, k, _, dtype in sources.tangents:
            (values if dtype is None else boots)[name] = Place(n_saved + k)
            if dtype is None:
                at_hand[name] = n_saved + k
            elif dtype is not results[k].dtype:
                raise LookupError
        made: list[tuple[Callable[[Tensor], Tensor], Tensor]] = []
        out: list[int | None] = [None] * len(needed)
        copies, places, late = list[int](), dict[str, int](), list[tuple[int, str]]()
        tangents = plan.tangents[n_y:]
        names = [*plan.gradients[:n_x], *tangents, *plan.gradients[n_x + len(tangents) :]]
        before, by_maps = (
            {name for node in nodes for name in node.outputs} for nodes in (lone.before, lone.after)
        )
        for k, name in enumerate(names):
            if not asked.has[k]:
                continue
            if name is None:
                raise LookupError
            like, value = self._inputs[k], kinds[name]
            if name in by_maps:
                late.append((k, name))
            elif name in places:
                copies.append(k)
            else:
                places[name] = len(made)
                made.append((zeros_like if value.kind == "sum" else empty_like, like))
            rows = layout.sequences if name in tangents else layout.rows if value.kind == "row" else 1
            alike = like.dtype is dtype_of(value.dtype) and like.numel() == rows * math.prod(value.shape)
            if name in places:
                out[k] = places[name]
                alike = alike and made[places[name]][1].shape == like.shape
            if not alike:
                raise LookupError
        read = {name for node in (*lone.before, *lone.after) for name in node.inputs} - before - by_maps
        for name in sorted(read - {*at_hand, *shifted, *places}):
            value = kinds[name]
            rows = (layout.rows,) if value.kind == "row" else ()
            places[name] = len(made)
            like = _outline((*rows, *value.shape), dtype_of(value.dtype))
            made.append((zeros_like if value.kind == "sum" else empty_like, like))
        after = n_saved + len(results)
        at_hand |= {name: after + k for name, k in places.items()}
        found = {name: Place(after + k) for name, k in places.items()}
        for k, name in enumerate(shifted):
            values[name] = Place(after + len(made) + k)
            at_hand[name] = after + len(made) + k
        for k, name in enumerate(before):
            values[name] = Place(after + len(made) + len(shifted) + k)
        lasts = {name: found.pop(name) for name in tangents if name in found}
        at = Places(values, self._strides, boots, found, lasts)
        run = _addressed(lone, layout.backward, layout.rows, at)
        zeros = [like if came else zeros_like(like) for like, came in zip(results, given, strict=True)]
        likes = [*self._inputs, *self._y, *self._kept, *results, *(like for _, like in made)]
        reads: list[tuple[str, int, int | None, tuple[int, ...]]] = []
        for name in sorted(read):
            rows = (layout.rows,) if kinds[name].kind == "row" else ()
            k, begin, shape = at_hand[name], begins.get(name), (*rows, *kinds[name].shape)
            if begin is None and k < len(likes) and likes[k].numel() != math.prod(shape):
                raise LookupError
            reads.append((name, k, begin, shape))
        maps = lone.before, lone.after, [*before]
        return _Backward(run, zeros, [*shifted.values()], made, out, copies, *maps, reads, late)


def _addressed(lone: Lone | None, layout: Layout, most: int, at: Places) -> Run:
    """The scan with which a loop begins. `most`: rows of a call. Raises LookupError."""
    scan = None if lone is None else getattr(lone.scan, "addressed", None)
    if lone is None or scan is None:
        raise LookupError
    return scan(layout, most, at, lone.products)


def _outline(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor to make others like, without memory."""
    like = empty(shape, dtype=dtype, device="cpu")
    like.untyped_storage().resize_(0)
    return like


def _to_next_power(n: int) -> int:
    """The largest number of as many bits."""
    return (1 << n.bit_length()) - 1


class Lately:
    """How runs go by places that are on the same sequences, and threads, as several before; without a
    backward, on sequences over about as many rows."""

    def __init__(self) -> None:
        self._known = Bounded[Any, "int | Direct | None"](_MOST_RUNS)  # a number: of runs so far

    @property
    def by_places(self) -> bool:
        """Whether some go so."""
        return any(isinstance(known, Direct) for known in self._known.values())

    def direct(
        self, ready: Ready, layout: Layout, inputs: Sequence[Tensor], steps: tuple[int, ...], trains: bool,
        needs: Sequence[bool] | None = None,
    ) -> Direct | None:  # fmt: skip
        """That of such a run; None: it goes by names. Inputs are known to look like those before. `trains`:
        whether a backward may follow. `needs`: which of them need a gradient; None: as they say."""
        rows = layout.rows if steps else layout.rows.bit_length()
        kind = (layout if trains else (rows, layout.stride)), torch.get_num_threads()
        known = self._known.get(kind, 0)
        if not isinstance(known, int):
            return known
        if known < _SURE:
            if 4 * layout.rows < MOST:  # else a number for each row is too much
                self._known[kind] = known + 1
            return None
        if needs is None:
            needs = [torch.is_grad_enabled() and t.requires_grad for t in inputs]
        try:
            found = Direct(ready, layout, inputs, steps, needs)
        except LookupError:
            found = None
        self._known[kind] = found
        return found
