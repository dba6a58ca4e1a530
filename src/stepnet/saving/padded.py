"""Nested sequences as one dense tensor, which is what OpenVINO can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.data.recording import InGrid
from stepnet.data.tree import leaves, map_leaves
from stepnet.errors import TapeError


class PaddedLoD(InGrid):
    """Rows in a dense grid: `grid` [n0, n1, ..., features] with one dimension for each level, and one more.

    `lengths` has a tensor for each level, int64 [n0], [n0, n1] and so on. What is past a length is padding:
    any number at all, but never nan where it could spread. Torch functions act on all rows of the grid alike,
    as they do on those of a LoDTensor.

    >>> x = PaddedLoD.of(LoDTensor(torch.tensor([1.0, 2.0, 3.0]), [[0, 2, 3]]))
    >>> (x + 1).grid
    tensor([[2., 3.],
            [4., 1.]])
    >>> x.ragged()
    LoDTensor(2 sequences, lengths [[2, 1]], values [3] float32)
    """

    def __init__(self, grid: Tensor, lengths: tuple[Tensor, ...]) -> None:
        self.grid = grid
        self.lengths = lengths

    @property
    def level(self) -> int:
        """How many levels of sequences."""
        return len(self.lengths)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the grid."""
        return self.grid.dtype

    @property
    def values(self) -> Tensor:
        return self.rows()

    @property
    def lod_level(self) -> int:
        return self.level

    @property
    def sequences(self) -> int:
        return self.lengths[-1].numel()

    def rows(self) -> Tensor:
        """All rows of the grid, [n, features]."""
        return self.grid.flatten(0, self.level)

    def with_rows(self, rows: Tensor) -> PaddedLoD:
        """Other rows in the same grid."""
        return PaddedLoD(rows.unflatten(0, self.grid.shape[: self.level + 1]), self.lengths)

    def mask(self) -> Tensor:
        """[n0, ..., time], true where a row is in its sequence of the last level."""
        time = self.grid.shape[self.level]
        return torch.arange(time, device=self.grid.device) < self.lengths[-1].unsqueeze(-1)

    # To and from LoDTensors

    @staticmethod
    def of(x: LoDTensor, least: int = 0) -> PaddedLoD:
        """The grid of a LoDTensor, at least so long in each dimension of time; padded with zeros."""
        grids = [_Grid(n, max([least, *n.tolist()])) for n in map(x.lengths, range(x.lod_level))]

        def placed(entries: Tensor, level: int) -> Tensor:
            for grid in reversed(grids[:level]):
                entries = grid.place(entries)
            return entries

        tables = (placed(grid.lengths, level).to(x.device) for level, grid in enumerate(grids))
        return PaddedLoD(placed(x.values, len(grids)), tuple(tables))

    def ragged(self) -> LoDTensor:
        """The LoDTensor of the rows that are no padding."""
        values, lengths = self.grid, [self.lengths[0].cpu()]
        inside = lengths[0].unsqueeze(-1) > torch.arange(values.shape[1])
        for table in self.lengths[1:]:
            table = table.cpu()
            lengths.append(table[inside])
            inside = inside.unsqueeze(-1) & (table.unsqueeze(-1) > torch.arange(values.shape[inside.dim()]))
        return LoDTensor.from_lengths(values[inside.to(values.device)], [n.tolist() for n in lengths])

    # Torch functions, methods and operators act on rows

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first: PaddedLoD = next(leaves((args, kwargs or {}), PaddedLoD))
        return first.by_rows(func, *args, **(kwargs or {}))

    def by_rows(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a function gives for the rows, in this grid."""
        plain = map_leaves((args, kwargs), PaddedLoD, lambda value: value.rows())
        result = function(*plain[0], **plain[1])
        if isinstance(result, Tensor):
            return self.with_rows(result)
        if isinstance(result, tuple):  # that of torch.max, say
            return tuple(self.with_rows(part) for part in result)
        raise TapeError(
            "a function of sequences gave no rows",
            got=type(result).__name__,
            expected="a LoDTensor or tensor of rows",
            remedy="return rows from it",
        )

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("__") or not callable(method):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.by_rows(method, self, *args, **kwargs)


def mirrored(grid: Tensor, lengths: Tensor, axis: int) -> Tensor:
    """Each sequence along an axis from its end to its beginning, the padding where it was."""
    steps = torch.arange(grid.shape[axis], device=grid.device)
    ends = lengths.unsqueeze(-1)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    places = places.view(*places.shape, *(1,) * (grid.dim() - axis - 1))
    return grid.gather(axis, places.expand(grid.shape))


def _operator(name: str) -> Any:
    method = getattr(Tensor, name)
    return lambda self, *other: self.by_rows(method, self, *other)


_BINARY = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv pow rpow matmul mod and or xor lt le gt ge eq ne"
)
for _name in (*_BINARY.split(), "neg", "abs", "invert"):
    setattr(PaddedLoD, f"__{_name}__", _operator(f"__{_name}__"))
PaddedLoD.__hash__ = object.__hash__


class _Grid:
    """Where the entries of sequences of some lengths lie in a table."""

    def __init__(self, lengths: Tensor, longest: int) -> None:
        self.lengths = lengths
        self.longest = longest

    def place(self, entries: Tensor) -> Tensor:
        """[sum of lengths, ...] as [sequences, longest, ...], zeros behind."""
        inside = torch.arange(self.longest) < self.lengths.unsqueeze(-1)
        table = entries.new_zeros(len(self.lengths), self.longest, *entries.shape[1:])
        table[inside.to(entries.device)] = entries
        return table
