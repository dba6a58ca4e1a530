"""TensorArray.unpack and pack against plain Python lists."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covering import every, few
from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.unpack import take_elements
from stepnet.errors import ArrayError, LoDError
from strategies import ragged_lengths


def nested(x):
    """A tensor as a list of rows, a LoDTensor as nested lists of rows, cut by its offsets."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    items = x.values.tolist()
    for offsets in reversed([level.tolist() for level in x.lod]):
        items = [items[begin:end] for begin, end in itertools.pairwise(offsets)]
    return items


def sequences_of(x, level):
    """The sequences of a level, in batch order."""
    items = nested(x)
    for _ in range(level):
        items = [inner for outer in items for inner in outer]
    return items


def steps_of(x, level, sort):
    """What unpack means: the t-th element of each sequence longer than t."""
    sequences = sequences_of(x, level)
    if sort:
        sequences = sorted(sequences, key=len, reverse=True)  # stable
    longest = max(map(len, sequences), default=0)
    return [[sequence[t] for sequence in sequences if len(sequence) > t] for t in range(longest)]


def flat(items):
    """The numbers in nested lists."""
    return [number for item in items for number in flat(item)] if isinstance(items, list) else [items]


def ragged(lengths, features=(), dtype=torch.float64):
    """Rows numbered from 0 (in every feature, plus a hundredth per feature)."""
    rows = int(sum(lengths[-1]))
    width = int(torch.tensor(features).prod())
    values = torch.arange(rows, dtype=dtype)[:, None] + torch.arange(width, dtype=dtype) / 100
    return LoDTensor.from_lengths(values.reshape(rows, *features), lengths)


def same(a, b):
    assert [level.tolist() for level in a.lod] == [level.tolist() for level in b.lod]
    assert a.values.dtype == b.values.dtype
    assert a.values.shape == b.values.shape
    assert torch.equal(a.values, b.values)


LENGTHS = {
    "worked example": [[3, 6, 1]],
    "with an empty one": [[3, 6, 0, 1]],
    "sorted": [[5, 3, 3, 1, 0]],
    "ascending": [[0, 1, 2, 5]],
    "length one": [[1, 1, 1]],
    "batch of one": [[4]],
    "batch of none": [[]],
    "only empty": [[0, 0]],
    "two levels": [[2, 3], [3, 6, 2, 6, 3]],
    "two levels, inner empty": [[1, 3, 0, 2], [2, 0, 3, 0, 0, 1]],
    "two levels, only inner empty": [[2, 1], [0, 0, 0]],
    "two levels, none": [[], []],
    "two levels, outer empty": [[0, 0], []],
    "three levels": [[2, 0, 1], [1, 2, 3], [2, 0, 1, 3, 0, 2]],
    "three levels, none": [[], [], []],
}
CASES = [
    pytest.param(lengths, level, sort, id=f"{name}-level{level}-{'sorted' if sort else 'batch order'}")
    for name, lengths in LENGTHS.items()
    for level in range(len(lengths))
    for sort in (True, False)
]


@pytest.mark.parametrize(("lengths", "level", "sort"), every(4, CASES))
def test_steps_and_round_trip(lengths, level, sort):
    x = ragged(lengths, features=(2,))
    array, indices_map = TensorArray.unpack(x, level, sort)
    expected = steps_of(x, level, sort)
    assert [nested(value) for value in array] == expected
    assert [len(value) for value in array] == [len(step) for step in expected]
    same(array.pack(level, indices_map, x.lod[:level]), x)


@given(lengths=ragged_lengths(), data=st.data(), sort=st.booleans())
def test_any_batch_comes_back(lengths, data, sort):
    level = data.draw(st.integers(0, len(lengths) - 1))
    features = data.draw(st.sampled_from([(), (3,), (2, 3), (0,)]))
    dtype = data.draw(st.sampled_from([torch.float64, torch.int32, torch.bool]))
    x = ragged(lengths, features, torch.float64)
    x = LoDTensor(x.values.to(dtype), x.lod)
    array, indices_map = TensorArray.unpack(x, level, sort_by_length=sort)
    assert [nested(value) for value in array] == steps_of(x, level, sort)
    same(array.pack(level, indices_map, x.lod[:level]), x)


# -------------------------------------------------------------------------------------- the worked examples


