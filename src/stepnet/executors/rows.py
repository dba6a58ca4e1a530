"""Loops whose condition is one boolean per row: rows that are done leave, and come back at the end."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray, contents_of
from stepnet.data.contents import Contents
from stepnet.data.lod import LoDTensor
from stepnet.data.unpack import join
from stepnet.data.values import Value, describe
from stepnet.errors import ArrayError, StepError


class RowArray(TensorArray):
    """A TensorArray inside such a loop: a step reads and writes the rows that are still running.

    >>> array = RowArray(TensorArray(unstack_from=torch.arange(6).reshape(2, 3)), 3)
    >>> array.rows = torch.tensor([0, 2])
    >>> array.read(0)
    tensor([0, 2])
    """

    def __init__(self, array: TensorArray, rows: int) -> None:
        self.__dict__.update(copy.copy(array).__dict__)
        self.rows = torch.arange(rows, device="cpu")
        self._rows_at: dict[int, Tensor] = {}

    def __copy__(self) -> RowArray:
        twin = super().__copy__()
        assert isinstance(twin, RowArray)
        twin._rows_at = dict(self._rows_at)
        return twin

    def _refill(self, contents: Contents) -> None:
        raise ArrayError(
            "in a loop with a condition per row, a TensorArray is written place by place",
            got="unstack or unpack on an array that the loop carries",
            remedy="cut it into an array of the body's own, TensorArray.unstack(x), or before the loop",
        )

    def _store(self, index: Any, value: Any, data_shared: bool) -> None:
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != len(self.rows):
            raise ArrayError(
                f"TensorArray.write: in a loop with a condition per row, the value for index {int(index)} "
                "must have a row for each that is still running",
                got=describe(value),
                expected=f"{len(self.rows)} rows",
                remedy="write what the loop variables give: rows that have ended are not among them",
            )
        super()._store(index, value, data_shared)
        self._rows_at[int(index)] = self.rows

    def read(self, index: int | Tensor, default: Value | None = None) -> Any:
        place = int(index)
        value = super().read(index, default)
        if place not in contents_of(self).values or self._rows_at.get(place) is self.rows:
            return value
        at = self._rows_at.get(place)
        places = self.rows if at is None else torch.searchsorted(at, self.rows)
        return value.index_select(0, places.to(value.device))

    def whole(self, rows: int) -> TensorArray:
        """The array with all rows; those that were done when a value was written are zero in it."""
        array = TensorArray(size=contents_of(self).size)
        for place, value in contents_of(self).values.items():
            at = self._rows_at.get(place)
            if at is not None and len(at) != rows and isinstance(value, Tensor):
                value = value.new_zeros(rows, *value.shape[1:]).index_copy(0, at.to(value.device), value)
            array.write(place, value)
        return array


class Rows:
    """Which rows run, and what the others ended with. Immutable: a recomputed step starts from its own."""

    def __init__(self, total: int, running: Tensor, ended: tuple[tuple[Tensor, list[Any]], ...]) -> None:
        self.total, self.running, self.ended = total, running, ended

    @staticmethod
    def begin(total: int, leaves: list[Any], names: Sequence[str]) -> tuple[Rows, list[Any]]:
        """All rows, and the loop variables as such a loop carries them.

        Raises:
            StepError: a loop variable has another number of rows.
        """
        wrong = [
            f"{name} {describe(leaf)}"
            for name, leaf in zip(names, leaves, strict=True)
            if _per_row(leaf) and len(leaf) != total
        ]
        if wrong:
            raise StepError(
                f"the condition has one boolean for each of {total} rows, and so must every loop variable",
                got=", ".join(wrong),
                expected=f"{total} rows, or a scalar, which all rows share",
                remedy="give them a first dimension of rows, or close over what does not change",
            )
        carried = [RowArray(leaf, total) if isinstance(leaf, TensorArray) else leaf for leaf in leaves]
        return Rows(total, torch.arange(total, device="cpu"), ()), carried

    def keep(self, mask: Tensor, leaves: list[Any]) -> tuple[Rows, list[Any]]:
        """Let the rows go whose condition is False."""
        mask = mask.cpu()
        if bool(mask.all()):
            return self, leaves
        on, off = mask.nonzero().flatten(), (~mask).nonzero().flatten()
        rows = Rows(
            self.total, self.running[on], (*self.ended, (self.running[off], [_take(v, off) for v in leaves]))
        )
        kept = [_take(leaf, on) for leaf in leaves]
        return rows, rows.seen_by(kept)

    def seen_by(self, leaves: list[Any]) -> list[Any]:
        """The leaves, their arrays at the rows that run now."""
        for leaf in leaves:
            if isinstance(leaf, RowArray):
                leaf.rows = self.running
        return leaves

    def end(self, leaves: list[Any]) -> list[Any]:
        """Every loop variable with all its rows, in the order they were given."""
        back = torch.argsort(torch.cat([*(rows for rows, _ in self.ended), self.running]))
        return [
            leaf.whole(self.total)
            if isinstance(leaf, RowArray)
            else _joined([*(ended[i] for _, ended in self.ended), leaf], back)
            for i, leaf in enumerate(leaves)
        ]


def _per_row(leaf: Any) -> bool:
    return isinstance(leaf, LoDTensor) or (isinstance(leaf, Tensor) and leaf.dim() > 0)


def _take(leaf: Any, places: Tensor) -> Any:
    if isinstance(leaf, LoDTensor):
        return leaf.select_sequences(places)
    return leaf.index_select(0, places.to(leaf.device)) if _per_row(leaf) else leaf


def _joined(parts: list[Any], order: Tensor) -> Any:
    if not _per_row(parts[-1]):
        return parts[-1]
    return _take(join(parts), order)
