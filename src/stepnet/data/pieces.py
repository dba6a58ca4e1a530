"""Sequences cut into pieces, batches put one after the other: arithmetic on offsets, no row is moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from stepnet.data.arguments import brief
from stepnet.data.convert import shared
from stepnet.data.modes import noted, outside_modes, real
from stepnet.data.offsets import LoD, Numbers, in_program, offsets_of
from stepnet.data.unpatched_torch import from_numpy
from stepnet.errors import LoDError


@dataclass(frozen=True)
class Pieces:
    """The pieces of sequences: their offsets, which are the first and the last one of each sequence, and the
    sequence of each piece.

    There is a piece before the first cut of a sequence and one after the last, even where it has no rows.
    """

    offsets: Tensor
    first: Tensor
    last: Tensor
    owner: Tensor


@outside_modes
def cut(offsets: Tensor, marked: Numbers, after: bool) -> Pieces:
    """Cut the sequences between `offsets` at each row that is marked: before it, or after it.

    >>> cut(torch.tensor([0, 3, 3, 5]), np.array([1, 3]), after=False)  # doctest: +NORMALIZE_WHITESPACE
    Pieces(offsets=tensor([0, 1, 3, 3, 3, 5]), first=tensor([0, 2, 3]), last=tensor([1, 2, 4]),
           owner=tensor([0, 0, 1, 2, 2]))
    """
    ends = offsets.numpy()
    before = marked.searchsorted(ends)
    sequences = np.arange(len(ends) - 1)
    first, last = sequences + before[:-1], sequences + before[1:]
    starts = np.concatenate((ends, marked + int(after)))
    starts.sort()
    return Pieces(*map(from_numpy, (starts, first, last, sequences.repeat(last - first + 1))))


@outside_modes
def split(lod: LoD, marked: Numbers, after: bool) -> LoD:
    """One level more, whose sequences are the pieces that have rows, cut at each row that is marked."""
    pieces = cut(lod.levels[-1], marked, after)
    held = (pieces.offsets.diff() > 0).long()
    counts = pad(held.cumsum(0), (1, 0))[pad(pieces.last + 1, (1, 0))]
    offsets = pieces.offsets[:-1][held.bool()]
    return LoD.trusted((*lod.levels[:-1], counts, pad(offsets, (0, 1), value=lod.rows)), lod.rows)


@outside_modes
def joined(lod: LoD) -> LoD:
    """One level less: the sequences of the last but one hold the rows of theirs."""
    above, last = lod.levels[-2:]
    return LoD.trusted((*lod.levels[:-2], last[above]), lod.rows)


def one_after_the_other(lods: Sequence[LoD]) -> LoD:
    """The sequences of all batches, at every level."""
    join: Any = _join if any(in_program(level) for lod in lods for level in lod.levels) else _join_real
    levels = zip(*(lod.levels for lod in lods), strict=True)
    return LoD.trusted(tuple(map(join, levels)), sum(lod.rows for lod in lods))


def _join(levels: Sequence[Tensor]) -> Tensor:
    return offsets_of(torch.cat([offsets.diff() for offsets in levels]))


_join_real = outside_modes(_join)


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def marks_of(given: Any, shapes: Sequence[tuple[int, ...]], what: str) -> Tensor:
    """A truth value per row as a tensor of one of these shapes, or LoDError."""
    marks = given if isinstance(given, Tensor) else _tensor(given, shapes, what)
    marks = marks.to_dense() if marks.is_sparse or marks.layout in _COMPRESSED else marks
    if tuple(marks.shape) not in shapes:
        raise LoDError(
            f"{what} must hold a truth value per row", got=brief(given), expected=f"shape {list(shapes[0])}"
        )
    return marks


@outside_modes
def _tensor(given: Any, shapes: Sequence[tuple[int, ...]], what: str) -> Tensor:
    try:
        return shared(given) if isinstance(given, np.ndarray) else torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoDError(
            f"{what} must hold a truth value per row", got=brief(given), expected=f"shape {list(shapes[0])}"
        ) from error


@outside_modes
def truths(marks: Tensor) -> Tensor | None:
    """Which elements are other than zero, as truth values on the CPU; None where they have no numbers."""
    numbers = real(noted(marks))
    if numbers is None:
        return None
    flags = numbers if numbers.dtype is torch.bool else numbers.detach() != 0
    return flags if flags.is_cpu else flags.cpu()


@outside_modes
def places(flags: Tensor) -> Numbers:
    """Which of `truths` hold, by their numbers."""
    return flags.numpy().reshape(-1).nonzero()[0]
