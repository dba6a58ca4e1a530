"""LoDTensor: a batch of ragged, possibly nested sequences as one table of rows and its offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.offsets import LoD
from stepnet.errors import LoDError, describe


class LoDTensor:
    """Rows of all sequences, one after the other, with the nested offsets that cut them into sequences."""

    __slots__ = ("_lod", "_values")

    _values: Tensor
    _lod: LoD

    def __init__(self, values: Tensor, lod: Sequence[Any]) -> None:
        structure = LoD(lod)
        _check_values(values, structure)
        self._fill(values, structure)

    def _fill(self, values: Any, lod: LoD) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_lod", lod)

    @classmethod
    def _make(cls, values: Any, lod: LoD) -> LoDTensor:
        """Join values to a LoD known to be valid; no check of either."""
        x = object.__new__(cls)
        x._fill(values, lod)
        return x

    @classmethod
    def from_lengths(cls, values: Tensor, lengths: Sequence[Any]) -> LoDTensor:
        """Rows and the lengths of each level: ``LoDTensor.from_lengths(v, [[2, 1], [3, 2, 4]])``."""
        structure = LoD.from_lengths(lengths)
        _check_values(values, structure)
        return cls._make(values, structure)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            describe(
                f"a LoDTensor is immutable: cannot set '{name}'", remedy="x.with_values(v) keeps the LoD"
            )
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(describe(f"a LoDTensor is immutable: cannot delete '{name}'"))

    @property
    def values(self) -> Tensor:
        """The rows, [rows, ...]."""
        return self._values

    @property
    def lod(self) -> tuple[Tensor, ...]:
        """Offsets per level, outermost first: int64 tensors on the CPU (copies: changing them changes nothing)."""
        return tuple(level.clone() for level in self._lod.levels)

    @property
    def lod_level(self) -> int:
        """How many levels."""
        return len(self._lod.levels)

    def lengths(self, level: int = -1) -> Tensor:
        """Lengths of the sequences of one level, int64 on the CPU."""
        return self._lod.lengths(self._level(level))

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Lengths of every level, outermost first."""
        return [self._lod.lengths(k).tolist() for k in range(self.lod_level)]

    def _level(self, level: int) -> int:
        if not -self.lod_level <= level < self.lod_level:
            raise LoDError(
                "LoDTensor has no such level",
                got=level,
                expected=f"{-self.lod_level} to {self.lod_level - 1} ({self.lod_level} levels)",
            )
        return level % self.lod_level

    def __len__(self) -> int:
        return len(self._lod)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int) and not isinstance(index, bool):
            if not -len(self) <= index < len(self):
                raise IndexError(f"sequence {index} of a LoDTensor of {len(self)} sequences")
            start = index % len(self)
            levels, first, last = self._lod.span(start, start + 1)
            rows = self._values[first:last]
            return LoDTensor._make(rows, LoD._trusted(levels[1:])) if len(levels) > 1 else rows
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self.take(torch.arange(len(self))[index])
        levels, first, last = self._lod.span(start, max(start, stop))
        return LoDTensor._make(self._values[first:last], LoD._trusted(levels))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def take(self, indices: Any) -> LoDTensor:
        """The sequences at ``indices``, in that order."""
        lod, rows = self._lod.take(torch.as_tensor(indices))
        return LoDTensor._make(self._values.index_select(0, rows.to(self._values.device)), lod)

    def with_values(self, values: Tensor) -> LoDTensor:
        """The same LoD over other rows."""
        _check_values(values, self._lod)
        return LoDTensor._make(values, self._lod)

    def map(self, fn: Callable[[Tensor], Tensor]) -> LoDTensor:
        """The same LoD over ``fn(values)``."""
        return self.with_values(fn(self._values))

    def detach(self) -> LoDTensor:
        """Cut from the autograd graph."""
        return LoDTensor._make(self._values.detach(), self._lod)

    def to(self, *args: Any, **kwargs: Any) -> LoDTensor:
        """``values.to(...)``; the LoD stays on the CPU."""
        return LoDTensor._make(self._values.to(*args, **kwargs), self._lod)

    def __repr__(self) -> str:
        return f"LoDTensor(lengths={self._lod.show()}, values={list(self._values.shape)})"


def _check_values(values: Any, lod: LoD) -> None:
    if not isinstance(values, Tensor):
        raise LoDError("LoDTensor 'values' must be a tensor", got=type(values).__name__)
    if values.ndim == 0:
        raise LoDError("LoDTensor 'values' must have a row dimension", got="a tensor of shape []")
    if values.shape[0] != lod.rows:
        raise LoDError(
            f"LoDTensor 'lod' level {len(lod.levels) - 1} must end at the number of rows",
            got=f"it ends at {lod.rows}, at index {len(lod.levels[-1]) - 1}",
            expected=f"{values.shape[0]} (values have shape {list(values.shape)})",
        )
