"""Where the rows of each sequence stand in a table of rows.

Row of sequence b at step t: `start[b] + t * stride`. That one formula covers ragged tables (stride 1),
time-major and batch-major dense tensors, and all of them backwards.

Computed by numpy: generated code writes where a layout says, whatever somebody made of torch's operators.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from torch import Tensor

from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import LoD
from stepnet.data.unpatched_torch import from_numpy
from stepnet.errors import LoDError

from . import on_gpu

Index = Literal["order", "rank", "packed", "unpacked", "sequence_of", "begins", "some", "last"]
_OF_LENGTHS = "order", "steps", "ends"  # the same in any direction
Numbers = np.ndarray[Any, np.dtype[np.int64]]
_MOST_SHARE = 1.25  # of the rows that a thread has where all have as many: above it they are dealt unevenly


@dataclass(frozen=True, eq=False)
class Layout:
    """Sequences over a table of `rows` rows; all index tensors are int64 on the CPU. Rows that are elsewhere
    are found by `beside`.

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
    @functools.lru_cache(maxsize=256)
    @outside_modes
    def dense(steps: int, sequences: int, time_major: bool, reverse: bool) -> Layout:
        """Sequences of one length, [T, B] or [B, T]."""
        starts = np.arange(sequences) * (1 if time_major else steps)
        lengths = np.full(sequences, steps)
        layout = _layout(starts, lengths, sequences if time_major else 1, steps * sequences, steps)
        return layout.backward if reverse else layout

    @staticmethod
    @outside_modes
    def pieces(offsets: Tensor, owner: Tensor, steps: int, n: int, time_major: bool, reverse: bool) -> Layout:
        """Pieces of sequences of one length, [T, B] or [B, T].

        Args:
            offsets: of the pieces, where sequences stand one after the other.
            owner: the sequence of each piece.
            steps, n: how long the sequences are, and how many.

        >>> import torch
        >>> of = torch.tensor([0, 1, 3, 6]), torch.tensor([0, 0, 1])
        >>> layout = Layout.pieces(*of, steps=3, n=2, time_major=True, reverse=False)
        >>> layout.starts.tolist(), layout.lengths.tolist(), layout.stride
        ([0, 2, 1], [1, 2, 3], 2)
        """
        table, of = offsets.numpy(), owner.numpy()
        starts = (table[:-1] - of * steps) * n + of if time_major else table[:-1]
        layout = _layout(starts, np.diff(table), n if time_major else 1, n * steps)
        return layout.backward if reverse else layout

    @functools.lru_cache(maxsize=64)  # noqa: B019  layouts are kept below, too
    @outside_modes
    def times(self, k: int) -> Layout:
        """The same sequences k times, one table after the other."""
        tables = np.arange(k, dtype=np.int64)[:, None] * self.rows
        starts, lengths = self._numbers
        starts = (starts + tables).ravel()
        return _layout(starts, np.tile(lengths, k), self.stride, self.rows * k, self.idle)

    @cached_property
    def _numbers(self) -> tuple[Numbers, Numbers]:
        return self.starts.numpy(), self.lengths.numpy()

    def beside(self, name: Index, rows: Tensor) -> Tensor:
        """One of the index tensors where rows are; moved to a GPU once, for a copy waits for all its work.

        Raises:
            LoopError: it is not there, and a CUDA graph is being captured, which takes no such copy.
        """
        index: Tensor = getattr(self, name)
        if rows.is_cuda:
            return on_gpu.moved(self.gpu, name, index, rows.device)
        return beside(index, rows)

    @cached_property
    def gpu(self) -> on_gpu.Kept:
        """What `beside` moved."""
        return {}

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return self.lengths.shape[0]

    @cached_property
    @outside_modes
    def steps(self) -> int:
        """The length of the longest sequence."""
        return int(self._numbers[1].max()) if self.sequences else 0

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
        starts, lengths = self._numbers
        last = starts + np.maximum(lengths - 1, 0) * self.stride
        found = _layout(last, lengths, -self.stride, self.rows, self.idle)
        vars(found).update({name: vars(self)[name] for name in _OF_LENGTHS if name in vars(self)})
        return found

    @cached_property
    @outside_modes
    def order(self) -> Tensor:
        """Sequences by length, longest first, stable: the rank order."""
        return from_numpy(_order(self._numbers[1]))

    def dealt(self, shares: int) -> Tensor:
        """The sequences in an order in which every `shares`-th is of one share, beginning with the longest of
        each. They are dealt there and back, so that shares have about as many rows.

        >>> import torch
        >>> table = Layout.ragged(torch.tensor([0, 1, 10, 18, 20, 27]), False)
        >>> table.lengths[table.dealt(2)].tolist()  # to one share 9 + 2 + 1 rows, to the other 8 + 7
        [9, 8, 2, 7, 1]
        """
        if shares == 1 or shares > self.sequences:
            return self.order
        found = self.deals.get(shares)
        if found is None:
            found = self.deals[shares] = self._dealt(shares)
        return found

    @outside_modes
    def _dealt(self, shares: int) -> Tensor:
        dealt, rounds = self.order.numpy().copy(), self.sequences // shares
        there = dealt[: rounds * shares].reshape(rounds, shares)
        back = slice((rounds - 1) % 2, None, 2)  # the last too: what is left goes to the first shares
        there[back] = there[back, ::-1].copy()
        return from_numpy(dealt)

    @cached_property
    def deals(self) -> dict[int, Tensor]:
        """What `dealt` gave, by the number of shares: the same for the same lengths."""
        return {}

    @cached_property
    @outside_modes
    def rank(self) -> Tensor:
        """The place of each sequence in the rank order."""
        return from_numpy(self.order.numpy().argsort())

    @cached_property
    @outside_modes
    def active(self) -> list[int]:
        """How many sequences are longer than t, for each step t."""
        if not self.steps:
            return []
        counts = np.bincount(self._numbers[1], minlength=self.steps + 1)
        return (self.sequences - counts.cumsum()[: self.steps]).tolist()

    @cached_property
    @outside_modes
    def is_packed(self) -> bool:
        """True if the rows already stand step by step, in the order of sequences."""
        return self.stride == self.sequences > 0 and bool((self._numbers[1] == self.steps).all())

    @cached_property
    @outside_modes
    def packed(self) -> Tensor:
        """The rows step by step, in rank order: what a step reads is one slice of them."""
        (starts, lengths), order = self._numbers, self.order.numpy()
        time = _time(lengths[order])
        rows = np.repeat(starts[order], lengths[order]) + time * self.stride
        return from_numpy(rows[time.argsort(kind="stable")])

    def agree(self, values: Tensor) -> bool:
        """Whether a number of each row, on the CPU, is not 0, and the same of all rows of a step.

        >>> import torch
        >>> layout = Layout.ragged(torch.tensor([0, 2, 5]), False)
        >>> layout.agree(torch.tensor([3, 1, 3, 1, 5])), layout.agree(torch.tensor([3, 1, 1, 1, 5]))
        (True, False)
        """
        said = values.numpy()[self.packed.numpy()]
        if not said.all():
            return False
        first = np.cumsum([0, *self.active])[:-1]
        return bool((said == said[first].repeat(self.active)).all())

    @cached_property
    @outside_modes
    def by_sequence(self) -> Tensor:
        """The rows sequence after sequence, each in the order of its steps."""
        starts, lengths = self._numbers
        return from_numpy(np.repeat(starts, lengths) + _time(lengths) * self.stride)

    @cached_property
    @outside_modes
    def unpacked(self) -> Tensor:
        """The inverse of `packed`."""
        packed = self.packed.numpy()
        inverse = np.empty_like(packed)
        inverse[packed] = np.arange(len(packed))
        return from_numpy(inverse)

    @cached_property
    @outside_modes
    def sequence_of(self) -> Tensor:
        """The sequence each row belongs to."""
        out = np.empty(self.rows, dtype=np.int64)
        out[self.by_sequence.numpy()] = np.repeat(np.arange(self.sequences), self._numbers[1])
        return from_numpy(out)

    @cached_property
    @outside_modes
    def some(self) -> Tensor:
        """The sequences that have rows."""
        return from_numpy(self._numbers[1].nonzero()[0])

    @cached_property
    @outside_modes
    def begins(self) -> Tensor:
        """The first row of each of them."""
        return from_numpy(self._numbers[0][self.some.numpy()])

    @cached_property
    @outside_modes
    def before(self) -> Tensor:
        """The row one step before each row; `rows + b` for the first one of sequence b."""
        rows = np.arange(self.rows) - self.stride
        starts, lengths = self._numbers
        of = lengths.nonzero()[0]
        rows[starts[of]] = self.rows + of
        return from_numpy(rows)

    @cached_property
    @outside_modes
    def last(self) -> Tensor:
        """The last row of each sequence; `rows + b` where sequence b has none."""
        starts, lengths = self._numbers
        at = starts + (lengths - 1) * self.stride
        return from_numpy(np.where(lengths == 0, self.rows + np.arange(self.sequences), at))


