"""LoDTensor: what it is made from, what it refuses, how it is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.errors import FrozenError, LoDError, LoDIndexError, RowMixError
from strategies import lod_tensors, nested_rows, plain, ragged_lengths

TWO = [[0, 2, 3], [0, 3, 5, 9]]


def two_levels() -> LoDTensor:
    return LoDTensor(torch.arange(9.0), TWO)


# Made from


@given(ragged_lengths())
def test_lengths_and_offsets_mean_the_same(lengths: list[list[int]]) -> None:
    values = torch.arange(sum(lengths[-1]))
    x = LoDTensor.from_lengths(values, lengths)
    offsets = [[sum(level[:i]) for i in range(len(level) + 1)] for level in lengths]
    assert [level.tolist() for level in x.lod] == offsets
    y = LoDTensor(values, offsets)
    assert y.recursive_sequence_lengths() == lengths
    assert [y.lengths(k).tolist() for k in range(len(lengths))] == lengths
    assert y.lengths().tolist() == lengths[-1]
    assert y.lod_level == len(lengths)
    assert len(y) == len(lengths[0])


@given(ragged_lengths())
def test_sequences_are_the_rows_counted_off(lengths: list[list[int]]) -> None:
    values = torch.arange(sum(lengths[-1]) * 2).reshape(-1, 2)
    x = LoDTensor.from_lengths(values, lengths)
    meaning = plain(nested_rows(values, lengths))
    assert plain(list(x)) == meaning
    assert [plain(x[i]) for i in range(len(x))] == meaning
    assert [plain(x[i - len(x)]) for i in range(len(x))] == meaning


@given(lod_tensors())
def test_from_sequences_takes_apart_what_iteration_gives(x: LoDTensor) -> None:
    if x.shape[0] == 0:
        return  # nothing tells the shape of a row
    y = LoDTensor.from_sequences(list(x))
    assert y.recursive_sequence_lengths() == x.recursive_sequence_lengths()
    assert torch.equal(y.values, x.values)


@pytest.mark.parametrize(
    ("sequences", "lengths"),
    [
        pytest.param([], [[]], id="no sequences"),
        pytest.param([[], []], [[0, 0]], id="two empty lists"),
        pytest.param([torch.zeros(0, 3)], [[0]], id="one empty sequence"),
        pytest.param([torch.zeros(2), []], [[2, 0]], id="an empty list as an empty sequence"),
        pytest.param([[], [torch.zeros(2, 3)]], [[0, 1], [2]], id="an empty list beside a full one"),
        pytest.param([[torch.zeros(2, 3)], []], [[1, 0], [2]], id="an empty list after a full one"),
        pytest.param(([torch.zeros(1)], (torch.zeros(2), torch.zeros(0))), [[1, 2], [1, 2, 0]], id="tuples"),
        pytest.param([[[torch.zeros(1)]], [[], []]], [[1, 2], [1, 0, 0], [1]], id="three levels"),
    ],
)
def test_from_sequences(sequences: object, lengths: list[list[int]]) -> None:
    assert LoDTensor.from_sequences(sequences).recursive_sequence_lengths() == lengths


def test_from_sequences_is_differentiable() -> None:
    parts = [torch.randn(n, 2, requires_grad=True) for n in (2, 0, 3)]
    x = LoDTensor.from_sequences(parts)
    weight = torch.randn(5, 2)
    (x.values * weight).sum().backward()
    grads = [p.grad for p in parts]
    assert all(
        g is not None and torch.equal(g, w) for g, w in zip(grads, weight.split([2, 0, 3]), strict=True)
    )


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, torch.tensor, lambda l: torch.tensor(l, dtype=torch.int32)]
)
def test_offsets_may_be_any_integers(kind) -> None:
    x = LoDTensor(torch.zeros(9), [kind(level) for level in TWO])
    assert [level.dtype for level in x.lod] == [torch.int64, torch.int64]
    assert x.recursive_sequence_lengths() == [[2, 1], [3, 2, 4]]


@pytest.mark.parametrize(
    ("rows", "lod"),
    [
        pytest.param(0, [[0]], id="batch of none"),
        pytest.param(0, [[0], [0]], id="batch of none, two levels"),
        pytest.param(0, [[0, 0]], id="one empty sequence"),
        pytest.param(0, [[0, 0, 2], [0, 0, 0]], id="empty at both levels"),
        pytest.param(3, [[0, 0, 3, 3]], id="empty at both ends"),
    ],
)
def test_empty_is_legal(rows: int, lod: list[list[int]]) -> None:
    x = LoDTensor(torch.zeros(rows, 2), lod)
    assert len(list(x)) == len(x) == len(lod[0]) - 1


# Refused


@pytest.mark.parametrize(
    ("rows", "lod", "says"),
    [
        (3, [[1, 3]], ["level 0 must start at 0", "1 at index 0 of [1, 3]", "from_lengths"]),
        (3, [[0, 2, 1, 3]], ["level 0 must never fall", "2 at index 1, then 1 at index 2"]),
        (9, [[0, 2, 3], [0, 3, 2, 9]], ["level 1 must never fall", "3 at index 1, then 2 at index 2"]),
        (
            4,
            [[0, 3]],
            ["level 0 must end at the number of rows", "3, at index 1", "4 (values have shape [4])"],
        ),
        (
            9,
            [[0, 2], [0, 3, 5, 9]],
            ["level 0 must end at the number of sequences of level 1", "2, at", "3 ("],
        ),
        (3, [[]], ["level 0 must have at least one offset"]),
        (3, [], ["at least one level"]),
        (3, [0, 3], ["list of levels", "[[...]]"]),
        (3, torch.tensor([[0, 3]]), ["list of levels", "shape [1, 2]"]),
        (3, 3, ["list of levels"]),
        (3, "03", ["list of levels"]),
        (3, [[0, 1.5, 3]], ["level 0 must be a 1-D list or tensor of integers", "1.5"]),
        (3, [torch.tensor([0.0, 3.0])], ["1-D list or tensor of integers", "float32"]),
        (3, [torch.tensor([False, True])], ["1-D list or tensor of integers", "bool"]),
        (3, [[0, "3"]], ["1-D list or tensor of integers"]),
        (3, [[0, None]], ["1-D list or tensor of integers"]),
        (3, [[[0, 3]]], ["1-D list or tensor of integers"]),
        (3, [torch.tensor([0, 3], device="meta")], ["level 0: a traced, fake or meta", "shape [2]"]),
        (3, [FakeTensorMode().from_tensor(torch.tensor([0, 3]))], ["level 0: a traced, fake", "shape [2]"]),
        (3, [[0, 2**70]], ["1-D list or tensor of integers"]),
        (3, [[0, -1, 3]], ["0 at index 0, then -1 at index 1"]),
        (3, [[0, 2**62]], ["must end at the number of rows"]),
    ],
    ids=str,
)
def test_bad_offsets(rows: int, lod: object, says: list[str]) -> None:
    with pytest.raises(LoDError) as error:
        LoDTensor(torch.zeros(rows), lod)  # type: ignore[arg-type]
    for text in says:
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([[2, -1]], ["lengths of level 0 must not be negative", "-1 at index 1"]),
        ([[2, 2], [1, 1, 1]], ["level 0 must add up to the number of sequences of level 1", "[2, 2]", "4"]),
        ([[1, 1]], ["last level must add up to the number of rows", "from_padded"]),
        ([2, 1], ["list of levels", "[[...]]"]),
        ([[2**62, 2**62, 2**62]], ["more rows than a tensor can hold"]),
    ],
    ids=str,
)
def test_bad_lengths(lengths: list[list[int]], says: list[str]) -> None:
    with pytest.raises(LoDError) as error:
        LoDTensor.from_lengths(torch.zeros(3), lengths)
    for text in says:
        assert text in str(error.value)


def test_a_long_list_of_offsets_is_cut_short_in_the_error() -> None:
    with pytest.raises(LoDError) as error:
        LoDTensor(torch.zeros(3), [range(5, 1005)])
    assert "[5, 6, 7, 8, 9, 10, 11, ..., 1003, 1004] (1000 in all)" in str(error.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (torch.tensor(1.0), "dimension for rows"),
        ([1.0, 2.0, 3.0], "list [1.0, 2.0, 3.0]"),
        (None, "NoneType"),
        (torch.nested.nested_tensor([torch.zeros(3)], layout=torch.jagged), "shape [rows, ...]"),
    ],
    ids=["scalar", "list", "none", "nested"],
)
def test_bad_values(values: object, says: str) -> None:
    with pytest.raises(LoDError) as error:
        LoDTensor(values, [[0, 3]])  # type: ignore[arg-type]
    assert says in str(error.value)


def loop_list() -> list:
    inner: list = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("sequences", "says"),
    [
        (torch.zeros(3), ["takes a list of sequences"]),
        (7, ["takes a list of sequences"]),
        ({"a": torch.zeros(3)}, ["takes a list of sequences"]),
        ([torch.zeros(3), 4], ["sequence [1] must be a tensor", "int 4"]),
        ([torch.zeros(3), torch.tensor(4.0)], ["sequence [1] has no rows"]),
        ([torch.zeros(3), [torch.zeros(2)]], ["equally deep", "at [1][0], 2 deep", "at [0], 1 deep"]),
        ([torch.zeros(3), []], ["equally deep"])
        if False
        else ([torch.zeros(3), [[]]], ["equally deep", "[0]"]),
        (
            [torch.zeros(3, 2), torch.zeros(3, 5)],
            ["sequence [1] does not fit", "[5]", "[2], as in sequence [0]"],
        ),
        ([torch.zeros(3), torch.zeros(3).double()], ["sequence [1] does not fit", "float64"]),
        (loop_list(), ["nested more than"]),
    ],
    ids=[
        "tensor",
        "number",
        "dict",
        "number inside",
        "scalar",
        "deeper",
        "empty deeper",
        "shape",
        "dtype",
        "loop",
    ],
)
def test_bad_sequences(sequences: object, says: list[str]) -> None:
    with pytest.raises(LoDError) as error:
        LoDTensor.from_sequences(sequences)
    for text in says:
        assert text in str(error.value)


# Read


@given(lod_tensors(), st.data())
def test_slices_are_those_of_a_list(x: LoDTensor, data: st.DataObject) -> None:
    cut = data.draw(st.slices(len(x)))
    assert plain(x[cut]) == plain(list(x))[cut]


@given(lod_tensors(), st.data())
def test_select_sequences_takes_any_order(x: LoDTensor, data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, max(len(x) - 1, 0)), max_size=6 if len(x) else 0))
    assert plain(x.select_sequences(picks)) == [plain(x[i]) for i in picks]


@pytest.mark.parametrize("index", [1, np.int64(1), torch.tensor(1), torch.tensor(1, dtype=torch.int32)])
def test_an_index_is_any_integer(index) -> None:
    assert two_levels()[index].recursive_sequence_lengths() == [[4]]


@pytest.mark.parametrize(
    "index",
    [True, "a", None, ..., (0, 1), [0, 1], 1.0, torch.tensor([0, 1]), torch.tensor(True), torch.tensor(1.0)],
    ids=str,
)
def test_an_index_is_never_rows(index: object) -> None:
    with pytest.raises(RowMixError, match="takes a sequence number"):
        two_levels()[index]


@pytest.mark.parametrize("index", [2, -3])
def test_a_sequence_out_of_range(index: int) -> None:
    with pytest.raises(LoDIndexError, match=f"sequence {index} of a LoDTensor of 2 sequences"):
        two_levels()[index]


@pytest.mark.parametrize(
    ("indices", "says"), [([0, 2], "2 at index 1"), ([-1], "-1 at index 0"), ([0.5], "integers")]
)
def test_select_sequences_refuses(indices: list, says: str) -> None:
    with pytest.raises(LoDError, match=says):
        two_levels().select_sequences(indices)


@pytest.mark.parametrize("level", [2, -3])
def test_a_level_out_of_range(level: int) -> None:
    with pytest.raises(LoDError, match="-2 to 1"):
        two_levels().lengths(level)


def test_reading_passes_gradients() -> None:
    values = torch.randn(9, 2, requires_grad=True)
    x = LoDTensor(values, TWO)
    for read in (lambda: x[0][1], lambda: x[1:].values[:2], lambda: x.select_sequences([0]).values[3:5]):
        values.grad = None
        read().sum().backward()
        assert values.grad is not None
        assert values.grad.sum() == 4
        assert set(values.grad.unique().tolist()) == {0.0, 1.0}


class Allocated(TorchDispatchMode):
    """Elements of all tensors that operators make."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor) and not t._is_view():
                self.total += t.numel()
        return out


