"""Where the rows of each sequence stand in a table of rows.

Row of sequence b at step t: `start[b] + t * stride`. That one formula covers ragged tables (stride 1),
time-major and batch-major dense tensors, and all of them backwards.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stepnet.data.modes import outside_modes
from stepnet.data.offsets import LoD, owners, ranges

_MOST_SHARE = 1.25  # of the rows that a thread has where all have as many: above it they are dealt unevenly


@dataclass(frozen=True, eq=False)
class Layout:
    """Sequences over a table of `rows` rows; all index tensors are int64 on the CPU.

    `idle`: the steps that the plain loop runs even over no sequence at all, those of [T, 0, ...].
    """

    starts: Tensor
    lengths: Tensor
    stride: int
    rows: int
    idle: int = 0

    @staticmethod
    def of(lod: LoD, reverse: bool) -> Layout:
        """Sequences one after the other, as the last level of a LoD says."""
        return _ragged(lod.content(), reverse)

    @staticmethod
    def ragged(offsets: Tensor, reverse: bool) -> Layout:
        """Sequences one after the other, from offsets."""
        return _ragged(offsets.numpy().tobytes(), reverse)

    @staticmethod
    def dense(steps: int, sequences: int, time_major: bool, reverse: bool) -> Layout:
        """Sequences of one length, [T, B] or [B, T]."""
        return _dense(steps, sequences, time_major, reverse)

    @functools.lru_cache(maxsize=64)  # noqa: B019  layouts are kept below, too
    @outside_modes
    def times(self, k: int) -> Layout:
        """The same sequences k times, one table after the other."""
        tables = torch.arange(k)[:, None] * self.rows
        starts = (self.starts + tables).flatten()
        return Layout(starts, self.lengths.repeat(k), self.stride, self.rows * k, self.idle)

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return self.lengths.shape[0]

    @cached_property
    @outside_modes
    def steps(self) -> int:
        """The length of the longest sequence."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    @cached_property
    @outside_modes
    def ends(self) -> frozenset[int]:
        """The numbers of steps after which a sequence ends."""
        return frozenset(self.lengths.tolist()) or frozenset([self.turns])

    @property
    def turns(self) -> int:
        """How often the plain loop runs the step."""
        return self.steps or (0 if self.sequences else self.idle)

    @cached_property
    @outside_modes
    def backward(self) -> Layout:
        """The same rows with every sequence run from its end."""
        last = self.starts + (self.lengths - 1).clamp(min=0) * self.stride
        return Layout(last, self.lengths, -self.stride, self.rows, self.idle)

    @cached_property
    @outside_modes
    def order(self) -> Tensor:
        """Sequences by length, longest first, stable: the rank order."""
        return torch.argsort(self.lengths, descending=True, stable=True)

    @outside_modes
    def dealt(self, shares: int) -> Tensor:
        """The sequences in an order in which every `shares`-th is of one share, beginning with the longest of
        each. They are dealt there and back, so that shares have about as many rows.

        >>> table = Layout.ragged(torch.tensor([0, 1, 10, 18, 20, 27]), False)
        >>> table.lengths[table.dealt(2)].tolist()  # to one share 9 + 2 + 1 rows, to the other 8 + 7
        [9, 8, 2, 7, 1]
        """
        order, rounds = self.order, self.sequences // shares
        if shares == 1 or rounds == 0:
            return order
        there = order[: rounds * shares].view(rounds, shares).clone()
        back = slice((rounds - 1) % 2, None, 2)  # the last too: what is left goes to the first shares
        there[back] = there[back].flip(1)
        return torch.cat([there.flatten(), order[rounds * shares :]])

    @cached_property
    @outside_modes
    def rank(self) -> Tensor:
        """The place of each sequence in the rank order."""
        return torch.argsort(self.order)

    @cached_property
    @outside_modes
    def active(self) -> list[int]:
        """How many sequences are longer than t, for each step t."""
        if not self.steps:
            return []
        counts = torch.bincount(self.lengths, minlength=self.steps + 1)
        return (self.sequences - counts.cumsum(0)[: self.steps]).tolist()

    @cached_property
    @outside_modes
    def is_packed(self) -> bool:
        """True if the rows already stand step by step, in the order of sequences."""
        return self.stride == self.sequences > 0 and bool((self.lengths == self.steps).all())

    @cached_property
    @outside_modes
    def packed(self) -> Tensor:
        """The rows step by step, in rank order: what a step reads is one slice of them."""
        time = self._time(self.order)
        rows = self.starts[self.order[owners(self.lengths[self.order], len(time))]] + time * self.stride
        return rows[torch.argsort(time, stable=True)]

    @cached_property
    @outside_modes
    def by_sequence(self) -> Tensor:
        """The rows sequence after sequence, each in the order of its steps."""
        time = self._time()
        return self.starts[owners(self.lengths, len(time))] + time * self.stride

    @cached_property
    @outside_modes
    def unpacked(self) -> Tensor:
        """The inverse of `packed`."""
        inverse = torch.empty_like(self.packed)
        inverse[self.packed] = torch.arange(len(self.packed))
        return inverse

    def _time(self, order: Tensor | None = None) -> Tensor:
        """The step of each row, sequence after sequence."""
        lengths = self.lengths if order is None else self.lengths[order]
        return ranges(torch.zeros_like(lengths), lengths)

    @cached_property
    @outside_modes
    def sequence_of(self) -> Tensor:
        """The sequence each row belongs to."""
        out = torch.empty(self.rows, dtype=torch.int64)
        out[self.by_sequence] = owners(self.lengths, len(self.by_sequence))
        return out

    @cached_property
    @outside_modes
    def begins(self) -> tuple[Tensor, Tensor]:
        """The first rows of the sequences that have rows, and which sequences those are."""
        of = self.lengths.nonzero()[:, 0]
        return self.starts[of], of

    @cached_property
    @outside_modes
    def last(self) -> Tensor:
        """The last row of each sequence; `rows + b` where sequence b has none."""
        at = self.starts + (self.lengths - 1) * self.stride
        return torch.where(self.lengths == 0, self.rows + torch.arange(self.sequences), at)


@functools.lru_cache(maxsize=256)
@outside_modes
def _ragged(offsets: bytes, reverse: bool) -> Layout:
    table = torch.frombuffer(bytearray(offsets), dtype=torch.int64)
    layout = Layout(table[:-1].clone(), table.diff(), 1, int(table[-1]))
    return layout.backward if reverse else layout


@functools.lru_cache(maxsize=256)
@outside_modes
def _dense(steps: int, sequences: int, time_major: bool, reverse: bool) -> Layout:
    everyone = torch.arange(sequences)
    starts = everyone if time_major else everyone * steps
    lengths = torch.full((sequences,), steps, dtype=torch.int64)
    layout = Layout(starts, lengths, sequences if time_major else 1, steps * sequences, steps)
    return layout.backward if reverse else layout


@outside_modes
def is_uneven(layout: Layout, threads: int) -> bool:
    """Whether one thread has many more rows than others if sequences are dealt to them."""
    if threads < 2 or not layout.steps:
        return False
    lengths = layout.lengths[layout.dealt(threads)]
    each = torch.nn.functional.pad(lengths, (0, -len(lengths) % threads)).view(-1, threads).sum(0)
    return int(each.max()) * threads > _MOST_SHARE * int(lengths.sum())
