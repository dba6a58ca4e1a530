"""Batches put one after the other, levels dropped, sequences cut into pieces and joined again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepnet import LoDTensor
from stepnet.errors import LoDError, RowMixError

LENGTHS = st.lists(st.integers(0, 4), max_size=6)


def numbered(lengths, features=2):
    rows = sum(lengths)
    return LoDTensor.from_lengths(torch.arange(rows * features).double().view(rows, features), [lengths])


# --- cat


@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_cat_is_the_list_of_all_sequences(batches):
    parts = [numbered(lengths) for lengths in batches]
    joined = LoDTensor.cat(parts)
    sequences = [s for part in parts for s in part]
    assert len(joined) == len(sequences)
    for a, b in zip(joined, sequences, strict=True):
        assert torch.equal(a, b)


def test_cat_of_two_levels_passes_gradients_on():
    rows = [torch.randn(n, 2, requires_grad=True) for n in (3, 0, 4)]
    lengths = [[[2, 0], [1, 2]], [[], []], [[1, 1], [4, 0]]]
    joined = LoDTensor.cat([LoDTensor.from_lengths(v, part) for v, part in zip(rows, lengths, strict=True)])
    assert joined.recursive_sequence_lengths() == [[2, 0, 1, 1], [1, 2, 4, 0]]
    (joined.values * torch.arange(7.0)[:, None]).sum().backward()
    assert torch.equal(rows[2].grad[:, 0], torch.arange(3.0, 7.0))
    again = LoDTensor.cat([joined])
    assert again.values.data_ptr() != joined.values.data_ptr()


X = numbered([2, 1])
CAT_ERRORS = {
    "none": (lambda: LoDTensor.cat([]), "takes a list of LoDTensors, one or more"),
    "no list": (lambda: LoDTensor.cat(X), "takes a list of LoDTensors"),
    "tensor": (lambda: LoDTensor.cat([X, X.values]), "batch 1 must be a LoDTensor"),
    "levels": (
        lambda: LoDTensor.cat([X, LoDTensor.from_lengths(X.values, [[2], [2, 1]])]),
        r"levels 2\n.*1\n.*drop_levels",
    ),
    "features": (lambda: LoDTensor.cat([X, numbered([2], 3)]), r"batch 1 does not fit.*\n.*\[3\]\n.*\[2\]"),
    "dtype": (lambda: LoDTensor.cat([X, X.float()]), "dtype torch.float32"),
}


@pytest.mark.parametrize(("call", "text"), CAT_ERRORS.values(), ids=CAT_ERRORS)
def test_cat_errors(call, text):
    with pytest.raises(LoDError, match=text):
        call()


@pytest.mark.parametrize("function", [torch.cat, torch.concat, torch.concatenate])
def test_torch_cat_names_it(function):
    with pytest.raises(RowMixError, match=r"LoDTensor.cat\(\[a, b\]\)"):
        function([X, X])
    with pytest.raises(LoDError, match=r"LoDTensor.cat\(\[a, b\]\)"):
        function([X, numbered([1, 1])])


# --- levels


def test_drop_levels():
    x = LoDTensor.from_lengths(torch.arange(4.0), [[2, 0], [1, 1], [3, 1]])
    assert x.drop_levels().recursive_sequence_lengths() == [[1, 1], [3, 1]]
    assert x.drop_levels(2).recursive_sequence_lengths() == [[3, 1]]
    assert x.drop_levels(0).recursive_sequence_lengths() == x.recursive_sequence_lengths()
    assert x.drop_levels(2).values is x.values
    for count in (3, -1, True, 1.0):
        with pytest.raises(LoDError, match=r"a level must be left|must be a whole number"):
            x.drop_levels(count)


def test_join_pieces_needs_two_levels():
    with pytest.raises(LoDError, match="needs two levels"):
        X.join_pieces()


# --- split_at


@given(st.data(), LENGTHS, st.booleans())
def test_split_at_is_python_slicing(data, lengths, after):
    x = numbered(lengths)
    marks = data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    pieces = x.split_at(marks, after=after)
    start = 0
    for i, length in enumerate(lengths):
        own = marks[start : start + length]
        cuts = sorted({0, length, *(t + after for t, mark in enumerate(own) if mark)})
        expected = [x[i][a:b] for a, b in itertools.pairwise(cuts)]
        found = list(pieces[i])
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
        start += length
    assert pieces.values is x.values
    assert pieces.join_pieces().recursive_sequence_lengths() == x.recursive_sequence_lengths()


def test_split_at_below_two_levels():
    x = LoDTensor.from_lengths(torch.arange(5.0), [[1, 1], [2, 3]])
    pieces = x.split_at([0, 1, 0, 0, 1])
    assert pieces.recursive_sequence_lengths() == [[1, 1], [2, 2], [1, 1, 2, 1]]
    assert pieces.drop_levels(2).recursive_sequence_lengths() == [[1, 1, 2, 1]]


MARKS = {
    "bool": torch.tensor([False, True, True]),
    "column": torch.tensor([[False], [True], [True]]),
    "float": torch.tensor([0.0, 1.0, 0.5]),
    "uint8": torch.tensor([0, 1, 2], dtype=torch.uint8),
    "list": [False, True, True],
    "numpy": np.array([False, True, True]),
    "LoDTensor": X.with_values(torch.tensor([False, True, True])),
}


@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_every_kind_of_marks(marks):
    assert X.split_at(marks).recursive_sequence_lengths() == [[2, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        (torch.zeros(2), r"a truth value per row\n.*\[2\].*\n.*\[3\]"),
        (torch.zeros(3, 2), r"shape \[3, 2\]"),
        ("abc", "a truth value per row"),
        (numbered([1, 2]), "must have the LoD of the rows"),
        (torch.zeros(3, device="meta"), "must have numbers"),
    ],
    ids=["count", "two columns", "text", "other LoD", "meta"],
)
def test_split_at_errors(marks, text):
    with pytest.raises(LoDError, match=text):
        X.split_at(marks)


def test_split_at_under_modes():
    with torch.inference_mode(), torch.device("meta"):
        pieces = X.split_at([True, True, False])
    assert pieces.lod[1].tolist() == [0, 1, 2, 3]
    assert not pieces.lod[1].is_inference()