@pytest.mark.parametrize("lengths", [[3, 6, 1], [3, 6, 0, 1]], ids=str)
def test_worked_example(lengths):
    array, indices_map = TensorArray.unpack(LoDTensor.from_lengths(torch.arange(10), [lengths]))
    assert [value.tolist() for value in array] == [[3, 0, 9], [4, 1], [5, 2], [6], [7], [8]]
    assert indices_map.dtype == torch.int32
    last = len(lengths) - 1
    assert indices_map.tolist()[:3] == [[3, 9, 1], [0, 3, 0], [9, 10, last]]
    assert indices_map.tolist()[3:] == [[9, 9, 2]][: last - 2]


def test_worked_example_in_batch_order():
    x = LoDTensor.from_lengths(torch.arange(10), [[3, 6, 1]])
    array, indices_map = TensorArray.unpack(x, sort_by_length=False)
    assert [value.tolist() for value in array] == [[0, 3, 9], [1, 4], [2, 5], [6], [7], [8]]
    assert indices_map.tolist() == [[0, 3, 0], [3, 9, 1], [9, 10, 2]]


def test_worked_example_of_two_levels():
    x = LoDTensor.from_lengths(torch.arange(20), [[2, 3], [3, 6, 2, 6, 3]])
    array, _ = TensorArray.unpack(x, level=0)
    assert [value.recursive_sequence_lengths() for value in array] == [[[2, 3]], [[6, 6]], [[3]]]
    assert [value.values.tolist() for value in array] == [
        [9, 10, 0, 1, 2],
        [*range(11, 17), *range(3, 9)],
        [17, 18, 19],
    ]
    inner, indices_map = TensorArray.unpack(x, level=1)
    assert inner[0].tolist() == [3, 11, 0, 17, 9]
    assert indices_map.tolist() == [[3, 9, 1], [11, 17, 3], [0, 3, 0], [17, 20, 4], [9, 11, 2]]


def test_equal_lengths_keep_their_order():
    _, indices_map = TensorArray.unpack(LoDTensor.from_lengths(torch.arange(9), [[2, 3, 2, 2]]))
    assert indices_map[:, 2].tolist() == [1, 0, 2, 3]


# ------------------------------------------------------------------------------------- memory and gradients


@pytest.mark.parametrize("lengths", [[[3, 6, 1]], [[2, 3], [3, 6, 2, 6, 3]]], ids=["tensors", "lodtensors"])
def test_steps_are_views_of_one_table_made_by_one_split(lengths):
    x = ragged(lengths, (2,))
    x.values.requires_grad_()
    array, _ = TensorArray.unpack(x)
    values = [value.values if isinstance(value, LoDTensor) else value for value in array]
    begin = values[0].data_ptr()
    for value in values:
        assert value.untyped_storage().data_ptr() == begin
        assert value.data_ptr() == begin + value.storage_offset() * value.element_size()
    assert begin != x.values.data_ptr()
    assert len({value.grad_fn for value in values}) == 1
    assert type(values[0].grad_fn).__name__ == "SplitWithSizesBackward0"


