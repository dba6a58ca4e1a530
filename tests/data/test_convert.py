"""Padded, packed and nested, there and back, against torch's own functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from stepnet.data.convert import rank_order
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError
from strategies import last_sequences, lod_tensors

LENGTHS = [3, 0, 5, 5, 1]


def ragged(lengths: list[int] = LENGTHS, *features: int) -> LoDTensor:
    return LoDTensor.from_lengths(torch.randn(sum(lengths), *features, dtype=torch.float64), [lengths])


def assert_same(a: LoDTensor, b: LoDTensor) -> None:
    assert a.recursive_sequence_lengths() == b.recursive_sequence_lengths()
    assert a.dtype == b.dtype
    assert torch.equal(a.values, b.values)


def last_level(x: LoDTensor) -> LoDTensor:
    return LoDTensor(x.values, [x.lod[-1]])


# Rank order


@given(st.lists(st.integers(0, 5)))
def test_rank_order_is_longest_first_and_stable(lengths: list[int]) -> None:
    order = rank_order(torch.tensor(lengths, dtype=torch.int64))
    assert order.dtype == torch.int64
    assert order.tolist() == sorted(range(len(lengths)), key=lambda i: -lengths[i])


def test_rank_order_of_many_equal_lengths_is_stable_too() -> None:
    lengths = torch.arange(5000) % 3
    assert rank_order(lengths).tolist() == sorted(range(5000), key=lambda i: -(i % 3))


# Padded


@pytest.mark.parametrize("batch_first", [True, False])
@given(x=lod_tensors())
def test_padded_there_and_back(batch_first: bool, x: LoDTensor) -> None:
    padded, lengths = x.to_padded(padding_value=-7.0, batch_first=batch_first)
    assert lengths.tolist() == x.recursive_sequence_lengths()[-1]
    assert (
        (padded == -7).sum() == (lengths.max(0).values * len(lengths) - x.shape[0]) * 3
        if len(lengths)
        else True
    )
    assert_same(LoDTensor.from_padded(padded, lengths, batch_first=batch_first), last_level(x))


@pytest.mark.parametrize("batch_first", [True, False])
@given(x=lod_tensors())
def test_padded_is_that_of_torch(batch_first: bool, x: LoDTensor) -> None:
    sequences = last_sequences(x)
    if not sequences:
        assert x.to_padded(batch_first=batch_first)[0].shape == (0, 0, 3)
        return
    expected = pad_sequence(sequences, batch_first=batch_first, padding_value=2.5)
    assert torch.equal(x.to_padded(2.5, batch_first)[0], expected)


def test_padded_longer_than_the_longest_is_read_too() -> None:
    padded = torch.arange(12).reshape(2, 6)
    assert LoDTensor.from_padded(padded, [2, 0]).values.tolist() == [0, 1]
    assert LoDTensor.from_padded(padded.T, torch.tensor([1, 3]), batch_first=False).values.tolist() == [
        0,
        6,
        7,
        8,
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float16, torch.complex64])
def test_padded_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = LoDTensor(torch.ones(3).to(dtype), [[0, 2, 3]])
    padded, lengths = x.to_padded()
    assert padded.dtype == dtype
    assert padded.tolist() == [[1, 1], [1, 0]]
    assert_same(LoDTensor.from_padded(padded, lengths), x)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.int32, 0.5),
        (torch.int32, 2.0**40),
        (torch.uint8, -1),
        (torch.bool, 2),
        (torch.int64, float("nan")),
    ],
    ids=str,
)
def test_a_padding_value_must_fit_the_dtype(dtype: torch.dtype, value: float) -> None:
    with pytest.raises(LoDError, match="'padding_value' must be a value of"):
        LoDTensor(torch.ones(3).to(dtype), [[0, 2, 3]]).to_padded(value)


@pytest.mark.parametrize(
    ("padded", "lengths", "says"),
    [
        (torch.zeros(2, 3), [1], ["one entry per sequence", "1 lengths", "2 ('padded' has shape [2, 3]"]),
        (torch.zeros(2, 3), [1, 4], ["must be 0 to 3 ('padded' has 3 steps)", "4 at index 1"]),
        (torch.zeros(2, 3), [-1, 1], ["must be 0 to 3", "-1 at index 0"]),
        (torch.zeros(2, 3), [1.0, 1.0], ["1-D list or tensor of integers"]),
        (torch.zeros(2, 3), 2, ["1-D list or tensor of integers"]),
        (torch.zeros(3), [3], ["[sequences, longest, ...]"]),
        ([[0, 0]], [2], ["[sequences, longest, ...]"]),
    ],
    ids=["count", "too long", "negative", "floats", "number", "one dimension", "list"],
)
def test_bad_padded(padded: object, lengths: object, says: list[str]) -> None:
    with pytest.raises(LoDError) as error:
        LoDTensor.from_padded(padded, lengths)  # type: ignore[arg-type]
    for text in says:
        assert text in str(error.value)


def test_the_axes_are_named_as_they_were_read() -> None:
    with pytest.raises(LoDError, match=r"\[longest, sequences, \.\.\.\]"):
        LoDTensor.from_padded(torch.zeros(2, 3), [1, 1], batch_first=False)


# Packed


@given(lod_tensors(min_length=1))
def test_packed_there_and_back(x: LoDTensor) -> None:
    assert_same(LoDTensor.from_packed(x.to_packed()), last_level(x))


@given(lod_tensors(min_length=1))
def test_packed_is_that_of_torch(x: LoDTensor) -> None:
    sequences = last_sequences(x)
    if not sequences:
        return  # torch cannot pack none
    ours, expected = x.to_packed(), pack_sequence(sequences, enforce_sorted=False)
    assert torch.equal(ours.batch_sizes, expected.batch_sizes)
    assert ours.batch_sizes.device.type == "cpu"
    padded, lengths = pad_packed_sequence(ours, batch_first=True)
    assert lengths.tolist() == [len(s) for s in sequences]
    assert torch.equal(padded, pad_sequence(sequences, batch_first=True))
    assert_same(LoDTensor.from_packed(expected), last_level(x))


def test_packed_sorted_by_the_caller() -> None:
    sequences = [torch.arange(3), torch.arange(10, 12), torch.arange(20, 21)]
    packed = pack_sequence(sequences, enforce_sorted=True)
    assert packed.unsorted_indices is None
    x = LoDTensor.from_packed(packed)
    assert [s.tolist() for s in x] == [s.tolist() for s in sequences]


def test_packed_goes_through_an_lstm() -> None:
    x = ragged([3, 5, 1], 4)
    lstm = torch.nn.LSTM(4, 2).double()
    y = LoDTensor.from_packed(lstm(x.to_packed())[0])
    for got, sequence in zip(y, x, strict=True):
        torch.testing.assert_close(got, lstm(sequence)[0])


def test_an_empty_sequence_cannot_be_packed() -> None:
    with pytest.raises(LoDError) as error:
        ragged([2, 0, 1, 0]).to_packed()
    assert "cannot hold an empty sequence" in str(error.value)
    assert "sequence 1 has length 0 (2 of 4 are empty)" in str(error.value)
    x = ragged([2, 0, 1, 0])
    kept = x.select_sequences((x.lengths() > 0).nonzero()[:, 0])
    assert_same(LoDTensor.from_packed(kept.to_packed()), kept)


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (torch.zeros(3), "takes a PackedSequence"),
        (PackedSequence(torch.zeros(3), torch.tensor([2, 2])), "add up to the rows"),
        (PackedSequence(torch.zeros(3), torch.tensor([1, 2])), "never rise"),
        (PackedSequence(torch.zeros(2), torch.tensor([2, 0])), "positive"),
        (PackedSequence(torch.zeros(3), torch.tensor([2, 1]), None, torch.tensor([0, 0])), "an order of 2"),
    ],
    ids=["tensor", "rows", "rising", "zero", "order"],
)
def test_bad_packed(packed: object, says: str) -> None:
    with pytest.raises(LoDError, match=says):
        LoDTensor.from_packed(packed)  # type: ignore[arg-type]


# Nested


@given(lod_tensors())
def test_nested_there_and_back(x: LoDTensor) -> None:
    nested = x.to_nested()
    assert [s.tolist() for s in nested.unbind()] == [s.tolist() for s in last_sequences(x)]
    back = LoDTensor.from_nested(nested)
    assert_same(back, last_level(x))
    assert back.values.data_ptr() == nested.values().data_ptr() == x.values.data_ptr()  # type: ignore[attr-defined]


def test_nested_tensors_of_one_structure_have_offsets_that_are_theirs() -> None:
    x = ragged(LENGTHS, 2)
    assert_same(LoDTensor.from_nested(x.to_nested() + torch.relu(x).to_nested()), x + torch.relu(x))
    for _ in range(2):
        x.to_nested().offsets().zero_()  # type: ignore[attr-defined]
        assert x.lengths().tolist() == [len(part) for part in x.to_nested().unbind()] == list(LENGTHS)


def test_nested_of_torch() -> None:
    sequences = [torch.randn(n, 2) for n in LENGTHS]
    x = LoDTensor.from_nested(torch.nested.nested_tensor(sequences, layout=torch.jagged))
    assert all(torch.equal(a, b) for a, b in zip(x, sequences, strict=True))
    y = LoDTensor.from_nested(torch.relu(x.to_nested()) * 2)
    assert_same(y, torch.relu(x) * 2)


def test_offsets_of_a_nested_tensor_are_not_those_of_what_it_was_made_of() -> None:
    x = ragged(LENGTHS, 2)
    lengths, nested = x.lengths(), x.to_nested()
    assert (nested + torch.relu(x).to_nested()).is_nested  # torch takes other offsets for other sequences
    nested.offsets().zero_()  # type: ignore[attr-defined]
    assert torch.equal(x.lengths(), lengths)
    assert torch.equal(LoDTensor.from_nested(x.to_nested()).lengths(), lengths)


def test_nested_with_holes() -> None:
    table = torch.arange(30).reshape(3, 5, 2)
    starts, counts = torch.tensor([0, 1, 2]), torch.tensor([2, 0, 3])
    x = LoDTensor.from_nested(torch.nested.narrow(table, 1, starts, counts, layout=torch.jagged))
    assert [s.tolist() for s in x] == [table[0, :2].tolist(), [], table[2, 2:].tolist()]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.zeros(3), "takes a NestedTensor"),
        (lambda: [torch.zeros(3)], "takes a NestedTensor"),
        (lambda: torch.nested.nested_tensor([torch.zeros(3)], layout=torch.strided), "jagged layout"),
        (lambda: ragged(LENGTHS, 2).to_nested().transpose(1, 2), "must be dimension 1"),
    ],
    ids=["tensor", "list", "strided", "transposed"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_bad_nested(make, says: str) -> None:
    with pytest.raises(LoDError, match=says):
        LoDTensor.from_nested(make())


def test_indices_go_to_the_device_of_the_values() -> None:
    x = ragged([3, 1, 2], 2).to("meta")
    assert x.to_packed().data.device.type == "meta"
    for y in (LoDTensor.from_padded(*x.to_padded()), x.select_sequences([2])):
        assert y.device.type == "meta"
        assert y.lod[0].device.type == "cpu"


# Gradients

ROUND_TRIPS = {
    "padded": lambda x: LoDTensor.from_padded(*x.to_padded(padding_value=3.0)),
    "padded, time first": lambda x: LoDTensor.from_padded(*x.to_padded(batch_first=False), batch_first=False),
    "packed": lambda x: LoDTensor.from_packed(x.to_packed()),
    "nested": lambda x: LoDTensor.from_nested(x.to_nested()),
    "selected": lambda x: x.select_sequences([3, 0, 3]),
}


@pytest.mark.parametrize("trip", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_round_trips_pass_gradcheck(trip) -> None:
    x = ragged([3, 1, 2, 2], 2)
    values = x.values.requires_grad_()

    def run(v: torch.Tensor) -> torch.Tensor:
        return trip(x.with_values(v)).values

    assert torch.autograd.gradcheck(run, (values,))
    if trip is not ROUND_TRIPS["nested"]:
        assert torch.autograd.gradgradcheck(run, (values,))


def test_the_gradient_of_a_round_trip_is_that_of_the_rows() -> None:
    x = ragged(LENGTHS, 2)
    values, weight = x.values.requires_grad_(), torch.randn(14, 2, dtype=torch.float64)
    trip = ROUND_TRIPS["nested"](ROUND_TRIPS["padded"](x.with_values(values)))
    (trip.values * weight).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, weight)


def test_padding_gets_no_gradient() -> None:
    padded = torch.randn(2, 3, requires_grad=True)
    LoDTensor.from_padded(padded, [2, 0]).values.sum().backward()
    assert padded.grad is not None
    assert padded.grad.tolist() == [[1, 1, 0], [0, 0, 0]]