def _layout(starts: Numbers, lengths: Numbers, *others: int) -> Layout:
    found = Layout(from_numpy(starts), from_numpy(lengths), *others)
    vars(found)["_numbers"] = starts, lengths
    return found


def _order(lengths: Numbers) -> Numbers:
    return (-lengths).argsort(kind="stable")


def _time(lengths: Numbers) -> Numbers:
    """The step of each row, sequence after sequence."""
    ends = lengths.cumsum()
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)


@functools.lru_cache(maxsize=256)
@outside_modes
def _ragged(offsets: bytes, reverse: bool) -> Layout:
    table = np.frombuffer(offsets, dtype=np.int64)
    lengths = table[1:] - table[:-1]
    order = _order(lengths)
    longest, shortest = (lengths[order[0]], lengths[order[-1]]) if len(order) else (0, 0)
    if not len(table) or table[0] or shortest < 0:  # those of a graph are anybody's to change
        raise LoDError(
            "offsets must start at 0 and never fall",
            got=table[:10].tolist(),
            remedy="those of a LoDTensor, unchanged",
        )
    layout = _layout(table[:-1].copy(), lengths, 1, int(table[-1]))
    vars(layout).update(order=from_numpy(order), steps=int(longest))  # nearly each run asks for both
    return layout.backward if reverse else layout


@outside_modes
def is_uneven(layout: Layout, threads: int) -> bool:
    """Whether one thread has many more rows than others if sequences are dealt to them."""
    if threads < 2 or not layout.steps:
        return False
    lengths = layout.lengths.numpy()[layout.dealt(threads).numpy()]
    each = np.pad(lengths, (0, -len(lengths) % threads)).reshape(-1, threads).sum(0)
    return int(each.max()) * threads > _MOST_SHARE * int(lengths.sum())
