"""TensorArray as an array: write, read, unstack, stack, concat."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.errors import ArrayError


def filled(*values):
    array = TensorArray()
    for place, value in enumerate(values):
        array.write(place, value)
    return array


# ------------------------------------------------------------------------------------------- write and read


@pytest.mark.parametrize(
    "index",
    [2, torch.tensor(2), torch.tensor([2]), torch.tensor([[2]], dtype=torch.int32), np.int64(2)],
    ids=["int", "scalar", "one-element", "int32", "numpy"],
)
def test_index_is_an_int_or_a_scalar_tensor(index):
    array, value = TensorArray(size=3), torch.ones(2)
    array.write(index, value)
    assert array.read(index) is value
    assert array[index] is value


def test_places_are_written_in_any_order_and_over():
    array = TensorArray(size=3)
    array[2], array[0] = torch.tensor(2), torch.tensor(0)
    array.write(1, torch.tensor(7))
    array.write(1, torch.tensor(1))
    assert [int(value) for value in array] == [0, 1, 2]
    assert (array.size(), len(array)) == (3, 3)


def test_grows_at_the_end_and_beyond():
    array = TensorArray()
    sizes = []
    for index in (0, 1, 5, 3):
        array.write(index, torch.tensor(index))
        sizes.append(array.size())
    assert sizes == [1, 2, 6, 6]


def test_a_declared_size_allocates_nothing():
    array = TensorArray(size=2**62)
    array.write(2**61, torch.ones(1))
    assert len(array) == 2**62
    with pytest.raises(ArrayError, match="nothing was written at index 0"):
        array.stack()


def test_size_may_be_a_tensor():
    assert TensorArray(size=torch.tensor(4)).size() == 4


def test_iteration_stops_at_a_hole_with_an_error():
    array = TensorArray(size=2)
    array.write(0, torch.ones(1))
    with pytest.raises(ArrayError, match="nothing was written at index 1"):
        list(array)


@pytest.mark.parametrize("index", [-1, 1, 2, 9], ids=["before", "hole", "end", "beyond"])
def test_default_stands_in_where_nothing_was_written(index):
    array, default = TensorArray(size=2), torch.zeros(3)
    array.write(0, torch.ones(3))
    assert array.read(index, default) is default
    assert array.read(0, default) is not default
    assert (array.size(), array.read(index, default)) == (2, default)


def test_the_loop_of_the_paper():
    n, boot = 4, torch.zeros(2, dtype=torch.float64)
    x = torch.randn(n, 2, dtype=torch.float64)
    u = torch.randn(2, 2, dtype=torch.float64)
    states, inputs = TensorArray(size=n), TensorArray(unstack_from=x)
    for step in range(n):
        states.write(step, torch.sigmoid(states.read(step - 1, boot) @ u + inputs.read(step)))
    expected, state = [], boot
    for row in x:
        state = torch.sigmoid(state @ u + row)
        expected.append(state)
    torch.testing.assert_close(states.stack(), torch.stack(expected), rtol=0, atol=0)


# ----------------------------------------------------------------------------------------- shared or copied


def test_shared_is_the_same_memory_and_a_copy_is_not():
    value = torch.ones(3)
    array = TensorArray()
    array.write(0, value, data_shared=True)
    array.write(1, value, data_shared=False)
    assert array[0] is value
    assert array[1].data_ptr() != value.data_ptr()
    value.fill_(5)
    assert (array[0].tolist(), array[1].tolist()) == ([5, 5, 5], [1, 1, 1])


def test_a_copied_lodtensor_keeps_its_lod():
    value = LoDTensor(torch.arange(3.0), [[0, 1, 3]])
    array = TensorArray()
    array.write(0, value)
    array.write(1, value, data_shared=False)
    assert array[0] is value
    assert array[1].values.data_ptr() != value.values.data_ptr()
    assert array[1].recursive_sequence_lengths() == [[1, 2]]
    assert array[1].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("data_shared", [True, False])
def test_gradients_flow_through_what_was_written(data_shared):
    value = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    array = TensorArray()
    array.write(0, value, data_shared)
    array.write(1, value * 2, data_shared)
    (grad,) = torch.autograd.grad((array.stack() ** 2).sum(), value)
    torch.testing.assert_close(grad, 2 * value + 8 * value)


def test_two_reads_of_one_place_add_their_gradients():
    value = torch.tensor(3.0, requires_grad=True)
    array = filled(value)
    (grad,) = torch.autograd.grad(array.read(0) * array.read(0), value)
    assert grad == 6


# ----------------------------------------------------------------------------------------- unstack and stack


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3, torch.tensor(1)], ids=str)
def test_unstack_and_stack_are_inverse(axis):
    x = torch.randn(2, 3, 5)
    array = TensorArray.unstack(x, axis)
    assert len(array) == x.shape[int(axis)]
    for place in range(len(array)):
        assert torch.equal(array[place], x.select(int(axis), place))
        assert array[place].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(array.stack(axis), x)


@given(shape=st.lists(st.integers(0, 3), min_size=1, max_size=3), data=st.data())
def test_unstack_then_stack_is_exact(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = torch.randn(shape)
    back = TensorArray.unstack(x, axis).stack(axis)
    assert back.shape == x.shape
    assert back.dtype == x.dtype
    assert torch.equal(back, x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float64, torch.complex64], ids=str)
def test_a_tensor_without_steps_comes_back(dtype):
    x = torch.zeros(5, 0, 2, dtype=dtype)
    array = TensorArray.unstack(x, axis=1)
    assert array.size() == 0
    assert array.stack(1).shape == (5, 0, 2)
    assert array.concat(1).shape == (5, 0)
    assert array.stack(1).dtype == dtype


def test_a_tensor_without_steps_keeps_its_graph():
    x = torch.zeros(0, 3, requires_grad=True)
    TensorArray(unstack_from=x).stack().sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 3)


def test_unstack_from_is_unstack():
    x = torch.randn(3, 2)
    assert torch.equal(TensorArray(unstack_from=x).stack(), x)
    assert [torch.equal(a, b) for a, b in zip(TensorArray(unstack_from=x), x, strict=True)] == [True] * 3


def test_stack_and_unstack_pass_gradcheck():
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def scaled(x):
        array = TensorArray.unstack(x, axis=1)
        out = TensorArray()
        for step, value in enumerate(array):
            out.write(step, value * value * (step + 1))
        return out.stack(1)

    assert torch.autograd.gradcheck(scaled, (x,))
    (grad,) = torch.autograd.grad(scaled(x).sum(), x)
    torch.testing.assert_close(grad, 2 * x.detach() * torch.tensor([1.0, 2.0], dtype=torch.float64))


class Allocated(TorchDispatchMode):
    """Counts the elements of every tensor that an op makes; views make none."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        memory = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in memory:
                self.elements += tensor.numel()
        return out


