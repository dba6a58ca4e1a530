"""The tensors that a call of a scan makes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from stepnet.data.bounded_cache import Bounded
from stepnet.data.dtypes import dtype_of
from stepnet.data.heap import KEPT, new_table
from stepnet.data.unpatched_torch import empty, empty_like, zeros, zeros_like
from stepnet.executors.layout import Layout
from stepnet.executors.schedule.program import Program
from stepnet.executors.tables import led_table

from .call_arguments import Desks, Table

LED = 1 << 16  # bytes of a table from which room before its rows is made faster than a copy one step later
SMALL = 1 << 14  # bytes of a table of which one is kept to make others like it
_MOST_KINDS = 64  # of calls, whose tables one scan remembers
_MAKES_LIKE: dict[Callable[..., Tensor], Callable[..., Tensor]] = {empty: empty_like, zeros: zeros_like}


class NewTables:
    """Tables of rows as they are, what is summed as zeros.

    Args:
        p: the program of the scan.
        desks: where the arguments of its function are.
        named: the parameters that stand for values which are made.
        hidden: values, by those names, that nobody outside of stepnet is given.
    """

    def __init__(self, p: Program, desks: Desks, named: Mapping[str, str], hidden: Collection[str]) -> None:
        self._program, self._desks, self._named, self._hidden = p, desks, named, hidden
        rows = {p.renamed.get(c.result, c.result): c.parameter for c in p.carries}
        alike = {table: name for table, name in rows.items() if p.value(table).dtype == p.value(name).dtype}
        self._states_of = {table: name for table, name in alike.items() if table in p.outputs}
        self._tables = Bounded[tuple[int, int, int, int], tuple[Table, ...]](_MOST_KINDS)

    def of(self, layout: Layout, rows: int, parts: int) -> tuple[Table, ...]:
        """The tensors that a call makes, which are the same for many layouts of as many rows."""
        led_by = layout.stride if layout.is_packed else 0
        kind = rows, layout.sequences if self._program.totals else 0, led_by, parts
        tables = self._tables.get(kind)
        if tables is None:
            tables = self._tables[kind] = self._made(*kind)
        return tables

    def _made(self, rows: int, sequences: int, led_by: int, parts: int) -> tuple[Table, ...]:
        """`led_by`: rows that a table has room for before its own, as those of a state want."""
        tables: list[Table] = []
        for at, name in self._desks.places("out"):
            shape, dtype = self._looks(name)
            size = rows * math.prod(shape) * dtype.itemsize
            state, make = None, empty
            if size >= KEPT:
                shown = self._named.get(name, name) not in self._hidden
                make = functools.partial(new_table, shown=shown)
            if size >= LED and led_by and (state := self._states_of.get(name)) is not None:
                make = functools.partial(led_table, by=led_by)
            tables.append(table_at(at, name, (rows, *shape), dtype, make, state))
        for at, name in self._desks.places("sum"):
            shape, dtype = self._looks(name)
            tables.append(table_at(at, name, (*(parts,) * (parts > 1), *shape), dtype, zeros))
        for at, name in self._desks.places("total"):
            shape, dtype = self._looks(name)
            tables.append(table_at(at, name, (sequences, *shape), dtype, zeros))
        for at, name in self._desks.places("wrong"):
            tables.append(table_at(at, name, (1,), torch.int64, zeros))
        return tuple(tables)

    def _looks(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        value = self._program.value(name)
        return value.shape, dtype_of(value.dtype)


def table_at(
    at: int, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[..., Tensor],
    state: str | None = None,
) -> Table:  # fmt: skip
    """A tensor that calls make; of a small one, one is kept to make others like it."""
    if make not in _MAKES_LIKE or math.prod(shape) * dtype.itemsize >= SMALL:
        return Table(at, name, shape, dtype, make, state)
    return Table(at, name, shape, dtype, _MAKES_LIKE[make], state, empty(shape, dtype=dtype, device="cpu"))
