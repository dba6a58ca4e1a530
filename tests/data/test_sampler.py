"""RowBudgetSampler: what is in its batches, in each epoch, on each rank, and after a restart."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covering import few
from stepnet import LoDTensor
from stepnet.data import RowBudgetSampler
from stepnet.errors import LoDError

LENGTHS = st.lists(st.integers(0, 9), max_size=30)


@given(LENGTHS, st.integers(1, 12), st.booleans(), st.integers(0, 3))
def test_every_sequence_is_in_one_batch_within_the_budget(lengths, rows, shuffle, epoch):
    sampler = RowBudgetSampler(lengths, rows, shuffle=shuffle)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    order = [i for batch in batches for i in batch]
    assert sorted(order) == list(range(len(lengths)))
    if not shuffle:
        assert order == sorted(order)
    for k, batch in enumerate(batches):
        held = sum(lengths[i] for i in batch)
        assert len(batch) == 1 or held <= rows
        if k + 1 < len(batches):  # nothing that fits is left to the next batch
            assert held + lengths[batches[k + 1][0]] > rows


@given(LENGTHS, st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_ranks_share_the_plan_of_one(lengths, rows, world_size, drop_last):
    whole = list(RowBudgetSampler(lengths, rows, seed=3, drop_last=drop_last))
    parts = [
        RowBudgetSampler(lengths, rows, seed=3, rank=r, world_size=world_size, drop_last=drop_last)
        for r in range(world_size)
    ]
    shares = [list(part) for part in parts]
    assert len({len(share) for share in shares}) == 1
    assert [len(part) for part in parts] == [len(share) for share in shares]
    dealt = [batch for column in zip(*shares, strict=True) for batch in column]
    if drop_last:
        assert dealt == whole[: len(whole) // world_size * world_size]
    else:
        assert dealt[: len(whole)] == whole
        assert dealt[len(whole) :] == [whole[k % len(whole)] for k in range(len(dealt) - len(whole))]
        assert len(dealt) - len(whole) < world_size


def test_drop_last_keeps_a_last_batch_that_is_full():
    def batches(lengths):
        return list(RowBudgetSampler(lengths, 4, shuffle=False, drop_last=True))

    assert batches([2, 2, 3]) == [[0, 1]]
    assert batches([2, 2, 3, 1]) == [[0, 1], [2, 3]]
    assert batches([2, 2, 9]) == [[0, 1], [2]]
    assert batches([1]) == []


def test_epochs_differ_and_repeat():
    sampler = RowBudgetSampler(np.arange(50), 60, seed=1)
    first = list(sampler)
    assert list(sampler) == first  # another pass of the same epoch
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    again = RowBudgetSampler(torch.arange(50), 60, seed=1)
    again.set_epoch(1)
    assert list(again) == second
    assert list(RowBudgetSampler(range(50), 60, seed=2)) != first


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 30), st.integers(1, 3), st.data())
def test_a_restart_goes_on_with_the_next_batch(lengths, used, world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))

    def made():
        return RowBudgetSampler(lengths, 10, seed=5, rank=rank, world_size=world_size)

    sampler = made()
    sampler.set_epoch(2)
    whole = list(sampler)
    iterator = iter(sampler)
    used = min(used, len(whole))
    for _ in range(used):
        next(iterator)
    state = pickle.loads(pickle.dumps(sampler.state_dict()))
    other = made()
    other.load_state_dict(state)
    other.set_epoch(2)  # as loops do at the start of an epoch
    assert list(other) == whole[used:]
    assert list(other) == whole
    assert state == sampler.state_dict(used)


def test_a_restart_on_other_ranks():
    lengths = [3] * 24
    whole = list(RowBudgetSampler(lengths, 6))
    sampler = RowBudgetSampler(lengths, 6, rank=1, world_size=2)
    list(zip(range(2), sampler, strict=False))
    state = sampler.state_dict(2)
    rest = RowBudgetSampler(lengths, 6)
    rest.load_state_dict(state)
    assert list(rest) == whole[4:]


def test_a_state_of_other_batches_is_refused():
    state = RowBudgetSampler([3, 1, 2], 4).state_dict()
    others = {
        "shuffle": RowBudgetSampler([3, 1, 2], 4, shuffle=False),
        "lengths": RowBudgetSampler([1, 3, 2], 4),
        "rows": RowBudgetSampler([3, 1, 2], 5),
    }
    for name, other in others.items():
        with pytest.raises(LoDError, match=f"a sampler with other {name}"):
            other.load_state_dict(state)
    for wrong in ({}, 3, {k: v for k, v in state.items() if k != "epoch"}):
        with pytest.raises(LoDError, match="no state of a sampler"):
            RowBudgetSampler([3, 1, 2], 4).load_state_dict(wrong)
    sampler = RowBudgetSampler([3, 1, 2], 4)
    with pytest.raises(LoDError, match="'batches' must be a whole number from 0"):
        sampler.load_state_dict({**state, "batches": -1})
    past = "'batches' is past the end"
    with pytest.raises(LoDError, match=past):
        sampler.load_state_dict({**state, "epoch": 1, "batches": len(sampler) + 1})
    with pytest.raises(LoDError, match=past):
        sampler.state_dict(len(sampler) + 1)
    assert sampler.state_dict() == state


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_no_rank_has_more_at_the_end_of_an_epoch(sequences, world_size, others, drop_last):
    sampler = RowBudgetSampler([2] * sequences, 2, world_size=world_size, rank=0, drop_last=drop_last)
    list(sampler)
    same, other = (
        RowBudgetSampler([2] * sequences, 2, world_size=n, rank=n - 1, drop_last=drop_last)
        for n in (world_size, others)
    )
    for restarted in (same, other):
        restarted.load_state_dict(sampler.state_dict())
    assert list(same) == []
    assert drop_last or list(other) == []


def arrow(lengths):
    return pytest.importorskip("pyarrow").chunked_array([lengths])  # whose memory must not be written


@pytest.mark.parametrize(
    "kind",
    [
        list,
        iter,
        lambda n: (k for k in n),
        lambda n: np.array(n[::-1])[::-1],
        lambda n: np.array(n, object),
        arrow,
    ],
    ids=["list", "iterator", "generator", "reversed", "objects", "arrow"],
)
def test_kinds_of_lengths(kind):
    for lengths in ([3, 1, 2, 5, 4], [3, 1, 2, 5, 4] * 250):
        assert list(RowBudgetSampler(kind(lengths), 6)) == list(RowBudgetSampler(np.array(lengths), 6))


def test_a_pass_that_was_left_is_begun_anew():
    sampler = RowBudgetSampler([1] * 10, 2)
    whole = list(sampler)
    next(iter(sampler))
    assert list(sampler) == whole


def test_a_pass_of_another_epoch_or_place_counts_no_more():
    sampler = RowBudgetSampler([1] * 10, 2)
    old = iter(sampler)
    next(old)
    state = sampler.state_dict()
    sampler.set_epoch(1)
    next(old)
    assert sampler.state_dict()["batches"] == 0
    sampler.load_state_dict(state)
    next(old)
    assert sampler.state_dict() == state
    new = iter(sampler)
    assert next(new) == list(RowBudgetSampler([1] * 10, 2))[1]
    next(old)
    assert sampler.state_dict()["batches"] == 2


def test_frameworks_find_whose_epoch_to_set():
    """They ask a batch sampler for the sampler that it draws from."""
    sampler = RowBudgetSampler([1] * 9, rows=3)
    sampler.sampler.set_epoch(2)
    assert sampler.epoch == 2


def test_of_another_epoch_from_its_beginning():
    sampler = RowBudgetSampler([1] * 10, 2)
    next(iter(sampler))
    sampler.set_epoch(1)
    assert len(list(sampler)) == 5


def test_many_lengths_in_a_moment():
    lengths = np.random.default_rng(0).integers(1, 100, 200_000)
    sampler = RowBudgetSampler(lengths, 1000)
    sums = [lengths[batch].sum() for batch in sampler]
    assert sum(sums) == lengths.sum()
    assert np.mean(sums[:-1]) > 900


class Sequences(torch.utils.data.Dataset):
    lengths = (3, 1, 2, 5, 0, 4)

    def __getitem__(self, i):
        return torch.full((self.lengths[i], 2), float(i))

    def __len__(self):
        return len(self.lengths)


@pytest.mark.parametrize("context", few([None, "fork", "spawn", "forkserver"], [None, "fork"]))
def test_in_a_data_loader(context):
    from stepnet.data import collate

    data = Sequences()
    assert pickle.loads(pickle.dumps(collate)) is collate  # as a process that is spawned gets it
    loader = torch.utils.data.DataLoader(
        data,
        batch_sampler=RowBudgetSampler(data.lengths, 6, shuffle=False),
        collate_fn=collate,
        num_workers=0 if context is None else 1,
        multiprocessing_context=context,
    )
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert all(isinstance(batch, LoDTensor) for batch in batches)
    assert [batch.lengths().tolist() for batch in batches] == [[3, 1, 2], [5, 0], [4]]
    assert batches[1].values.unique().tolist() == [3]
    sampler = loader.batch_sampler
    sampler.load_state_dict(sampler.state_dict(batches=1))
    assert [batch.lengths().tolist() for batch in loader] == [[5, 0], [4]]


ERRORS = {
    "negative": (lambda: RowBudgetSampler([1, -1], 2), "'lengths' must not be negative"),
    "floats": (lambda: RowBudgetSampler([1.5], 2), "'lengths' must be a 1-D list or tensor of integers"),
    "many floats": (lambda: RowBudgetSampler([1] * 1000 + [1.5], 2), "a 1-D list or tensor of integers"),
    "rows": (lambda: RowBudgetSampler([1], 0), "'rows' must be a positive whole number"),
    "seed": (lambda: RowBudgetSampler([1], 1, seed=-1), "'seed' must be a whole number from 0"),
    "rank": (lambda: RowBudgetSampler([1], 1, rank=2, world_size=2), "'rank' must be below.*\n.*2\n.*0 to 1"),
    "world_size": (lambda: RowBudgetSampler([1], 1, world_size=0), "'world_size' must be a positive whole"),
    "beyond int64": (lambda: RowBudgetSampler(np.array([2**63], np.uint64), 1), "a 1-D list.*\n.*uint64"),
    "a batch": (lambda: RowBudgetSampler(LoDTensor(torch.ones(2), [[0, 2]]), 1), "remedy:   given.lengths()"),
    "epoch": (lambda: RowBudgetSampler([1], 1).set_epoch(None), "'epoch' must be a whole number"),
    "state": (
        lambda: RowBudgetSampler([1], 2).load_state_dict(RowBudgetSampler([1, 2], 2).state_dict()),
        "a sampler with other sequences\n.*2\n.*1",
    ),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(call, text):
    with pytest.raises(LoDError, match=text):
        call()
