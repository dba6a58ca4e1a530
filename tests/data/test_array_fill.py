"""Arrays that are filled: unstack and unpack on an array and on the class, and write without an index."""

from __future__ import annotations

import copy
import inspect
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepnet import LoDTensor, Tape, TensorArray, layers
from stepnet.data.array import contents_of
from stepnet.errors import ArrayError
from stepnet.layers import Dense, Sequence
from stepnet.repeat import while_loop

X = torch.arange(24.0, dtype=torch.float64).reshape(4, 3, 2)


def before(kind):
    """Arrays that hold something: what is filled over."""
    array = TensorArray(size=9 if kind == "declared" else 0)
    if kind == "written":
        array.write(7, torch.zeros(5))
    if kind == "cut":
        array.unstack(torch.ones(30))
    if kind == "cut from nothing":
        array.unstack(torch.ones(0, 4))
    return array


KINDS = ["empty", "declared", "written", "cut", "cut from nothing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("x", [X, X[:1], X[:0]], ids=["4", "1", "0"])
def test_unstack_fills_as_a_new_array_is_made(kind, axis, x):
    array = before(kind)
    assert array.unstack(x, axis) is array
    made = TensorArray.unstack(x, axis)
    assert (array.size(), made.size()) == (x.shape[axis],) * 2
    assert torch.equal(array.stack(axis), x)
    assert torch.equal(made.stack(axis), x)
    assert contents_of(array).values.keys() == contents_of(made).values.keys()


@given(
    kind=st.sampled_from(KINDS),
    inner=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=4),
    level=st.integers(-2, 1),
    by_length=st.booleans(),
)
def test_unpack_fills_as_a_new_array_is_made(kind, inner, level, by_length):
    lengths = [[len(part) for part in inner], [n for part in inner for n in part]]
    x = LoDTensor.from_lengths(torch.arange(float(sum(lengths[1]))), lengths)
    array = before(kind)
    same, found = array.unpack(x, level, by_length)
    assert same is array
    made, wanted = TensorArray.unpack(x, level % 2, by_length)
    assert torch.equal(found, wanted)
    assert array.size() == made.size()
    above = x.lod[:level]
    for each, number in ((array, level), (made, level % 2)):
        again = each.pack(number, found, above)
        assert again.recursive_sequence_lengths() == x.recursive_sequence_lengths()
        assert torch.equal(again.values, x.values)


def test_negative_levels_count_from_the_last_of_the_result():
    x = LoDTensor.from_lengths(torch.arange(6), [[1, 2], [2, 0, 4]])
    array, found = TensorArray.unpack(x, -2)
    assert torch.equal(array.pack(-2, found).values, x.values)
    with pytest.raises(ArrayError, match=r"no level -1 between lod(?s:.)*0 level\(s\) above, 1 below"):
        array.pack(-1, found)


@pytest.mark.parametrize("call", ["unstack", "unpack"])
def test_what_cannot_be_cut_leaves_the_array_as_it_was(call):
    array = TensorArray.unstack(X)
    for wrong in (torch.tensor(1.0), "x", None):
        with pytest.raises(ArrayError):
            getattr(array, call)(wrong)
    with pytest.raises(ArrayError, match="no axis 3"):
        array.unstack(X, 3)
    assert torch.equal(array.stack(), X)


def test_a_method_taken_from_the_class_makes_an_array_at_each_call():
    cut = TensorArray.unstack
    first, second = cut(X), cut(X[:1])
    assert (first.size(), second.size()) == (4, 1)


@pytest.mark.parametrize("name", ["unstack", "unpack"])
def test_both_forms_say_what_they_do(name):
    for form in (getattr(TensorArray, name), getattr(TensorArray(), name)):
        assert "fills the array" in form.__doc__
        assert "self" not in inspect.signature(form).parameters


def test_a_copy_keeps_what_the_array_was():
    array = TensorArray.unstack(X)
    twin = copy.copy(array)
    array.unstack(X[:2])
    assert (array.size(), twin.size()) == (2, 4)
    assert torch.equal(twin.stack(), X)


