"""Run a scan by generated C."""

from __future__ import annotations

import ctypes
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Literal

import torch
from torch import Tensor

from stepnet.data.bounded_cache import Bounded
from stepnet.data.dtypes import dtype_of
from stepnet.data.heap import KEPT, new_table
from stepnet.data.unpatched_torch import (
    contiguous,
    data_ptr,
    empty,
    empty_like,
    is_contiguous,
    stride,
    zeros,
    zeros_like,
)
from stepnet.errors import BuildError, NoCompiler, NotBuilt, StepIndexError, describe
from stepnet.executors import cache_folder
from stepnet.executors.direct import MOST, Places
from stepnet.executors.layout import Layout, is_uneven
from stepnet.executors.schedule.features import features
from stepnet.executors.schedule.program import Program
from stepnet.executors.schedule.turns import by_turns, waits_for_memory
from stepnet.executors.tables import EARLIER, into, lead_in, led_table
from stepnet.ir.graph import Node
from stepnet.ir.plan import LoopPlan, Region

from . import build as c_build
from . import few_rows as c_few
from . import threads as c_threads
from .addressed import Addressed, Writer
from .call_arguments import Desks, Placed, Sharing, Table, padded
from .code import Code, codes
from .products import BY_DTYPE, float_parts, has_tiles
from .source import FIXED, Source, write
from .thread_gain import SHORT, Pace
from .weight_memory import before, constants, matrices, worth_packing

ALONE = 1 << 19  # multiplications of a call that one thread does before another one wakes
MEMBER_BYTES = 1 << 15  # of weights that a step reads, for each thread that shares it (measured)
FAR = 1 << 21  # bytes of weights that a step reads, which no cache of one thread holds: each takes a part
FEW_TO_READ_FAR = 64  # sequences, with more of which that saves little
NEAR = 1 << 16  # bytes of states that one thread works on at a time, where steps do not share a product
WORTH_TURNS = 0.3  # of the time of steps, that takes what is made beside them
WORTH_TURNS_TOO = 1.0  # where threads could take some features each
TURNS, LEAST = 4, 16  # chunks of a thread at least, if they have so many steps, when threads take turns
APART = 2  # such chunks between two meetings of threads that take some features each: one may have to wait
CHUNK = 1 << 18  # bytes of rows between products and the steps beside them: the second cache holds them
CHUNK_BY_TILES = 1 << 20  # at most, for tiles, which outrun a cache that is far: twice those of matrices
LED = 1 << 16  # bytes of a table from which room before its rows is made faster than a copy one step later
WORTH_SPLITTING = 512  # rows, for fewer of which splitting a matrix takes longer than it saves (measured)
SMALL = 1 << 14  # bytes of a table of which one is kept to make others like it
_MOST_KINDS = 64  # of calls, whose pace one scan remembers
_MOST_PLACED = 64  # sequences, of which one scan remembers the arguments
_FEW_ROWS = 1 << 12  # of more rows it remembers those alone
_NEW = ("out", "state", "sum", "total")  # what a call makes tensors for


