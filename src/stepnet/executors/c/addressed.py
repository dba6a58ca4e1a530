"""A scan on sequences that stay where they are: of a call like one before, all that is left to do is to write
where its own tensors lie."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.unpatched_torch import data_ptr, empty
from stepnet.executors.addresses import Place, Places
from stepnet.executors.layout import Layout

from . import few_rows as c_few
from . import threads as c_threads
from .call_arguments import Desk, Desks, Placed
from .places import padded
from .products import float_parts


class Writer:
    """Notes what each argument is to be, and lays out memory for what nobody asks for.

    Args:
        count: how many arguments the scan itself has; what `few.served` is told comes after them.
        at: what is filled, zeroed and copied around it.
    """

    def __init__(self, count: int, at: Places) -> None:
        self.around = at.filled, at.zeroed, at.copied
        self.count, self.size = count, 0
        self.of_sequences = False  # whether some of that is for a value of each sequence
        self.served: list[int] = []
        self.sums: list[tuple[int, Place, int, int, int]] = []
        self.places: list[tuple[int, Place]] = []
        self.numbers: list[tuple[int, int]] = []

    def own(self, size: int) -> Place:
        """Memory for so many bytes."""
        at, self.size = self.size, padded(self.size + size)
        return Place(None, at)

    def write(self, at: int, place: Place) -> None:
        """Let an argument be a place."""
        self.places.append((at, place))

    def add_up(self, at: int, to: Place, count: int, parts: int, item: int) -> None:
        """Let an argument be memory for a sum of so many numbers, of so many bytes each, that has parts.
        Those begin as zeros, and what they add up to is put there."""
        self.write(at, self.own(count * parts * item))
        self.sums.append((at, to, count, parts, item))

    def serve(self, *entries: int | Place) -> None:
        """Tell `few.served` something more."""
        for entry in entries:
            if isinstance(entry, Place):
                self.write(self.count + len(self.served), entry)
            self.served.append(0 if isinstance(entry, Place) else entry)


class _Laid(NamedTuple):
    """Arguments, and memory that they point to."""

    desk: Desk
    kept: Tensor
    told: array[int]  # what `few_rows.by_addresses` is told
    address: int  # of that


class Addressed:
    """A scan as a function of addresses.

    Args:
        desks: makes arguments that are right but for where tensors lie.
        placed: where rows stand.
        moved: that of other sequences, over as many rows at the most. Raises LookupError: they ask for other
            arguments.
        by_one: makes the same on one thread, for placements that have a pace. Raises LookupError.
        address: of its function.
        written: the rest of its arguments.
        parts: what `float_parts` is to say at a call; None: it makes no difference.
    """

    def __init__(
        self, desks: Desks, placed: Placed, moved: Callable[[Layout], Placed],
        by_one: Callable[[], Addressed], address: int, written: Writer, parts: int | None,
    ) -> None:  # fmt: skip
        self._desks, self._placed, self._moved, self._written = desks, placed, moved, written
        self._by_one = by_one
        self._alone: Addressed | None = None
        self._last, self._rooms = placed, desks.rooms
        self._run, self._address, self._parts = c_few.by_addresses(), address, parts
        self._head, self._count = _head(written)
        self._write = struct.Struct(f"{self._count}q").pack_into
        self._first = 8 * len(self._head)
        self._idle: list[_Laid] = []  # list.pop and append are atomic
        self._rows: tuple[Layout | None, array[int]] = None, array("q")  # of those, where they stand

    def __call__(self, addresses: Sequence[int], layout: Layout) -> None:
        """Run it on what lies there. Raises LookupError: not these sequences, or not so exactly."""
        if self._parts is not None and float_parts() != self._parts:
            raise LookupError
        placed = self._last
        if placed.layout is not layout:
            placed = self._last = self._placed if self._placed.layout is layout else self._moved(layout)
        pace = placed.pace
        if pace is not None and not pace.takes_all():
            alone = self._alone = self._alone or self._by_one()
            began = perf_counter_ns()
            alone(addresses, layout)
            pace.note(False, perf_counter_ns() - began, layout.rows)
            return
        try:
            one = self._idle.pop()
        except IndexError:
            one = self._laid()
        try:
            room = self._rooms.pop()
        except IndexError:
            room = empty(placed.size, dtype=torch.uint8)  # another call may be in that of the desk
        if placed is not one.desk.placed or room is not one.desk.space:
            one = one._replace(desk=self._desks.moved(one.desk, placed, room))
        (_, room, numbers, _), _, told, address = one
        if len(addresses) != self._count:
            addresses = addresses[: self._count]
        self._write(told, self._first, *addresses)
        pool, served = ctypes.addressof(c_threads.pool(placed.used)), self._written.count
        told[3], told[4] = pool, layout.rows
        if len(numbers) > served:
            numbers[served + 1] = pool
            rows = self._rows
            if rows[0] is not layout:
                rows = self._rows = layout, array("q", (*c_few.rows_of(layout), layout.rows))
            numbers[served + 3 : served + 8] = rows[1]
        began = 0 if pace is None else perf_counter_ns()
        self._run(address)
        if pace is not None:
            pace.note(True, perf_counter_ns() - began, layout.rows)
        self._rooms.append(room)
        self._idle.append(one)

    def _laid(self) -> _Laid:
        written, desk = self._written, self._desks.laid(self._placed)
        space = empty(written.size + 64, dtype=torch.uint8)
        numbers = array("q", [*desk.numbers, *written.served])
        address = numbers.buffer_info()[0]
        for at, number in written.numbers:
            numbers[at] = number
        for at, place in written.places:
            if place.which is None:
                numbers[at] = padded(data_ptr(space)) + place.offset
        if written.served:
            numbers[written.count], numbers[written.count + 2] = self._address, address
        told = array("q", [*self._head, *(0,) * self._count])
        served = address + 8 * written.count if written.served else 0
        told[:3] = array("q", (address, served, self._address))
        return _Laid(desk._replace(numbers=numbers, address=address), space, told, told.buffer_info()[0])


def _head(written: Writer) -> tuple[list[int], int]:
    """What `few_rows.by_addresses` is told before the addresses; and of how many."""
    places = [(at, p.which, p.offset) for at, p in written.places if p.which is not None]
    filled, zeroed, copied = written.around
    sums = [(at, to.which or 0, to.offset, *size) for at, to, *size in written.sums]
    head = [0, 0, 0, 0, 0, len(places), len(filled), len(zeroed), len(sums), len(copied)]
    for part in (*places, *filled, *zeroed, *sums, *copied):
        head += part
    read = (
        {which for _, which, *_ in (*places, *sums)}
        | {k for k, _ in zeroed}
        | {k for to, of, *_ in (*filled, *copied) for k in (to, of)}
    )
    return head, 1 + max(read, default=-1)
