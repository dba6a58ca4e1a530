"""The arguments of a scan's C function, kept from call to call: a call writes where its own tensors lie."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stepnet.data.unpatched_torch import data_ptr, empty
from stepnet.executors.layout import Layout

from .places import padded
from .source import FIXED, Field
from .thread_gain import Pace

Sharing = Literal["members", "features", "turns"]

_WIDTHS = {"state": 2, "matrix": 5}  # members of the argument struct that a field takes, if not one


class Table(NamedTuple):
    """A tensor that a call makes, and its place among the arguments; of one with room before its rows, the
    state that they are of."""

    at: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[..., Tensor]
    state: str | None = None
    like: Tensor | None = None  # what `make` is to make one like, which takes a third of the time

    def made(self) -> Tensor:
        """A new one."""
        return self.make(self.shape, dtype=self.dtype) if self.like is None else self.make(self.like)


class Placed(NamedTuple):
    """What does not depend on values; offsets and sizes are bytes of the workspace."""

    layout: Layout
    order: Tensor  # which `head` points to
    key: tuple[int, int]  # threads there are, and numbers that a float32 is split in
    used: int  # of those threads
    sharing: Sharing | None  # how they share all rows; None: each has sequences of its own
    head: tuple[int, ...]
    share_bytes: int
    packed_at: tuple[int, ...]
    size: int
    parts: int  # of every sum
    tables: tuple[Table, ...]
    pace: Pace | None = None  # of a short call
    alone: Placed | None = None  # what that is on one thread


class Desk(NamedTuple):
    """A workspace, and the arguments of a placement."""

    placed: Placed
    space: Tensor
    numbers: array[int]
    address: int  # of those numbers


class Desks:
    """The desks of a scan that are at rest: as many as calls ran at once.

    Args:
        fields: the members of the argument struct after the fixed ones.
        constants: shared values that are the same at every call.
    """

    def __init__(self, fields: Sequence[Field], constants: Mapping[str, Tensor]) -> None:
        self._fields: list[tuple[int, str, str]] = []
        self.count, self._constants = len(FIXED), constants
        for field in fields:
            self._fields.append((self.count, field.role, field.value))
            self.count += _WIDTHS.get(field.role, 1)
        self._matrices, self._shared = self.places("matrix"), self.places("shared")
        self._idle: list[Desk] = []  # list.pop and append are atomic
        self.rooms: list[Tensor] = []  # workspaces that a call takes and gives back

    def places(self, *roles: str) -> list[tuple[int, str]]:
        """Of the fields with some roles, where each stands among the arguments, and its value."""
        return [(at, value) for at, role, value in self._fields if role in roles]

    def take(self, placed: Placed) -> Desk:
        """A desk for a placement."""
        try:
            desk = self._idle.pop()
        except IndexError:
            return self.laid(placed)
        return desk if desk.placed is placed else self.moved(desk, placed)

    def give_back(self, desk: Desk) -> None:
        """Let the next call have a desk."""
        self._idle.append(desk)

    def laid(self, placed: Placed) -> Desk:
        """A new desk for a placement."""
        space = empty(placed.size, dtype=torch.uint8)
        numbers = array("q", bytes(8 * self.count))
        for at, name in self._shared:
            if name in self._constants:
                numbers[at] = data_ptr(self._constants[name])
        desk = Desk(placed, space, numbers, numbers.buffer_info()[0])
        self._write(desk)
        return desk

    def moved(self, desk: Desk, placed: Placed, space: Tensor | None = None) -> Desk:
        """The same desk for another placement, and in that workspace if it is large enough."""
        space = desk.space if space is None else space
        if space.numel() < placed.size:
            space = empty(placed.size, dtype=torch.uint8)
        found, was = desk._replace(placed=placed, space=space), desk.placed
        # where the memory of each slot begins is not told by the matrices: there may be none
        alike = placed.share_bytes == was.share_bytes and placed.packed_at == was.packed_at
        if alike and space is desk.space:
            found.numbers[: len(placed.head)] = array("q", placed.head)
        else:
            self._write(found)
        return found

    def _write(self, desk: Desk) -> None:
        """Write down what a placement says."""
        placed, _, numbers, _ = desk
        base, n = padded(data_ptr(desk.space)), len(placed.head)
        numbers[:n] = array("q", placed.head)
        numbers[n], numbers[n + 1] = base, placed.share_bytes
        for (at, _), offset in zip(self._matrices, placed.packed_at, strict=True):
            numbers[at + 4] = base + offset