@pytest.mark.parametrize(("lengths", "level", "sort"), every(4, CASES))
def test_gradients_are_those_of_hand_code(lengths, level, sort):
    """A loop whose step depends on t, against the same function of each row's own t."""
    x = ragged(lengths, (3,))
    x.values.copy_(torch.randn_like(x.values)).requires_grad_()
    array, indices_map = TensorArray.unpack(x, level, sort)
    if not array.size():
        packed = array.pack(level, indices_map, x.lod[:level])
    else:
        outputs = TensorArray()
        for step, value in enumerate(array):
            scale = torch.tensor(float(step + 1), dtype=torch.float64)
            if isinstance(value, LoDTensor):
                outputs.write(step, LoDTensor((value.values * scale).sin(), value.lod))
            else:
                outputs.write(step, (value * scale).sin())
        packed = outputs.pack(level, indices_map, x.lod[:level])

    # By hand: the step of each row, from nested lists of row numbers.
    numbers = LoDTensor(torch.arange(len(x.values)), x.lod)
    step_of = torch.zeros(len(x.values), 1, dtype=torch.float64)
    for sequence in sequences_of(numbers, level):
        for step, element in enumerate(sequence):
            step_of[flat(element)] = step + 1.0
    by_hand = x.values.detach().clone().requires_grad_()
    expected = (by_hand * step_of).sin()

    torch.testing.assert_close(packed.values, expected, rtol=0, atol=1e-15)
    weights = torch.randn_like(expected)
    (grad,) = torch.autograd.grad((packed.values * weights).sum(), x.values)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), by_hand)
    torch.testing.assert_close(grad, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("sort", few([True, False], [True]))
def test_unpack_and_pack_pass_gradcheck_of_second_order(sort):
    lod = [[0, 2, 2, 3], [0, 1, 1, 4]]
    values = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def squared(values):
        array, indices_map = TensorArray.unpack(LoDTensor(values, lod), 0, sort)
        for step, value in enumerate(array):
            array.write(step, LoDTensor(value.values**3 * (step + 1), value.lod))
        return array.pack(0, indices_map).values

    assert torch.autograd.gradcheck(squared, (values,))
    assert torch.autograd.gradgradcheck(squared, (values,))


# -------------------------------------------------------------------------------------------- other values


def test_a_step_may_change_the_features_and_drop_the_levels_below():
    x = LoDTensor.from_lengths(torch.arange(20.0), [[2, 3], [3, 6, 2, 6, 3]])
    array, indices_map = TensorArray.unpack(x)
    sums = TensorArray()
    for step, value in enumerate(array):
        sums.write(step, torch.stack([element.sum() for element in value])[:, None].expand(-1, 2))
    packed = sums.pack(0, indices_map)
    assert packed.recursive_sequence_lengths() == [[2, 3]]
    assert packed.values.tolist() == [[3, 3], [33, 33], [19, 19], [81, 81], [54, 54]]


def test_a_step_may_change_the_lengths_below():
    x = LoDTensor.from_lengths(torch.arange(5), [[1, 2], [2, 0, 3]])
    array, indices_map = TensorArray.unpack(x)
    doubled = TensorArray()
    for step, value in enumerate(array):
        values = value.values.repeat_interleave(2)
        doubled.write(step, LoDTensor.from_lengths(values, [value.lengths() * 2]))
    packed = doubled.pack(0, indices_map)
    assert packed.recursive_sequence_lengths() == [[1, 2], [4, 0, 6]]
    assert packed.values.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_map_of_int64_and_lists_of_offsets_will_do():
    x = LoDTensor.from_lengths(torch.arange(20), [[2, 3], [3, 6, 2, 6, 3]])
    array, indices_map = TensorArray.unpack(x, level=1)
    same(array.pack(1, indices_map.long(), [[0, 2, 5]]), x)


def test_unpacked_steps_can_be_concatenated():
    array, _ = TensorArray.unpack(LoDTensor.from_lengths(torch.arange(10), [[3, 6, 1]]))
    assert array.concat().tolist() == [3, 0, 9, 4, 1, 5, 2, 6, 7, 8]


def test_take_elements_moves_whole_elements():
    x = LoDTensor.from_lengths(torch.arange(6), [[1, 2], [2, 0, 4]])
    swapped = take_elements(x, 0, torch.tensor([0, 2, 1]))
    assert nested(swapped) == [[[0, 1]], [[2, 3, 4, 5], []]]
    assert nested(take_elements(x, 0, torch.tensor([2, 2, 1]), drop_level=True)) == [[2, 3, 4, 5]] * 2 + [[]]
    assert take_elements(x, 1, torch.tensor([5, 0]), drop_level=True).tolist() == [5, 0]


# ------------------------------------------------------------------------------------------------- errors

X = LoDTensor.from_lengths(torch.zeros(10, 2), [[3, 6, 1]])
X2 = LoDTensor.from_lengths(torch.zeros(20), [[2, 3], [3, 6, 2, 6, 3]])
GOOD = [[3, 9, 1], [0, 3, 0], [9, 10, 2]]


def pack(indices_map, x=X, level=0, lod=None, change=None):
    array, good = TensorArray.unpack(x, level)
    if change is not None:
        change(array)
    return array.pack(level, good if indices_map is None else indices_map, lod)


ERRORS = {
    "unpack tensor": (
        lambda: TensorArray.unpack(torch.zeros(3)),
        ["cuts LoDTensors", "float32[3]", "unstack"],
    ),
    "unpack level": (lambda: TensorArray.unpack(X, 1), ["no level 1", "LoDTensor of 1 level", "to 0"]),
    "unpack negative": (lambda: TensorArray.unpack(X, -2), ["no level -2", "0, the outermost", "from -1"]),
    "unpack float level": (lambda: TensorArray.unpack(X, 0.0), ["TensorArray.unpack: level must be an int"]),
    "map shape": (
        lambda: pack(torch.zeros(3, 2).int()),
        ["(begin, end, index)", "int32[3, 2]", "[sequences, 3]"],
    ),
    "map dtype": (lambda: pack(torch.zeros(3, 3)), ["(begin, end, index)", "float32[3, 3]"]),
    "map list": (lambda: pack(GOOD), ["(begin, end, index)", "list"]),
    "map twice": (
        lambda: pack(torch.tensor([[3, 9, 1], [0, 3, 1], [9, 10, 2]])),
        ["each sequence once", "[1, 1, 2]", "below 3"],
    ),
    "map beyond": (lambda: pack(torch.tensor([[0, 10, 5]])), ["each sequence once", "[5]"]),
    "map gap": (
        lambda: pack(torch.tensor([[4, 9, 1], [0, 3, 0], [9, 10, 2]])),
        ["without a gap", "sequence 1 from 4 to 9", "from 3 to"],
    ),
    "map start": (
        lambda: pack(torch.tensor([[2, 8, 0]])),
        ["without a gap", "sequence 0 from 2 to 8", "from 0"],
    ),
    "map falls": (lambda: pack(torch.tensor([[0, -1, 0]])), ["sequence 0 from 0 to -1"]),
    "map huge": (lambda: pack(torch.tensor([[0, 2**62, 0]])), ["6 steps", f"{2**62} steps"]),
    "steps": (
        lambda: pack(None, change=lambda array: array.write(6, torch.zeros(1, 2))),
        ["one step per element of the longest", "7 steps", "6 steps, as indices_map says"],
    ),
    "elements": (
        lambda: pack(None, change=lambda array: array.write(2, torch.zeros(3, 2))),
        [
            "step 2 must hold one element per sequence longer than 2",
            "3 elements",
            "2 elements, as indices_map",
        ],
    ),
    "hole": (lambda: TensorArray(size=6).pack(0, torch.tensor(GOOD)), ["nothing was written at index 0"]),
    "empty": (
        lambda: TensorArray().pack(0, torch.zeros(0, 3).int()),
        ["TensorArray.pack: the array is empty"],
    ),
    "features": (
        lambda: pack(None, change=lambda array: array.write(1, torch.zeros(2, 3))),
        ["TensorArray.pack: the values at index 0 and index 1", "float32[3, 2] and Tensor float32[2, 3]"],
    ),
    "rank 0": (
        lambda: pack(torch.tensor([[0, 1, 0]]), LoDTensor(torch.zeros(1), [[0, 1]]), change=scalar_step),
        ["a row per element", "float32[]"],
    ),
    "no lod": (lambda: pack(None, X2, 1), ["the levels above level 1", "0 level(s)", "lod=x.lod[:1]"]),
    "lod at level 0": (lambda: pack(None, X, 0, X.lod), ["the levels above level 0", "1 level(s)"]),
    "lod number": (lambda: pack(None, X2, 1, 5), ["the levels above level 1", "int"]),
    "pack negative": (
        lambda: TensorArray(unstack_from=torch.ones(1, 2)).pack(-2, torch.tensor(GOOD)),
        ["no level -2 between", "0 level(s) above, 0 below", "level -1 or 0"],
    ),
    "pack an array": (
        lambda: TensorArray().pack(TensorArray(), torch.tensor(GOOD)),  # the paper's ta.pack(ta, indice_map)
        ["packs the array that it is called on", "step_outputs.pack(level, indices_map)"],
    ),
}


def scalar_step(array):
    array.write(0, torch.tensor(1.0))


@pytest.mark.parametrize("case", ERRORS, ids=str)
def test_errors_say_where_what_and_what_to_do(case):
    call, parts = ERRORS[case]
    with pytest.raises(ArrayError) as caught:
        call()
    for part in parts:
        assert re.search(re.escape(part), str(caught.value)), f"{part!r} is missing in:\n{caught.value}"


def test_levels_above_must_describe_the_sequences():
    with pytest.raises(LoDError, match="level 0 must end at"):
        pack(None, X2, 1, [[0, 2, 4]])
