"""The states of all open streams: a table for each state of each recurrence, a row for each stream."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.modes import outside_modes
from stepnet.data.tree import Spec, flatten, names, unflatten
from stepnet.errors import StreamError
from stepnet.front.step import describe_leaves

_FIRST = 16  # rows of a new table
Slots = tuple[int, ...]


@dataclass
class Kept:
    """The states of one recurrence of the module: its step's name, how a state is nested, its tables."""

    name: str
    spec: Spec
    tables: list[Tensor]

    def __post_init__(self) -> None:
        self.like = [(table.shape[1:], table.dtype, table.device) for table in self.tables]

    def check(self, name: str, spec: Spec, leaves: Sequence[Any], at: int) -> None:
        """Whether a state that is to start or to follow is like the ones kept.

        Raises:
            StreamError: it is of another recurrence, or nested, shaped or typed in another way.
        """
        remedy = "a module that streams runs the same recurrences, in the same order, at every push"
        if (spec is self.spec or spec == self.spec) and name == self.name:
            remedy = "push as before: weights of the same type, on the same device, under the same autocast"
            for leaf, (shape, dtype, device) in zip(leaves, self.like, strict=True):
                if leaf.dtype is not dtype or leaf.shape[1:] != shape or leaf.device != device:
                    break
            else:
                return
        raise StreamError(
            f"recurrence {at} of the module is not the one that it ran at earlier pushes",
            got=f"step '{name}', {shown(spec, leaves)}",
            expected=f"step '{self.name}', {shown(self.spec, self.tables)}, a row per stream",
            remedy=remedy,
        )


class Left(NamedTuple):
    """What a push left: in which slots its streams are, and their states, by recurrence."""

    slots: Slots
    states: list[list[Tensor]]


class States:
    """What is kept for each recurrence of a module, in the order that it runs them. What the last push left
    is kept as it is, and put into the tables when other streams are pushed to."""

    def __init__(self) -> None:
        self.calls: list[Kept] = []
        self._left: Left | None = None

    def left(self, at: int, name: str, slots: Slots) -> tuple[Spec, list[Tensor]] | None:
        """How the state of a recurrence is nested, and its leaves as the last push left them, if that was to
        the same streams and by a step of this name. They are for what does not write to them."""
        if self._left is None or self._left.slots != slots or at >= len(self.calls):
            return None
        kept = self.calls[at]
        return (kept.spec, self._left.states[at]) if kept.name == name else None

    def left_in(self, slots: Slots) -> list[list[Tensor]] | None:
        """The states of all recurrences as the last push left them, if that was to the same streams. They are
        for what does not write to them."""
        return self._left.states if self._left is not None and self._left.slots == slots else None

    def leave_again(self, left: Left) -> None:
        """Keep what a push left that ran the same recurrences, on the same streams, as the one before."""
        self._left = left

    def of(self, at: int, slots: Slots) -> list[Tensor]:
        """The states of a recurrence for the streams in these slots, in memory of their own."""
        if self._left is not None and self._left.slots == slots:
            return [leaf.clone() for leaf in self._left.states[at]]
        self._put_down()
        return [table.index_select(0, _index(slots).to(table.device)) for table in self.calls[at].tables]

    def leave(self, calls: Sequence[tuple[str, Spec]], left: Left) -> None:
        """Keep what a push left. `calls`: the recurrences that it ran, by the names of their steps and how
        their states are nested.

        Raises:
            StreamError: they are another number of recurrences than at earlier pushes.
        """
        if self.calls and len(calls) != len(self.calls):
            raise StreamError(
                "the module ran another number of recurrences than at earlier pushes",
                got=len(calls),
                expected=len(self.calls),
                remedy="a module that streams runs the same recurrences, in the same order, at every push",
            )
        if self._left is not None and self._left.slots != left.slots:
            self._put_down()
        if not self.calls:
            for (name, spec), leaves in zip(calls, left.states, strict=True):
                self.calls.append(Kept(name, spec, [leaf.new_empty(0, *leaf.shape[1:]) for leaf in leaves]))
        self._left = left

    def load(self, slots: Slots, recurrences: Sequence[tuple[str, Any]]) -> None:
        """Keep what `all_of` gave."""
        calls, states = [], []
        for name, state in recurrences:
            leaves, spec = flatten(state)
            if any(leaf.shape[0] != len(slots) for leaf in leaves):
                raise ValueError("a state does not have a row for each id")
            if not all(map(_is_table, leaves)):
                raise ValueError("a state is no table of numbers")
            calls.append((name, spec))
            states.append([leaf.clone() for leaf in leaves])
        self.leave(calls, Left(slots, states))

    def all_of(self, slots: Slots) -> list[tuple[str, Any]]:
        """The names of the steps, and the states of the streams in these slots; of those that were never
        pushed to, anything."""
        self._put_down(max(slots, default=-1) + 1)  # those of a stream that had no push may not be there yet
        return [(kept.name, unflatten(kept.spec, self.of(at, slots))) for at, kept in enumerate(self.calls)]

    def _put_down(self, rows: int = 0) -> None:
        """Bring the tables up to date, and to so many rows at least."""
        left = self._left
        if left is not None:
            rows = max((rows, *(slot + 1 for slot in left.slots)))
        for at, kept in enumerate(self.calls):
            kept.tables = [_grown(table, rows) for table in kept.tables]
            if left is not None:
                for table, leaf in zip(kept.tables, left.states[at], strict=True):
                    table.index_copy_(0, _index(left.slots).to(table.device), leaf)
        self._left = None


@functools.lru_cache(maxsize=16)  # the same streams, push after push
@outside_modes
def _index(slots: Slots) -> Tensor:
    return torch.tensor(slots, dtype=torch.int64)


def _is_table(leaf: Tensor) -> bool:
    """Whether a tensor has memory for each of its numbers: a file may say that it has more."""
    strided = leaf.layout is torch.strided and not leaf.is_quantized
    return strided and leaf.numel() * leaf.element_size() <= leaf.untyped_storage().nbytes()


def shown(spec: Spec, leaves: Sequence[Any]) -> str:
    """A state in words."""
    return describe_leaves(names(spec, "state"), leaves) or "no state"


def _grown(table: Tensor, rows: int) -> Tensor:
    """A table of at least so many rows."""
    if len(table) >= rows:
        return table
    larger = table.new_zeros(max(rows, 2 * len(table), _FIRST), *table.shape[1:])
    larger[: len(table)] = table
    return larger