def test_gradients_flow_through_what_fills():
    x = X.clone().requires_grad_()
    array = TensorArray()
    array.unstack(x, 1)
    array.write(array.read(0) * 3, True)
    array.stack().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[:, 0], torch.full((4, 2), 4.0, dtype=torch.float64))
    assert torch.equal(x.grad[:, 1:], torch.ones(4, 2, 2, dtype=torch.float64))


# ------------------------------------------------------------------------------- write without an index

APPENDS = {
    "write(v)": lambda a, v: a.write(v),
    "write(v, True)": lambda a, v: a.write(v, True),
    "write(v, data_shared=True)": lambda a, v: a.write(v, data_shared=True),
    "write(value=v)": lambda a, v: a.write(value=v),
    "write(value=v, data_shared=True)": lambda a, v: a.write(value=v, data_shared=True),
    "write(size, v)": lambda a, v: a.write(a.size(), v),
    "write(index=size, value=v)": lambda a, v: a.write(index=a.size(), value=v),
    "write(size, value=v)": lambda a, v: a.write(a.size(), value=v),
    "write(size, v, True)": lambda a, v: a.write(a.size(), v, True),
}


@pytest.mark.parametrize(
    "value", [torch.ones(2), torch.tensor(3), LoDTensor(torch.ones(2), [[0, 2]])], ids=str
)
@pytest.mark.parametrize("call", APPENDS.values(), ids=APPENDS)
def test_write_appends(call, value):
    array = TensorArray(size=2)
    call(array, value)
    call(array, value)
    assert array.size() == 4
    assert array.read(2) is value
    assert array.read(3) is value


@pytest.mark.parametrize("call", [lambda a, v: a.write(v, False), lambda a, v: a.write(v, data_shared=False)])
def test_append_of_a_copy(call):
    array, value = TensorArray(), torch.ones(2, requires_grad=True)
    call(array, value)
    assert array.read(0).data_ptr() != value.data_ptr()
    array.read(0).sum().backward()
    assert value.grad is not None


@pytest.mark.parametrize("value", [3, None, "x", [torch.ones(1)]], ids=repr)
def test_only_values_are_appended(value):
    with pytest.raises(ArrayError, match=f"index 0 is no tensor(?s:.)*{re.escape(type(value).__name__)}"):
        TensorArray().write(value)


# --------------------------------------------------------------- where calls are recorded, or rows leave


def test_on_a_tape_it_is_recorded():
    with Tape() as tape:
        x, s = layers.data("x", Dense(2)), layers.data("s", Sequence(Dense(2)))
        filled, made = TensorArray(), TensorArray.unstack(x, 0)
        filled.unstack(x)
        made.write(made.read(0) * 2, True)
        ragged = TensorArray()
        _, found = ragged.unpack(s, -1)
        parts, again = TensorArray.unpack(s, sort_by_length=False)
        outputs = [filled.stack(), made.stack(), made.size(), ragged.pack(-1, found), parts.pack(0, again)]
    rows = torch.randn(3, 2)
    sequences = LoDTensor.from_lengths(torch.randn(5, 2), [[2, 0, 3]])
    one, two, size, *packed = tape.topology(outputs)(x=rows, s=sequences)[0]
    assert torch.equal(one, rows)
    assert torch.equal(two, torch.cat([rows, rows[:1] * 2]))
    assert size == 4
    for value in packed:
        assert torch.equal(value.values, sequences.values)
        assert value.recursive_sequence_lengths() == [[2, 0, 3]]


def test_in_a_loop_with_a_condition_per_row_an_array_is_not_cut_but_appended_to():
    def body(n, array):
        array.write(n * 2, True)
        return n - 1, array

    n = torch.tensor([2, 0, 3])
    _, array = while_loop(lambda n, array: n > 0, body, (n, TensorArray()))
    assert [value.tolist() for value in array] == [[4, 0, 6], [2, 0, 4], [0, 0, 2]]

    with pytest.raises(ArrayError, match="written place by place"):
        while_loop(lambda n, array: n > 0, lambda n, array: (n - 1, array.unstack(n)), (n, TensorArray()))