class CScan:
    """A scan compiled to C; called like every scan executor (see `loop.PreparedLoop`).

    It runs once it is built (`build_all`).

    Raises:
        Unsupported: the scan holds what generated C does not do, or there is no compiler.
    """

    _alone: Code
    by_address = True  # the shape of a table of rows that it reads makes no difference

    def __init__(self, loop: LoopPlan, region: Region) -> None:
        self.source: Source = write(loop, region, "run")
        self._whose = loop, region
        p = self.source.program
        reason = c_build.available()
        if reason is not None:
            raise NoCompiler(reason, remedy="install a C compiler, or stepnet[compiler]")
        try:
            cache_folder.cache_folder()
        except BuildError as error:
            raise NoCompiler(str(error), remedy="set STEPNET_CACHE_DIR to a folder of your own") from error
        few = c_few.few(loop, region)
        sums = [_table(0, each.made, (each.k, each.n), torch.float32, empty) for each in few]
        self._few = {each.made: (each, table) for each, table in zip(few, sums, strict=True)}
        self.products = frozenset(self._few)
        self.few_rows = c_few.most_rows(few)
        self.features = features(p)
        self.beside = by_turns(p)[1]
        self._waits = waits_for_memory(p, self.beside)
        early = {node.inputs[1] for node in (*p.early, *p.late)}
        self.step_bytes = sum(p.value(name).bytes for name, *_ in self.source.packed if name not in early)
        self._matrix_bytes = sum(p.value(name).bytes for name in p.matrices)
        self._worth_packing = worth_packing(self._matrix_bytes)
        self._packings: dict[tuple[Sharing | None, int], tuple[list[int], int]] = {}
        self._row_work = self.source.space[1] + sum(h * k * n for _, h, k, n in self.source.packed)
        products = [BY_DTYPE[p.value(name).dtype] for name in p.matrices if name not in p.by_row]
        self._tiled = has_tiles() and any(product.sums == "f32" for product in products)
        beside = sum(p.value(name).bytes for name in early)
        self._chunk_bytes = max(CHUNK, min(2 * beside, CHUNK_BY_TILES)) if self._tiled else CHUNK
        self._splits = any(product.is_split for product in products)
        made = [entry.value for entry in self.source.fields if entry.role in ("out", "sum", "total")]
        self._made = {n: (p.value(n).shape, dtype_of(p.value(n).dtype)) for n in made}
        rows = {p.renamed.get(c.result, c.result): c.parameter for c in p.carries}
        alike = {table: name for table, name in rows.items() if p.value(table).dtype == p.value(name).dtype}
        self._states_of = {table: name for table, name in alike.items() if table in p.outputs}
        self._named = {kept: name for name, kept in p.renamed.items()}
        self.hidden = {self._named.get(name, name) for name in made} - {*loop.wanted}
        self._may_fail = bool(p.faults)
        self._placements = Bounded[tuple[Layout, int, int], Placed](_MOST_PLACED)
        self._paces = Bounded[tuple[int, int, int], Pace](_MOST_KINDS)
        self._tables = Bounded[tuple[int, int, int, int], tuple[Table, ...]](_MOST_KINDS)
        self._has_totals = bool(p.totals)
        fixed = constants(loop, p)
        self._matrices = matrices(loop, p)
        used = {entry.value for entry in self.source.fields}
        # those that the C itself says
        written = [n.output for n in before(loop) if n.op == "full" and n.output not in used]
        read = {entry.value for entry in self.source.fields if entry.role == "shared"}  # element by element
        self.spared = {
            **dict.fromkeys([*fixed, *(name for name in written if name in region.read)]),
            **{p.by_row.get(n, n): at.source for n, at in self._matrices.items() if n not in read},
        }
        made = {entry.value for entry in self.source.fields if entry.role in _NEW}
        self.fresh = frozenset(self._named.get(name, name) for name in made)
        desks = self._desks = Desks(self.source.fields, fixed)
        self._read = [place for place in desks.places("row", "sequence", "shared") if place[1] not in fixed]
        self._held, self._carried = desks.places("held"), desks.places("state")
        rows = {name for _, name in desks.places("row")}.union(*((each.a, each.b) for each in few))
        self._movable = sorted(rows & {*loop.body.parameters} - {carry.parameter for carry in loop.carries})
        sums, totals = ([(n, n, part is p.sums) for n in part] for part in (p.sums, p.totals))
        self._given = [*sums, *totals, *((name, kept, False) for name, kept in p.renamed.items())]
        self._multiplied: list[tuple[int, str, int | None, int, int, int, int]] = []
        for at, name in desks.places("matrix"):
            of, (*batch, row, column), along, skipped = self._matrices[name]
            self._multiplied.append((at, of, batch[-1] if batch else None, row, column, along, skipped))
        self.reads = {name for _, name in self._read} | {of for _, of, *_ in self._multiplied}

    def __call__(
        self, region: Region, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout,
        products: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """See `PreparedLoop`. `products`: of few rows, those over rows that are to be made, too."""
        threads = torch.get_num_threads()
        split = float_parts() if self._splits and layout.rows >= WORTH_SPLITTING else 0
        placed = self._place(layout, threads, split)
        pace, by_all = placed.pace, True
        if pace is not None and not (by_all := pace.takes_all()):
            placed = self._by_one(placed)
        desk = self._desks.take(placed)
        alive: list[Tensor] = []
        moves = [] if products is None else self._moves(values, states, alive)
        finals = self._tell_inputs(desk.numbers, values, states, alive)
        made = self._make_tables(desk.numbers, placed.tables, values, states)
        code, pool = self._code(placed.sharing), c_threads.pool(placed.used)
        few = [self._product(*self._few[name], values, made, alive) for name in products or ()]
        began = perf_counter_ns()
        if few or moves:
            c_few.served(code.address, ctypes.addressof(pool), desk.address, layout, moves, few)
        else:
            code.run(pool, desk.address)
        if pace is not None:
            pace.note(by_all, perf_counter_ns() - began, layout.rows)
        self._desks.give_back(desk)
        if self._may_fail and made[""]:
            raise _fault(self.source.program, int(made[""]))
        for name, kept, is_sum in self._given:
            values[name] = made[kept].sum(0) if is_sum and placed.parts > 1 else made[kept]
        for name in products or ():
            values[name] = made[name]
        for _, name in self._held:
            finals[name] = states[name]
        return finals

    def _tell_inputs(
        self, numbers: Any, values: Mapping[str, Tensor], states: Mapping[str, Tensor], alive: list[Tensor]
    ) -> dict[str, Tensor]:
        """Write where a call finds what it reads; the tensors of its last states. `alive` gets the copies."""
        finals: dict[str, Tensor] = {}
        for at, name in self._read:
            tensor = values[name]
            numbers[at] = data_ptr(tensor) if is_contiguous(tensor) else _copied(tensor, alive)
        for at, name in self._held:
            tensor = states[name]
            numbers[at] = data_ptr(tensor) if is_contiguous(tensor) else _copied(tensor, alive)
        for at, name in self._carried:
            tensor = states[name]
            if is_contiguous(tensor):
                numbers[at], last = data_ptr(tensor), empty_like(tensor)
            else:
                numbers[at], last = _copied(tensor, alive), empty(tensor.shape, dtype=tensor.dtype)
            finals[name] = last
            numbers[at + 1] = data_ptr(last)
        for at, of, batch, row, column, along, skipped in self._multiplied:
            matrix = values[of]
            strides = stride(matrix)
            numbers[at] = data_ptr(matrix) + skipped * strides[along]
            numbers[at + 1], numbers[at + 2] = strides[row], strides[column]
            numbers[at + 3] = 0 if batch is None else strides[batch]
        return finals

    def _make_tables(
        self, numbers: Any, tables: Sequence[Table], values: dict[str, Tensor], states: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The tensors that a call fills; writes where they are."""
        made: dict[str, Tensor] = {}
        places = into.get()
        for at, name, shape, dtype, make, state, like in tables:
            if places is not None and (place := places.get(self._named.get(name, name))) is not None:
                made[name] = place
                numbers[at] = data_ptr(place)
                continue
            made[name] = table = make(shape, dtype=dtype) if like is None else make(like)
            numbers[at] = data_ptr(table)
            if state is not None:
                values[EARLIER + state] = lead_in(table, states[state])
        return made

    def addressed(
        self, layout: Layout, most: int, at: Places, products: Sequence[str] | None = None
    ) -> Addressed:
        """This scan of these sequences, as a function of addresses. `at`: where a call has what it reads and
        makes. `most`: rows of a call. `products`: see `__call__`. Raises LookupError: a call takes more than
        addresses."""
        parts = float_parts() if self._splits and most >= WORTH_SPLITTING else None
        placed = self._place(layout, torch.get_num_threads(), parts or 0)
        tables = self._tables_for(layout, most, placed.parts)
        known = {self._named.get(table.name, table.name) for table in placed.tables}.union(products or ())
        if not (known >= {*at.made} and self._is_by_addresses(placed, tables)):
            raise LookupError
        code, room = self._code(placed.sharing), 1 << layout.sequences.bit_length()
        w = self._writer(layout, tables, at, products, room)
        others = self._for_others(placed, w, most, parts or 0, room)
        return Addressed(self._desks, placed, others, self._by_one, code.run, code.address, w, parts)

    def _is_by_addresses(self, placed: Placed, tables: Sequence[Table]) -> bool:
        """Whether a call takes addresses alone: what it makes is small, and summed by one thread."""
        sums = self.source.program.sums
        if self._held or self._may_fail or self._has_totals or (sums and placed.parts > 1):
            return False
        if placed.pace is not None and (sums or placed.sharing in ("turns", "features")):
            return False
        return all(math.prod(t.shape) * t.dtype.itemsize < MOST for t in tables)

    def _writer(
        self, layout: Layout, tables: Sequence[Table], at: Places, products: Sequence[str] | None, room: int
    ) -> Writer:
        """What writes the arguments of a call. `room`: the sequences that its own memory is for."""
        w, kinds = Writer(self._desks.count), self._whose[0].body.values
        values, made = dict(at.values), dict(at.made)

        def size(name: str, rows: int = 1) -> int:
            return rows * math.prod(kinds[name].shape) * dtype_of(kinds[name].dtype).itemsize

        for table in tables:
            name = self._named.get(table.name, table.name)
            if name not in made:
                made[name] = w.own(math.prod(table.shape) * table.dtype.itemsize)
            w.write(table.at, made[name])
        moves = [name for name in self._movable if name in at.boots] if products is not None else []
        few = [self._few[name][0] for name in products or ()]
        if few or moves:
            w.serve(0, 0, 0, *c_few.rows_of(layout), layout.rows, len(moves), len(few))
        for name in moves:
            moved = w.own(size(name, layout.rows))
            w.serve(moved, values[name], at.boots[name], size(name))
            values[name] = moved
        for each in few:
            w.serve(made[each.made], *((made | values)[rows] for rows in (each.a, each.b)), each.k, each.n)
        for place, name in self._read:
            w.write(place, values[name])
        for place, name in self._carried:
            w.write(place, at.boots[name])
            last = at.lasts.get(name)
            w.of_sequences |= last is None
            w.write(place + 1, last or w.own(size(name, room)))
        for place, of, batch, row, column, along, skipped in self._multiplied:
            strides, lies = at.strides[of], values[of]
            w.write(place, lies._replace(offset=lies.offset + skipped * strides[along]))
            w.numbers += [(place + 1, strides[row]), (place + 2, strides[column])]
            w.numbers.append((place + 3, 0 if batch is None else strides[batch]))
        return w

    def _for_others(
        self, placed: Placed, w: Writer, most: int, split: int, room: int
    ) -> Callable[[Layout], Placed]:
        """What places others for the same code and memory. It raises LookupError: they do not fit."""
        layout, kind = placed.layout, _kind(placed)
        wide = None  # the same with room for more sequences, if one thread has them all, however many
        if placed.key[0] == 1 or layout.rows * self._row_work < ALONE:
            wide = self._placed_on(layout, placed.key[0], placed.key[1], room=room)
            wide = wide if wide.head[1] == 1 else None

        def for_others(layout: Layout) -> Placed:
            if wide is not None and layout.rows == wide.layout.rows and layout.sequences <= room:
                _, shares, _, *others = wide.head[:-3]
                order = layout.order
                at = data_ptr(layout.starts), data_ptr(layout.lengths), data_ptr(order)
                head = layout.sequences, shares, layout.steps, *others, *at
                return wide._replace(layout=layout, order=order, head=head)
            other = self._place(layout, torch.get_num_threads(), split)
            fits = not w.of_sequences or layout.sequences <= room
            same = not w.served or layout.rows == placed.layout.rows
            if layout.rows > most or not (same and fits) or _kind(other) != kind:
                raise LookupError
            return other

        return for_others

    def _moves(
        self, values: dict[str, Tensor], states: Mapping[str, Tensor], alive: list[Tensor]
    ) -> list[tuple[int, int, int, int]]:
        """New tables for the rows that have a boot, and what `c_few.served` is to know of them."""
        found: list[tuple[int, int, int, int]] = []
        for name in self._movable:
            boot = states.get(name)
            if boot is not None:
                rows = contiguous(values[name])
                alive += (rows, boot := contiguous(boot))
                values[name] = table = empty_like(rows)
                size = math.prod(boot.shape[1:]) * boot.dtype.itemsize
                found.append((data_ptr(table), data_ptr(rows), data_ptr(boot), size))
        return found

    def _product(
        self, of: c_few.Few, table: Table, values: Mapping[str, Tensor], made: dict[str, Tensor],
        alive: list[Tensor],
    ) -> tuple[int, int, int, int, int]:  # fmt: skip
        """A table for a product over rows, and what `c_few.served` is to know of it."""
        sums = made[of.made] = table.made()
        renamed = self.source.program.renamed

        def place(name: str) -> int:
            rows = made[renamed[name]] if name in renamed else values[name]
            return data_ptr(rows) if is_contiguous(rows) else _copied(rows, alive)

        return data_ptr(sums), place(of.a), place(of.b), of.k, of.n

    def _place(self, layout: Layout, threads: int, split: int) -> Placed:
        """What the arguments of a call are for these sequences, on at most so many threads."""
        kind = layout, threads, split
        placed = self._placements.get(kind)
        if placed is None:
            if layout.rows > _FEW_ROWS:
                self._placements.clear()
            placed = self._placements[kind] = self._placed_anew(layout, threads, split)
        return placed

    def _placed_anew(self, layout: Layout, threads: int, split: int) -> Placed:
        placed, work = self._placed_on(layout, threads, split), layout.rows * self._row_work
        # where each has sequences of its own, sums have as many parts as there are threads
        meets = placed.sharing is not None or (work < SHORT and not self.source.program.sums)
        if threads == 1 or work <= ALONE or not meets:
            return placed
        kind = threads, layout.sequences, layout.rows.bit_length()
        if kind not in self._paces:
            self._paces[kind] = Pace()
        return placed._replace(pace=self._paces[kind])

    def _by_one(self, placed: Placed) -> Placed:
        """A placement on one thread, which adds the same numbers in the same order."""
        kind = placed.layout, *placed.key
        known = self._placements.get(kind, placed)
        if known.alone is None:
            known = self._placements[kind] = placed._replace(alone=self._alone_of(placed, placed.key[1]))
        assert known.alone is not None
        return known.alone

    def _alone_of(self, placed: Placed, split: int) -> Placed:
        layout, shares = placed.layout, 1
        if self.source.program.sums:
            if placed.sharing == "turns":
                return placed._replace(used=1)
            if placed.sharing == "members":  # one share has the rows of one member
                shares = min(placed.used, layout.sequences)
        return self._placed_on(layout, shares, split, alone=True)

    def _placed_on(
        self, layout: Layout, threads: int, split: int, alone: bool = False, room: int = 0
    ) -> Placed:
        """`alone`: on one thread, which does what those threads would; sums as their rows came together.
        `room`: for how many sequences, of as many steps as there are rows, there is to be memory."""
        n, steps = layout.sequences, layout.steps
        in_turn = alone and bool(self.source.program.sums)
        small = layout.rows * self._row_work < ALONE
        sharing, members = (None, 1)
        if threads > 1 and not alone and not small:
            sharing, members = self.shared_out(layout, threads)
        source = self._code(sharing).source
        slots = 1 if small or sharing is not None else max(1, min(threads, n))
        count = -(-max(n, room) // slots)
        whole = self.step_bytes or sharing is not None or in_turn
        turns = 1 if whole else -(-count // max(1, NEAR // max(source.space[1], 1)))
        count = -(-count // max(turns, 1))
        copies = members if sharing == "turns" else 1  # of what a chunk of steps reads
        row_bytes = copies * source.chunk_bytes + members * source.index_bytes
        block = self._chunk_bytes * (APART if sharing == "features" else copies)
        most = layout.rows if room else steps
        held_bytes = row_bytes + source.late_bytes + copies * source.ahead_bytes
        chunk = max(1, min(most, block // max(count * held_bytes, 1)))
        if sharing == "turns":  # a state is in the first of its two places where a chunk begins
            chunk = max(LEAST, min(chunk, steps // (TURNS * members)) // LEAST * LEAST)
        share_bytes = source.space[0] + count * (8 * members + source.space[1] + chunk * row_bytes)
        share_bytes = padded(share_bytes + (64 + source.own_bytes) * members)
        shares = slots * max(turns, 1)
        order = layout.order if in_turn else layout.dealt(shares)
        packed, packed_bytes = self._packed(sharing, split)
        few = layout.rows < self._worth_packing and sharing in (None, "members")
        head = (
            n, shares, steps, layout.stride, slots, chunk,
            members if sharing is not None else 0, split, int(few),
            data_ptr(layout.starts), data_ptr(layout.lengths), data_ptr(order),
        )  # fmt: skip
        assert len(head) + 2 == len(FIXED)
        return Placed(
            layout,
            order,
            (threads, split),
            1 if alone else members if sharing is not None else threads,
            sharing,
            head,
            share_bytes,
            tuple(share_bytes * slots + at for at in packed),
            share_bytes * slots + packed_bytes + 64,
            slots * members,
            self._tables_for(layout, layout.rows, slots * members),
        )

    def _packed(self, sharing: Sharing | None, split: int) -> tuple[list[int], int]:
        """Where the matrices that are packed stand, one after the other, and the bytes of all."""
        found = self._packings.get((sharing, split))
        if found is None:
            source, places, at = self._code(sharing).source, [], 0
            for name, heads, k, n in source.packed:
                places.append(at)
                value = source.program.value(name)
                size = heads * BY_DTYPE[value.dtype].packed_bytes(k, n, split)
                at += padded(value.bytes if name in source.program.by_row else size)
            found = self._packings[sharing, split] = places, at
        return found

    def _tables_for(self, layout: Layout, rows: int, parts: int) -> tuple[Table, ...]:
        """The tensors that a call makes, which are the same for many layouts of as many rows."""
        led_by = layout.stride if layout.is_packed else 0
        kind = rows, layout.sequences if self._has_totals else 0, led_by, parts
        tables = self._tables.get(kind)
        if tables is None:
            tables = self._tables[kind] = self._new_tables(*kind)
        return tables

    def _new_tables(self, rows: int, sequences: int, led_by: int, parts: int) -> tuple[Table, ...]:
        """Tables of rows as they are, what is summed as zeros. `led_by`: rows that a table has room for
        before its own, as those of a state want."""
        tables: list[Table] = []
        for at, name in self._desks.places("out"):
            shape, dtype = self._made[name]
            size = rows * math.prod(shape) * dtype.itemsize
            state, make = None, empty
            if size >= KEPT:
                shown = self._named.get(name, name) not in self.hidden
                make = functools.partial(new_table, shown=shown)
            if size >= LED and led_by and (state := self._states_of.get(name)) is not None:
                make = functools.partial(led_table, by=led_by)
            tables.append(_table(at, name, (rows, *shape), dtype, make, state))
        for at, name in self._desks.places("sum"):
            shape, dtype = self._made[name]
            tables.append(_table(at, name, (*(parts,) * (parts > 1), *shape), dtype, zeros))
        for at, name in self._desks.places("total"):
            shape, dtype = self._made[name]
            tables.append(_table(at, name, (sequences, *shape), dtype, zeros))
        for at, name in self._desks.places("wrong"):
            tables.append(_table(at, name, (1,), torch.int64, zeros))
        return tuple(tables)

    def shared_out(self, layout: Layout, threads: int) -> tuple[Sharing | None, int]:
        """How threads share all rows, and how many; none where each has sequences of its own.

        They work on one step at a time where there are more of them than sequences, or they are few and no
        cache holds its weights, and each has enough to read to pay for the meetings. Where sequences are
        dealt unevenly, they take turns, or some features each.
        """
        members = min(threads, self.step_bytes // MEMBER_BYTES)
        few = FEW_TO_READ_FAR if self.step_bytes > FAR and members > 1 else members - 1
        if 0 < layout.sequences <= few:
            return "members", members
        if self.for_few is not None and is_uneven(layout, threads):
            if self.for_few == "turns" and self._by_turns is not None:
                return "turns", threads
            if self.features is not None and self.features.parts > 1 and self._by_features is not None:
                return "features", min(threads, self.features.parts)
        return None, 1

    @property
    def for_few(self) -> Literal["turns", "features"] | None:
        """How threads share the rows of sequences that are dealt unevenly."""
        by_features = self.features is not None and self.features.parts > 1
        if self._waits or self.beside >= (WORTH_TURNS_TOO if by_features else WORTH_TURNS):
            return "turns"
        return "features" if by_features else None

    def _code(self, sharing: Sharing | None) -> Code:
        code = self._by_features if sharing == "features" else self._alone
        code = self._by_turns if sharing == "turns" else code
        assert code is not None
        return code

    @functools.cached_property
    def _by_features(self) -> Code | None:
        """The same scan by threads that take some features each, built when it is first called for; None,
        and a warning, where it cannot be built."""
        return self._for_several(features=self.features)

    @functools.cached_property
    def _by_turns(self) -> Code | None:
        """The same scan by threads that take turns; as above."""
        return self._for_several(turns=True)

    def _for_several(self, **how: Any) -> Code | None:
        source = write(*self._whose, "run", **how)
        try:
            return codes([source])[0]
        except BuildError as error:
            what = "one long sequence runs on one thread: the code for several was not built"
            warnings.warn(describe(what, got=error), RuntimeWarning, stacklevel=2)
            return None


def _kind(placed: Placed) -> tuple[Any, ...]:
    """What generated code that is given addresses only is made for."""
    return placed.key, placed.used, placed.sharing, placed.parts


_MAKES_LIKE: dict[Any, Callable[..., Tensor]] = {empty: empty_like, zeros: zeros_like}


def _table(
    at: int, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[..., Tensor],
    state: str | None = None,
) -> Table:  # fmt: skip
    if make not in _MAKES_LIKE or math.prod(shape) * dtype.itemsize >= SMALL:
        return Table(at, name, shape, dtype, make, state)
    return Table(at, name, shape, dtype, _MAKES_LIKE[make], state, empty(shape, dtype=dtype, device="cpu"))


def build_all(scans: Sequence[CScan]) -> None:
    """Build the C of scans that are to run.

    Raises:
        Unsupported: it is not built.
    """
    try:
        for scan, code in zip(scans, codes([scan.source for scan in scans]), strict=True):
            scan._alone = code
    except BuildError as error:
        raise NotBuilt(str(error)) from error


def _fault(p: Program, number: int) -> Exception:
    """What a scan found wrong, by the number of it."""
    if number == 2:
        lines = ", ".join(node.line for node in p.faults if node.op in ("lu", "cholesky") and node.line)
        return torch.linalg.LinAlgError(  # pyright: ignore[reportPrivateImportUsage]
            "linalg: a matrix of a row has no inverse, or is not positive-definite"
            + (f" ({lines})" if lines else "")
        )
    places = [_places(p, node) for node in p.faults if node.op not in ("lu", "cholesky")]
    if not any(node.op == "embed" for node in p.faults):
        return StepIndexError(
            "a pick by an index computed in the step found no such element",
            got=f"an index outside one of {', '.join(places)}",
            remedy="indices count from 0 to the size of the dimension less one",
        )
    return StepIndexError(
        "a lookup by an index computed in the step found no such row",
        got=f"an index outside one of {', '.join(places)}",
        remedy="indices count from 0 to the rows of the table less one",
    )


def _places(p: Program, node: Node) -> str:
    at = f" ({node.line})" if node.line else ""
    shape = p.value(node.inputs[0]).shape
    return f"{shape[0]} rows{at}" if node.op == "embed" else f"{shape[node.attr('dim')]} places{at}"


def _copied(tensor: Tensor, alive: list[Tensor]) -> int:
    """Where the elements of a tensor stand one after the other, as long as `alive` is."""
    alive.append(contiguous(tensor))
    return data_ptr(alive[-1])
