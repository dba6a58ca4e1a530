"""A scan on sequences that stay where they are: of a call like one before, all that is left to do is to write
where its own tensors lie."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.as_imported import data_ptr, empty
from stepnet.executors.direct import Place
from stepnet.executors.layout import Layout

from . import few as c_few
from . import threads as c_threads
from .desk import Desk, Desks, Placed, padded


class Writer:
    """Notes what each argument is to be, and lays out memory for what nobody asks for.

    Args:
        count: how many arguments the scan itself has; what `few.served` is told comes after them.
    """

    def __init__(self, count: int) -> None:
        self.count, self.size = count, 0
        self.of_sequences = False  # whether some of that is for a value of each sequence
        self.served: list[int] = []
        self.places: list[tuple[int, Place]] = []
        self.numbers: list[tuple[int, int]] = []

    def own(self, size: int) -> Place:
        """Memory for so many bytes."""
        at, self.size = self.size, padded(self.size + size)
        return Place(None, at)

    def write(self, at: int, place: Place) -> None:
        """Let an argument be a place."""
        self.places.append((at, place))

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


class Addressed:
    """A scan as a function of addresses.

    Args:
        desks: makes arguments that are right but for where tensors lie.
        placed: where rows stand.
        moved: that of other sequences over as many rows. Raises LookupError: they ask for other arguments.
        run: its function.
        address: of that.
        written: the rest of its arguments.
    """

    def __init__(
        self, desks: Desks, placed: Placed, moved: Callable[[Layout], Placed], run: Callable[..., None],
        address: int, written: Writer,
    ) -> None:  # fmt: skip
        self._desks, self._placed, self._moved, self._written = desks, placed, moved, written
        self._run, self._address = run, address
        self._places = [(at, p.which, p.offset) for at, p in written.places if p.which is not None]
        self._idle: list[_Laid] = []  # list.pop and append are atomic

    def __call__(self, addresses: Sequence[int], layout: Layout) -> None:
        """Run it on what lies there. Raises LookupError: not these sequences."""
        try:
            one = self._idle.pop()
        except IndexError:
            one = self._laid()
        if one.desk.placed.layout is not layout:
            try:
                placed = self._placed if self._placed.layout is layout else self._moved(layout)
            except LookupError:
                self._idle.append(one)
                raise
            one = one._replace(desk=self._desks.moved(one.desk, placed))
        _, _, numbers, address = one.desk
        for at, which, offset in self._places:
            numbers[at] = addresses[which] + offset
        pool, served = c_threads.pool(self._placed.used), self._written.count
        if len(numbers) > served:
            numbers[served + 1] = ctypes.addressof(pool)
            c_few.library()(address + 8 * served)
        else:
            self._run(pool, address)
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
        return _Laid(desk._replace(numbers=numbers, address=address), space)
