"""Sequences cut into pieces, batches put one after the other: arithmetic on offsets, no row is moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from stepnet.data.modes import outside_modes, real
from stepnet.data.offsets import LoD, brief, in_program, offsets_of
from stepnet.errors import LoDError


@dataclass(frozen=True)
class Pieces:
    """The pieces of sequences: their offsets, and which are the first and the last one of each sequence.

    There is a piece before the first cut of a sequence and one after the last, even where it has no rows.
    """

    offsets: Tensor
    first: Tensor
    last: Tensor


@outside_modes
def cut(offsets: Tensor, marks: Tensor, after: bool) -> Pieces:
    """Cut the sequences between `offsets` at each row that is marked: before it, or after it.

    >>> cut(torch.tensor([0, 3, 3, 5]), torch.tensor([False, True, False, True, False]), after=False)
    Pieces(offsets=tensor([0, 1, 3, 3, 3, 5]), first=tensor([0, 2, 3]), last=tensor([1, 2, 4]))
    """
    before = pad(marks.long().cumsum(0), (1, 0))
    cuts = before[offsets].diff()  # of each sequence
    last = (cuts + 1).cumsum(0) - 1
    first = last - cuts
    starts = torch.empty(len(cuts) + int(before[-1]) + 1, dtype=torch.int64)
    starts[-1] = offsets[-1]
    starts[first] = offsets[:-1]
    others = torch.ones(len(starts) - 1, dtype=torch.bool)
    others[first] = False
    starts[:-1][others] = marks.nonzero()[:, 0] + int(after)
    return Pieces(starts, first, last)


@outside_modes
def split(lod: LoD, marks: Tensor, after: bool) -> LoD:
    """One level more, whose sequences are the pieces that have rows."""
    pieces = cut(lod.levels[-1], marks, after)
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
    marks = given if isinstance(given, Tensor) else _tensor(given, what)
    marks = marks.to_dense() if marks.is_sparse or marks.layout in _COMPRESSED else marks
    if tuple(marks.shape) not in shapes:
        raise LoDError(
            f"{what} must hold a truth value per row", got=brief(given), expected=f"shape {list(shapes[0])}"
        )
    return marks


@outside_modes
def _tensor(given: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoDError(f"{what} must hold a truth value per row", got=brief(given)) from error


@outside_modes
def bools(marks: Tensor) -> Tensor | None:
    """Whether each is other than zero, as bool [elements] on the CPU; None where they have no numbers."""
    numbers = real(marks)
    return None if numbers is None else (numbers.detach().reshape(-1) != 0).cpu()