def test_iterating_costs_in_proportion_to_the_rows_backward_too() -> None:
    def cost(n: int) -> int:
        x = LoDTensor.from_lengths(torch.ones(n, 8, requires_grad=True), [[1] * n])
        with Allocated() as allocated:
            torch.stack([s.sum() for s in x]).sum().backward()
        return allocated.total

    assert cost(400) < 5 * cost(100)


def test_with_values_and_map_keep_the_lod() -> None:
    x = two_levels()
    y = x.with_values(torch.ones(9, 5, dtype=torch.int32))
    z = x.map(lambda v: v.unsqueeze(1) * 2)
    assert y.structure is x.structure is z.structure
    assert torch.equal(z.values, x.values.unsqueeze(1) * 2)
    for bad in (lambda: x.with_values(torch.ones(8)), lambda: x.map(torch.sum)):
        with pytest.raises(LoDError, match="rows"):
            bad()


def test_detach_and_to() -> None:
    x = LoDTensor(torch.ones(9, requires_grad=True), TWO)
    assert x.requires_grad
    assert not x.detach().requires_grad
    assert x.detach().values.data_ptr() == x.values.data_ptr()
    y = x.to(torch.float64)
    assert y.dtype == torch.float64
    assert y.structure is x.structure
    assert x.to("meta").device.type == "meta"