def elements_made(read_all, steps):
    x = torch.randn(steps, 7, requires_grad=True)
    with Allocated() as made:
        torch.stack([value * 2 for value in read_all(x)]).sum().backward()
    return made.elements


@pytest.mark.parametrize(
    ("read_all", "growth"),
    [
        (lambda x: list(TensorArray(unstack_from=x)), 4),
        (lambda x: list(TensorArray.unpack(LoDTensor(x, [[0, len(x)]]))[0]), 4),
        (lambda x: [x[t] for t in range(len(x))], 16),
    ],
    ids=["unstack", "unpack", "indexing"],
)
def test_reading_every_step_makes_tensors_in_proportion_to_the_steps(read_all, growth):
    ratio = elements_made(read_all, 256) / elements_made(read_all, 64)
    assert growth * 0.75 < ratio < growth * 1.1


# ------------------------------------------------------------------------------------------------- concat


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_joins_along_an_axis_that_may_differ(axis):
    shapes = [[2, 3], [2, 3], [2, 3]]
    for place, shape in enumerate(shapes):
        shape[axis] = place
    values = [torch.randn(shape, requires_grad=True) for shape in shapes]
    joined = filled(*values).concat(axis)
    assert torch.equal(joined, torch.cat(values, axis))
    grads = torch.autograd.grad(joined.sum(), values)
    assert [grad.shape for grad in grads] == [value.shape for value in values]


def test_concat_of_lodtensors_is_one_batch():
    a = LoDTensor.from_lengths(torch.arange(3.0, requires_grad=True), [[2, 0], [1, 2]])
    b = LoDTensor.from_lengths(torch.zeros(0), [[], []])
    c = LoDTensor.from_lengths(torch.arange(3.0, 5.0), [[1], [2]])
    joined = filled(a, b, c).concat()
    assert joined.recursive_sequence_lengths() == [[2, 0, 1], [1, 2, 2]]
    assert joined.values.tolist() == [0, 1, 2, 3, 4]
    (grad,) = torch.autograd.grad((joined.values**2).sum(), a.values)
    assert grad.tolist() == [0, 2, 4]


# ------------------------------------------------------------------------------------------------- errors


def holes():
    array = TensorArray(size=3)
    array.write(1, torch.ones(2))
    return array


ONE_LOD = LoDTensor(torch.zeros(2, 3), [[0, 2]])
TWO_LODS = LoDTensor(torch.zeros(2, 3), [[0, 1], [0, 2]])

