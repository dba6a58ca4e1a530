"""The states of all open streams: a table for each state of each recurrence, a row for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepnet.data.tree import Spec, flatten, names, unflatten
from stepnet.errors import StreamError
from stepnet.front.step import describe_leaves

_FIRST = 16  # rows of a new table


@dataclass
class Kept:
    """The states of one recurrence of the module: its step's name, how a state is nested, its tables."""

    name: str
    spec: Spec
    tables: list[Tensor]

    def of(self, slots: Tensor) -> Any:
        """The state of the streams in these rows, in memory of its own."""
        return unflatten(
            self.spec,
            [t.index_select(0, slots if t.is_cpu else slots.to(t.device)) for t in self.tables],
        )

    def grown(self, rows: int) -> Kept:
        """The same, with tables of so many rows at least."""
        return Kept(self.name, self.spec, [_grown(table, rows) for table in self.tables])

    def check(self, name: str, state: Any, at: int) -> list[Tensor]:
        """The leaves of a state that is to start or to follow the ones kept.

        Raises:
            StreamError: it is of another recurrence, or nested, shaped or typed in another way.
        """
        leaves, spec = flatten(state)
        if (spec is self.spec or spec == self.spec) and name == self.name:
            for leaf, table in zip(leaves, self.tables, strict=True):
                if leaf.shape[1:] != table.shape[1:] or leaf.dtype is not table.dtype:
                    break
            else:
                return leaves
        raise StreamError(
            f"recurrence {at} of the module is not the one that it ran at earlier pushes",
            got=f"step '{name}', {_shown(spec, leaves)}",
            expected=f"step '{self.name}', {_shown(self.spec, self.tables)}, a row per stream",
            remedy="a module that streams runs the same recurrences, in the same order, at every push",
        )


def _shown(spec: Spec, leaves: Sequence[Any]) -> str:
    return describe_leaves(names(spec, "state"), leaves) or "no state"


class States:
    """What is kept for each recurrence of a module, in the order that it runs them."""

    def __init__(self) -> None:
        self.calls: list[Kept] = []

    def write(self, at: int, name: str, state: Any, slots: Tensor, rows: int) -> None:
        """Keep the state that a recurrence left.

        Args:
            at: which of the module's recurrences it is.
            name: of its step.
            state: a row for each stream.
            slots: the rows of the tables that they go to.
            rows: how many rows the tables need.

        Raises:
            StreamError: it is not like those of the pushes before.
        """
        if at == len(self.calls):
            self.calls.append(_kept(name, state))
        kept = self.calls[at]
        leaves = kept.check(name, state, at)
        kept.tables = [_grown(table, rows) for table in kept.tables]
        for table, leaf in zip(kept.tables, leaves, strict=True):
            table.index_copy_(0, slots if table.is_cpu else slots.to(table.device), leaf)

    def check_count(self, ran: int) -> None:
        """Whether so many recurrences are those of the pushes before, or StreamError."""
        if ran != len(self.calls):
            raise StreamError(
                "the module ran another number of recurrences than at earlier pushes",
                got=ran,
                expected=len(self.calls),
                remedy="a module that streams runs the same recurrences, in the same order, at every push",
            )


def _kept(name: str, state: Any) -> Kept:
    leaves, spec = flatten(state)
    return Kept(name, spec, [leaf.new_empty(0, *leaf.shape[1:]) for leaf in leaves])


def _grown(table: Tensor, rows: int) -> Tensor:
    """A table of at least so many rows."""
    if len(table) >= rows:
        return table
    larger = table.new_zeros(max(rows, 2 * len(table), _FIRST), *table.shape[1:])
    larger[: len(table)] = table
    return larger
