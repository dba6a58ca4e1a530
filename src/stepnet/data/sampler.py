"""Batches of about equally many rows: with no padding, a budget of rows is all there is to plan."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepnet.data.arguments import brief, truth, whole
from stepnet.data.offsets import check_lengths, integers
from stepnet.errors import LoDError

_MANY = 40  # sequences to a batch, where one search for each batch beats one for each sequence


class RowBudgetSampler:
    """A batch sampler for torch's DataLoader: lists of sequence numbers, at most `rows` rows in each.

    Sequences are shuffled anew in each epoch and dealt out in that order: a batch ends where the next
    sequence would go over the budget. A sequence longer than the budget is a batch of its own.

    In a distributed run all ranks plan the same batches from the same lengths and seed, and each takes its
    share, one in `world_size`; all have equally many. Their rows differ, so a mean over the rows of all ranks
    is a sum divided by the rows of all.

    Args:
        lengths: the length of every sequence of the data set: a list, array, tensor or generator.
        rows: the budget of a batch.
        shuffle: whether sequences come in another order in each epoch; else as they are.
        seed: of the shuffling, together with the epoch.
        rank: which share is this process's; None for that of torch.distributed, or 0 without it.
        world_size: how many shares there are; None for that of torch.distributed, or 1 without it.
        drop_last: leave out the batch that is left over at the end, below the budget, and batches that not
            every rank would get one of. Otherwise ranks that are short of one get one of the first again.

    `len(sampler)` is the number of batches of this rank in this epoch, which differs a little from epoch to
    epoch. `set_epoch` before each epoch shuffles anew. `state_dict` in the middle of an epoch, loaded into
    another sampler of the same data, goes on with the next batch.

    Raises:
        LoDError: lengths are no whole numbers from 0, or another argument does not fit.

    >>> sampler = RowBudgetSampler([3, 1, 2, 5, 9, 1], rows=6, shuffle=False)
    >>> list(sampler)
    [[0, 1, 2], [3], [4], [5]]
    """

    def __init__(
        self,
        lengths: Iterable[int] | Tensor | NDArray[Any],
        rows: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        checked = integers(lengths, "RowBudgetSampler 'lengths'")
        check_lengths(checked, "RowBudgetSampler 'lengths'")
        self.lengths = checked.numpy()
        self.rows = _whole("rows", rows, 1)
        self.shuffle = _truth("shuffle", shuffle)
        self.seed = _whole("seed", seed, 0)
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        ranks = torch.distributed.get_world_size() if together else 1
        own = torch.distributed.get_rank() if together else 0
        self.world_size = _whole("world_size", ranks if world_size is None else world_size, 1)
        self.rank = _whole("rank", own if rank is None else rank, 0)
        if self.rank >= self.world_size:
            raise LoDError(
                "RowBudgetSampler 'rank' must be below world_size",
                got=f"{self.rank}",
                expected=f"0 to {self.world_size - 1}",
            )
        self.drop_last = _truth("drop_last", drop_last)
        self.epoch = 0
        self._next = 0  # how many batches of this rank were handed out in this epoch
        self._start = 0  # where the next pass begins
        self._pass = 0  # the one that counts: what hands out batches of another epoch or place does not
        self._plan: tuple[int, np.ndarray, np.ndarray] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch, and start at its beginning; the epoch it is in goes on where it is."""
        if (wanted := _whole("epoch", epoch, 0)) != self.epoch:
            self._begin(wanted, 0)

    @property
    def sampler(self) -> RowBudgetSampler:
        """Itself: Lightning and Fabric set the epoch of what a batch sampler has by this name."""
        return self

    def _begin(self, epoch: int, batch: int) -> None:
        self.epoch, self._next, self._start = epoch, batch, batch
        self._pass += 1

    def __len__(self) -> int:
        """Batches of this rank in this epoch, from its beginning."""
        return len(self._own())

    def __iter__(self) -> Iterator[list[int]]:
        self._begin(self.epoch, self._start)
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        # Begins as the first batch is asked for: a DataLoader with workers makes two iterators and uses one.
        order, bounds = self._planned(self.epoch)
        self._begin(self.epoch, self._start)
        own, self._start = self._pass, 0
        for batch in self._own()[self._next :].tolist():
            if self._pass == own:
                self._next += 1
            yield order[bounds[batch] : bounds[batch + 1]].tolist()

    def state_dict(self, batches: int | None = None) -> dict[str, int]:
        """Where in which epoch it is.

        Args:
            batches: how many batches of this rank in this epoch were used; None for all that were handed out,
                which are more where the workers of a DataLoader fetch ahead.

        Raises LoDError if there are not so many batches.
        """
        done = self._next if batches is None else _within(batches, len(self))
        return {
            "epoch": self.epoch,
            "batches": min(done * self.world_size, self._count(self.epoch)),
            **self._data(),
        }

    def _data(self) -> dict[str, int]:
        """What tells the batches of each epoch apart from those of other samplers."""
        return {
            "seed": self.seed,
            "rows": self.rows,
            "shuffle": int(self.shuffle),
            "sequences": len(self.lengths),
            "lengths": zlib.crc32(np.ascontiguousarray(self.lengths, dtype="<i8").data),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another sampler of the same data was, also with another number of ranks: then fewer
        than `world_size` batches may come again, and none is left out.

        Raises LoDError if it planned other batches: by its seed, its budget, its order or its lengths; or if
        it is no state of a sampler, or of one past the end of its epoch. Then nothing changes.
        """
        wanted = self._data()
        missing = [
            name for name in (*wanted, "epoch", "batches") if not isinstance(state, dict) or name not in state
        ]
        if missing:
            raise LoDError(
                "RowBudgetSampler: this is no state of a sampler",
                got=brief(state),
                expected=", ".join(missing),
                remedy="load_state_dict(sampler.state_dict())",
            )
        for name, own in wanted.items():
            if _whole(name, state[name], 0) != own:
                raise LoDError(
                    f"RowBudgetSampler: the state is of a sampler with other {name}",
                    got=f"{state[name]}",
                    expected=f"{own}",
                    remedy=f"make the sampler with the {name} that it was saved with",
                )
        epoch = _whole("epoch", state["epoch"], 0)
        count = self._count(epoch)
        batches = _within(state["batches"], count)
        self.epoch = epoch  # which `len` is of
        self._begin(epoch, len(self) if batches == count else batches // self.world_size)

    def _planned(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of all sequences in an epoch, and where in it batches begin and the last one ends."""
        if self._plan is None or self._plan[0] != epoch:
            order = np.arange(len(self.lengths))
            if self.shuffle:
                order = np.random.default_rng((self.seed, epoch)).permutation(len(self.lengths))
            bounds = _dealt(self.lengths[order], self.rows)
            if self.drop_last and len(bounds) > 1:
                left_over = self.lengths[order[bounds[-2] :]].sum() < self.rows
                bounds = bounds[:-1] if left_over else bounds
            self._plan = epoch, order, bounds
        return self._plan[1:]

    def _count(self, epoch: int) -> int:
        """Batches of all ranks."""
        return len(self._planned(epoch)[1]) - 1

    def _own(self) -> np.ndarray:
        """Which batches are this rank's."""
        count = self._count(self.epoch)
        each = count // self.world_size if self.drop_last else -(-count // self.world_size)
        return (self.rank + self.world_size * np.arange(each)) % max(count, 1)


def _dealt(lengths: np.ndarray, rows: int) -> np.ndarray:
    """Where each batch begins in sequences of these lengths, and where the last one ends.

    >>> _dealt(np.array([3, 1, 2, 5, 9, 1]), 6)
    array([0, 3, 4, 5, 6])
    """
    ends = np.concatenate([[0], lengths.cumsum()])
    n, rows = len(lengths), min(rows, int(ends[-1]))

    def following(place: Any) -> Any:
        """The first sequence that a batch beginning at a place, or at each of them, has no room for."""
        return np.maximum(ends.searchsorted(ends[place] + rows, "right") - 1, place + 1)

    if n * rows < _MANY * int(ends[-1]):
        return _chained(following(np.arange(n)))
    bounds = [0]
    while bounds[-1] < n:
        bounds.append(int(following(bounds[-1])))
    return np.array(bounds)


def _chained(after: np.ndarray) -> np.ndarray:
    """0, what is after it, what is after that, and so on to the end; each is after all before it.

    Places that only the next one is after are passed over in runs: where each sequence is a batch, a step in
    Python for each would be most of the time.

    >>> _chained(np.array([1, 2, 5, 4, 5]))
    array([0, 1, 2, 5])
    """
    n = len(after)
    leaps = np.flatnonzero(after != np.arange(1, n + 1))
    landings = after[leaps]
    leap_after = leaps.searchsorted(landings).tolist()
    taken, k = [], 0
    while k < len(leap_after):
        taken.append(k)
        k = leap_after[k]
    passed = np.zeros(n + 1, dtype=np.int8)  # 1 where a leap begins, -1 where it lands
    passed[leaps[taken] + 1] = 1
    passed[landings[taken]] -= 1
    return np.flatnonzero(passed.cumsum(dtype=np.int8) == 0)


def _whole(name: str, value: Any, least: int) -> int:
    return whole(f"RowBudgetSampler '{name}'", value, least, error=LoDError)


def _within(value: Any, most: int) -> int:
    """A number of batches that an epoch has."""
    batches = _whole("batches", value, 0)
    if batches > most:
        raise LoDError(
            "RowBudgetSampler 'batches' is past the end of the epoch", got=batches, expected=f"0 to {most}"
        )
    return batches


def _truth(name: str, value: Any) -> bool:
    return truth(f"RowBudgetSampler '{name}'", value, error=LoDError)
