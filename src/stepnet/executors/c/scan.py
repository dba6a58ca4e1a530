"""Run a scan by generated C."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.unpatched_torch import (
    contiguous,
    data_ptr,
    empty,
    empty_like,
    is_contiguous,
    stride,
)
from stepnet.errors import BuildError, NoCompiler, NotBuilt, StepIndexError
from stepnet.executors import cache_folder
from stepnet.executors.addresses import MOST, Places
from stepnet.executors.layout import Layout
from stepnet.executors.schedule.program import Program
from stepnet.executors.tables import EARLIER, into, lead_in
from stepnet.ir.graph import Node
from stepnet.ir.plan import LoopPlan, Region

from . import build as c_build
from . import few_rows as c_few
from . import threads as c_threads
from .addressed import Addressed, Writer
from .call_arguments import Desks, Placed, Table
from .code import codes
from .new_tables import NewTables, table_at
from .placement import Placements
from .products import BY_DTYPE, float_parts
from .source import Source, write
from .weight_memory import before, constants, matrices

WORTH_SPLITTING = 512  # rows, for fewer of which splitting a matrix takes longer than it saves (measured)
_ADDED_UP = frozenset((torch.float32, torch.float64))  # of parts that threads make, by `few_rows`
_NEW = ("out", "state", "sum", "total")  # what a call makes tensors for


class CScan:
    """A scan compiled to C; called like every scan executor (see `loop.PreparedLoop`).

    It runs once it is built (`build_all`).

    Raises:
        Unsupported: the scan holds what generated C does not do, or there is no compiler.
    """

    by_address = True  # the shape of a table of rows that it reads makes no difference

    def __init__(self, loop: LoopPlan, region: Region) -> None:
        self.source: Source = write(loop, region, "run")
        self._loop = loop
        p = self.source.program
        reason = c_build.available()
        if reason is not None:
            raise NoCompiler(reason, remedy="install a C compiler, or stepnet[compiler]")
        try:
            cache_folder.cache_folder()
        except BuildError as error:
            raise NoCompiler(str(error), remedy="set STEPNET_CACHE_DIR to a folder of your own") from error
        few = c_few.few(loop, region)
        sums = [table_at(0, each.made, (each.k, each.n), torch.float32, empty) for each in few]
        self._few = {each.made: (each, of) for each, of in zip(few, sums, strict=True)}
        self.products = frozenset(self._few)
        self.few_rows = c_few.most_rows(few)
        products = [BY_DTYPE[p.value(name).dtype] for name in p.matrices if name not in p.by_row]
        self._splits = any(product.is_split for product in products)
        made = [entry.value for entry in self.source.fields if entry.role in ("out", "sum", "total")]
        self._named = {kept: name for name, kept in p.renamed.items()}
        self.hidden = {self._named.get(name, name) for name in made} - {*loop.wanted}
        self._may_fail = bool(p.faults)
        fixed = constants(loop, p)
        self._matrices = matrices(loop, p)
        used = {entry.value for entry in self.source.fields}
        # those that the C itself says
        written = [n.output for n in before(loop) if n.op == "full" and n.output not in used]
        read = {entry.value for entry in self.source.fields if entry.role == "shared"}  # element by element
        sources = [({n, p.by_row.get(n, n)}, at.source) for n, at in self._matrices.items()]
        self.spared = {
            **dict.fromkeys([*fixed, *(name for name in written if name in region.read)]),
            **{source: source for _, source in sources},  # they are read, whatever is spared
            **{n: source for names, source in sources if names.isdisjoint(read) for n in names - {*p.by_row}},
        }
        made = {entry.value for entry in self.source.fields if entry.role in _NEW}
        self.fresh = frozenset(self._named.get(name, name) for name in made)
        desks = self._desks = Desks(self.source.fields, fixed)
        self._tables = NewTables(p, desks, self._named, self.hidden)
        self.placements = Placements(loop, region, self.source, self._tables)
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
        placed = self.placements.of(layout, threads, split)
        pace, by_all = placed.pace, True
        if pace is not None and not (by_all := pace.takes_all()):
            placed = self.placements.by_one(placed)
        desk = self._desks.take(placed)
        alive: list[Tensor] = []
        moves = [] if products is None else self._moves(values, states, alive)
        finals = self._tell_inputs(desk.numbers, values, states, alive)
        made = self._make_tables(desk.numbers, placed.tables, values, states)
        code, pool = self.placements.code(placed.sharing), c_threads.pool(placed.used)
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
        placed = self.placements.of(layout, torch.get_num_threads(), parts or 0)
        return self._addressed(placed, most, at, products, parts)

    def _addressed(
        self, placed: Placed, most: int, at: Places, products: Sequence[str] | None, parts: int | None,
        by_all: Callable[[Layout], Placed] | None = None,
    ) -> Addressed:  # fmt: skip
        """The same by a placement. `by_all`: where it is one on one thread, what places others on all."""
        layout = placed.layout
        tables = self._tables.of(layout, most, placed.parts)
        known = {self._named.get(table.name, table.name) for table in placed.tables}.union(products or ())
        if not (known >= {*at.made} and self._is_by_addresses(placed, tables)):
            raise LookupError
        code, room = self.placements.code(placed.sharing), 1 << layout.sequences.bit_length()
        w = self._writer(layout, most, tables, at, products, room, placed.parts)
        if by_all is None:
            others = self._for_others(placed, w, most, parts or 0, room)
        else:
            others = self._for_others_by_one(placed, by_all)

        def by_one() -> Addressed:
            return self._addressed(self.placements.by_one(placed), most, at, products, parts, others)

        return Addressed(self._desks, placed, others, by_one, code.address, w, parts)

    def _is_by_addresses(self, placed: Placed, tables: Sequence[Table]) -> bool:
        """Whether a call takes addresses alone, and what it makes is small."""
        sums = self.source.program.sums
        if self._held or self._may_fail or self.source.program.totals:
            return False
        if placed.parts > 1 and not _ADDED_UP.issuperset(t.dtype for t in tables if t.name in sums):
            return False
        return all(math.prod(t.shape) * t.dtype.itemsize < MOST for t in tables)

    def _writer(
        self, layout: Layout, most: int, tables: Sequence[Table], at: Places, products: Sequence[str] | None,
        room: int, parts: int,
    ) -> Writer:  # fmt: skip
        """What writes the arguments of a call. `most`, `room`: the rows and sequences that its own memory is
        for. `parts`: of each sum."""
        w, kinds = Writer(self._desks.count, at), self._loop.body.values
        values, made = dict(at.values), dict(at.made)

        def size(name: str, rows: int = 1) -> int:
            return rows * math.prod(kinds[name].shape) * dtype_of(kinds[name].dtype).itemsize

        for table in tables:
            name = self._named.get(table.name, table.name)
            count, item = math.prod(table.shape), table.dtype.itemsize
            if parts > 1 and table.name in self.source.program.sums and name in made:
                w.add_up(table.at, made[name], count // parts, parts, item)
                continue
            if name not in made:
                made[name] = w.own(count * item)
            w.write(table.at, made[name])
        moves = [name for name in self._movable if name in at.boots] if products is not None else []
        few = [self._few[name][0] for name in products or ()]
        if few or moves:
            w.serve(0, 0, 0, *c_few.rows_of(layout), layout.rows, len(moves), len(few))
        for name in moves:
            moved = w.own(size(name, most))
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
        wide = None  # the same with room for more of them, if one thread has them all, however many
        if placed.key[0] == 1 or self.placements.has_few(most):
            wide = self.placements.on(layout, placed.key[0], placed.key[1], room=(room, most))
            wide = wide if wide.head[1] == 1 else None

        def for_others(layout: Layout) -> Placed:
            if wide is not None and layout.rows <= most and layout.sequences <= room:
                return self.placements.moved(wide, layout)
            other = self.placements.of(layout, torch.get_num_threads(), split)
            fits = not w.of_sequences or layout.sequences <= room
            if layout.rows > most or not fits or _kind(other) != kind:
                raise LookupError
            return other

        return for_others

    def _for_others_by_one(
        self, placed: Placed, by_all: Callable[[Layout], Placed]
    ) -> Callable[[Layout], Placed]:
        """The same of a placement on one thread; `by_all`: that of all threads."""

        def for_others(layout: Layout) -> Placed:
            other = self.placements.by_one(by_all(layout))
            if _kind(other) != _kind(placed):
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


def _kind(placed: Placed) -> tuple[Any, ...]:
    """What generated code that is given addresses only is made for."""
    return placed.key, placed.used, placed.sharing, placed.parts


def build_all(scans: Sequence[CScan]) -> None:
    """Build the C of scans that are to run.

    Raises:
        Unsupported: it is not built.
    """
    try:
        for scan, code in zip(scans, codes([scan.source for scan in scans]), strict=True):
            scan.placements.alone = code
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