def test_repr_tells_the_structure() -> None:
    x = two_levels()
    assert repr(x) == "LoDTensor(2 sequences, lengths [[2, 1], [3, 2, 4]], values [9] float32)"
    assert repr(x[1]) == "LoDTensor(1 sequence, lengths [[4]], values [4] float32)"
    learned = LoDTensor(torch.zeros(9, 2, requires_grad=True), TWO)
    assert "[9, 2] float32 requires_grad)" in repr(learned)
    assert "grad_fn=MulBackward0)" in repr(learned * 2)
    long = LoDTensor.from_lengths(torch.zeros(1000), [[1] * 1000])
    assert len(repr(long)) < 150


# Immutable


@pytest.mark.parametrize("name", ["values", "lod", "_values", "structure", "anything"])
def test_attributes_cannot_be_set_or_deleted(name: str) -> None:
    x = two_levels()
    with pytest.raises(FrozenError, match=name):
        setattr(x, name, torch.zeros(9))
    with pytest.raises(FrozenError, match=name):
        delattr(x, name)
    assert torch.equal(x.values, torch.arange(9.0))


def test_items_cannot_be_set() -> None:
    with pytest.raises(TypeError, match="item assignment"):
        two_levels()[0] = 1  # type: ignore[index]


def test_the_structure_cannot_change_through_an_alias() -> None:
    given_tensor, given_array = torch.tensor([0, 2, 3]), np.array([0, 3, 5, 9])
    x = LoDTensor(torch.arange(9.0), [given_tensor, given_array])
    lengths = torch.tensor([3, 2, 4])
    y = LoDTensor.from_lengths(torch.arange(9.0), [lengths])
    padded, padded_lengths = y.to_padded()
    z = LoDTensor.from_padded(padded, padded_lengths)
    given_tensor.zero_()
    given_array[:] = 0
    lengths.zero_()
    padded_lengths.zero_()
    x.lod[0].zero_()
    x.lengths().zero_()
    x[0].lod[0].zero_()
    assert x.recursive_sequence_lengths() == [[2, 1], [3, 2, 4]]
    assert y.recursive_sequence_lengths() == z.recursive_sequence_lengths() == [[3, 2, 4]]


def test_the_structure_itself_is_frozen() -> None:
    lod = LoD(TWO)
    with pytest.raises(FrozenError, match="rows"):
        lod.rows = 3
    with pytest.raises(FrozenError, match="rows"):
        del lod.rows


def test_truth_is_refused() -> None:
    with pytest.raises(LoDError, match="ambiguous"):
        bool(two_levels())
    with pytest.raises(LoDError, match="ambiguous"):
        assert two_levels() == two_levels()