ERRORS = {
    "read empty": (
        lambda: TensorArray().read(0),
        ["index 0 is out of range", "size 0", "the array is empty"],
    ),
    "read end": (lambda: holes().read(3), ["index 3 is out of range", "size 3", "from 0 to 2", "grows"]),
    "read negative": (
        lambda: holes()[-1],
        ["index -1 is out of range", "do not wrap", "read(index, default)"],
    ),
    "read hole": (
        lambda: holes()[2],
        ["nothing was written at index 2", "size 3, 1 written", "write(2, value)"],
    ),
    "read float": (lambda: holes()[torch.tensor(1.0)], ["TensorArray.read: index", "Tensor float32[]"]),
    "read bool": (lambda: holes()[True], ["an int or a scalar integer tensor", "True"]),
    "read slice": (lambda: holes()[0:1], ["an int or a scalar integer tensor", "slice(0, 1, None)"]),
    "read two": (lambda: holes()[torch.tensor([0, 1])], ["an int or a scalar integer tensor", "int64[2]"]),
    "write negative": (lambda: holes().write(-1, torch.ones(1)), ["index -1 is negative", "size 3"]),
    "write list": (
        lambda: holes().write(4, [1.0]),
        ["the value for index 4 is no tensor", "list", "LoDTensor"],
    ),
    "size negative": (lambda: TensorArray(size=-2), ["size must not be negative", "-2"]),
    "size float": (lambda: TensorArray(size=2.0), ["TensorArray: size must be an int", "2.0"]),
    "size lod": (
        lambda: TensorArray(LoDTensor.from_lengths(torch.ones(2), [[2]])),  # pyright: ignore[reportArgumentType]
        ["the level that is cut", "TensorArray.unpack(x, level)"],
    ),
    "size and tensor": (lambda: TensorArray(2, unstack_from=torch.ones(2)), ["exclude each other", "size=2"]),
    "unstack scalar": (lambda: TensorArray.unstack(torch.tensor(1.0)), ["rank 0 has no axis", "float32[]"]),
    "unstack axis": (
        lambda: TensorArray.unstack(torch.ones(2, 3), 2),
        ["no axis 2", "[2, 3]", "from -2 to 1"],
    ),
    "unstack lod": (lambda: TensorArray.unstack(ONE_LOD), ["LoDTensor of 1 level", "TensorArray.unpack(x"]),
    "unstack list": (lambda: TensorArray(unstack_from=[1, 2]), ["unstack cuts tensors", "list"]),
    "stack empty": (
        lambda: TensorArray().stack(),
        ["TensorArray.stack: the array is empty", "write a value"],
    ),
    "stack hole": (lambda: holes().stack(), ["nothing was written at index 0"]),
    "stack shapes": (
        lambda: filled(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 4)).stack(),
        ["TensorArray.stack: the values at index 0 and index 2", "float32[2, 3] and Tensor float32[2, 4]"],
    ),
    "stack dtypes": (
        lambda: filled(torch.ones(2), torch.ones(2).double()).stack(),
        ["index 0 and index 1", "float32[2] and Tensor float64[2]"],
    ),
    "stack mixed": (
        lambda: filled(torch.ones(2, 3), ONE_LOD).stack(),
        ["index 0 and index 1", "Tensor float32[2, 3] and LoDTensor of 1 level, float32[2, 3]"],
    ),
    "stack axis": (lambda: filled(torch.ones(2)).stack(2), ["no axis 2", "rank 2", "from -2 to 1"]),
    "stack lod": (lambda: filled(ONE_LOD).stack(), ["no common axis of steps", "concat()", "pack()"]),
    "concat empty": (lambda: TensorArray().concat(), ["TensorArray.concat: the array is empty"]),
    "concat scalars": (lambda: filled(torch.tensor(1)).concat(), ["rank 0 have no axis", "stack()"]),
    "concat axis": (lambda: filled(torch.ones(2)).concat(1), ["no axis 1", "from -1 to 0"]),
    "concat shapes": (
        lambda: filled(torch.ones(2, 3), torch.ones(5, 4)).concat(),
        ["index 0 and index 1", "[2, 3]", "[5, 4]", "along axis 0 it may differ"],
    ),
    "concat ranks": (
        lambda: filled(torch.ones(2, 3), torch.tensor(1.0)).concat(-1),
        ["index 0 and index 1", "float32[]", "along axis 1 it may differ"],
    ),
    "concat levels": (
        lambda: filled(ONE_LOD, TWO_LODS).concat(),
        ["index 0 and index 1", "LoDTensor of 1 level, ", "LoDTensor of 2 levels, "],
    ),
    "concat lod axis": (lambda: filled(ONE_LOD).concat(1), ["along axis 0 only", "axis 1"]),
}


@pytest.mark.parametrize("case", ERRORS, ids=str)
def test_errors_say_where_what_and_what_to_do(case):
    call, parts = ERRORS[case]
    with pytest.raises(ArrayError) as caught:
        call()
    for part in parts:
        assert re.search(re.escape(part), str(caught.value)), f"{part!r} is missing in:\n{caught.value}"


def test_repr_says_what_is_there():
    array = holes()
    assert repr(array) == "TensorArray(size=3, written=1, values=[Tensor float32[2]])"
    long = filled(*torch.zeros(5, 2), ONE_LOD)
    assert repr(long).endswith("written=6, values=[" + "Tensor float32[2], " * 3 + "...])")


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("joined", [0, 1, -1])
def test_stack_is_torch_stack_along_any_axes(axis, joined):
    x = torch.randn(2, 3, 5, requires_grad=True)
    array = TensorArray.unstack(x, axis)
    expected = torch.stack(x.unbind(axis), joined)
    y = array.stack(joined)
    assert torch.equal(y, expected)
    assert y.stride() == expected.stride()
    assert torch.equal(*(torch.autograd.grad(t.square().sum(), x)[0] for t in (y, expected)))
    y.detach().zero_()
    assert torch.equal(array.stack(joined), expected)  # its memory is the caller's
