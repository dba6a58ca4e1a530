"""Where rows stand in a PackedSequence is found once for the same lengths, and is nobody's to change."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stepnet import LoDTensor
from stepnet.data import convert, permute
from stepnet.data.permute import permute_rows


def packed(lengths, features=2, *, sorted_first=False):
    sequences = [torch.randn(n, features, dtype=torch.float64) for n in lengths]
    return pack_sequence(sequences, enforce_sorted=sorted_first), sequences


@pytest.mark.parametrize("lengths", [(3, 1, 2), (1,), (2, 2), (1, 4, 4, 2)], ids=str)
def test_equal_lengths_have_the_same_places_and_others_their_own(lengths):
    first, _ = packed(lengths)
    again, sequences = packed(lengths)
    _, _, at = convert.packed_to_rows(first)
    rows, offsets, found = convert.packed_to_rows(again)
    assert found is at
    assert torch.equal(rows, torch.cat(sequences))
    assert offsets.diff().tolist() == [*lengths]
    other, sequences = packed((*lengths[::-1], 5))
    assert torch.equal(convert.packed_to_rows(other)[0], torch.cat(sequences))


def test_sorted_sequences_are_told_from_the_same_steps_in_another_order():
    for sorted_first, lengths in ((True, (3, 2, 1)), (False, (1, 3, 2)), (False, (2, 1, 3))):
        p, sequences = packed(lengths, sorted_first=sorted_first)
        assert torch.equal(LoDTensor.from_packed(p).values, torch.cat(sequences))


def test_offsets_that_are_written_to_are_those_of_one_value():
    x = LoDTensor.from_packed(packed((3, 1, 2))[0])
    x.structure.levels[0].zero_()
    again = LoDTensor.from_packed(packed((3, 1, 2))[0])
    assert again.recursive_sequence_lengths() == [[3, 1, 2]]


def test_sizes_that_are_no_sizes_are_refused_after_right_ones_were_kept():
    p, _ = packed((3, 1, 2))
    LoDTensor.from_packed(p)
    with pytest.raises(convert.LoDError, match="add up to the rows of 'data'"):
        LoDTensor.from_packed(PackedSequence(p.data[:-1], p.batch_sizes, p.sorted_indices))


def test_places_of_many_rows_are_not_kept(monkeypatch):
    monkeypatch.setattr(convert, "_MOST_KEPT", 5)
    p, sequences = packed((4, 2, 3))
    (rows, _, at), (_, _, again) = convert.packed_to_rows(p), convert.packed_to_rows(p)
    assert at is not again
    assert torch.equal(rows, torch.cat(sequences))


@pytest.mark.parametrize("known", [True, False], ids=["with its inverse", "without"])
def test_derivatives_of_rows_put_back_need_no_inverse_that_is_known(known, monkeypatch):
    order = torch.tensor([2, 0, 3, 1])
    back = permute.invert(order) if known else None
    if known:
        monkeypatch.setattr(permute, "invert", None)
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    g = torch.randn(4, 2, dtype=torch.float64)
    permute_rows(x, order, back).backward(g)
    expected = torch.empty_like(g)
    expected[order] = g
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    monkeypatch.undo()
    assert torch.autograd.gradgradcheck(lambda x: permute_rows(x, order, back) ** 3, (x,))
    per_row = torch.func.grad(lambda x: (permute_rows(x, order, back) * g).sum())
    assert torch.equal(per_row(x.detach()), expected)


def test_a_permutation_looks_at_no_signature(monkeypatch):
    x, order = torch.randn(4, 2, requires_grad=True), torch.tensor([2, 0, 3, 1])
    monkeypatch.setattr(inspect, "signature", None)
    permute_rows(x, order).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(4, 2))
