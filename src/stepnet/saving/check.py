"""A topology on padded sequences against itself on ragged ones, before it is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.layers.data import Dense, Integer
from stepnet.layers.plainly import Plainly
from stepnet.tape.topology import play
from stepnet.watchers import replaced

from .dense import DenseTopology
from .padded import PaddedLoD
from .play import refusal

_LOOSE = {torch.float64: 1e-8, torch.float32: 1e-3}


def check_numbers(dense: DenseTopology, dtype: torch.dtype) -> None:
    """Play every layer on a small batch of random numbers, with noise for padding.

    Raises:
        TapeError: a layer has other numbers where there is padding; names the first.
    """
    generator = torch.Generator().manual_seed(0)
    grids = {name: _random(type, dtype, generator) for name, type in dense.types.items()}
    rows = {name: grid.ragged() if isinstance(grid, PaddedLoD) else grid for name, grid in grids.items()}
    with torch.no_grad(), replaced(Plainly()):
        ours, theirs = dense.values(grids), play(dense.played, {}, rows)
    for i, creation in dense.played:
        if not _same(ours[i], theirs[i]):
            raise refusal(creation, "it has other numbers among padding: it mixes rows, or is random")


def _random(type: Dense | Integer, dtype: torch.dtype, generator: torch.Generator) -> Any:
    example = type.example()
    padded = PaddedLoD.of(example) if isinstance(example, LoDTensor) else None
    shape = example.shape if padded is None else padded.grid.shape
    if isinstance(type, Integer):
        grid = torch.randint(type.classes, shape, generator=generator)
    else:
        grid = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return grid if padded is None else PaddedLoD(grid, padded.lengths)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, (tuple, list)):
        return all(_same(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, PaddedLoD):
        rows = ours.ragged()
        if rows.recursive_sequence_lengths() != theirs.recursive_sequence_lengths():
            return False
        ours, theirs = rows.values, theirs.values
    if not isinstance(ours, Tensor):
        return True
    loose = _LOOSE.get(ours.dtype, 0.05)
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, loose, loose, equal_nan=True)
