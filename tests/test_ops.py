"""The operator forms do what the methods do, and return what the paper's last argument received."""

from __future__ import annotations

import pytest
import torch

from stepnet import LoDTensor, Tape, layers, ops
from stepnet.data.array import TensorArray
from stepnet.errors import ArrayError


@pytest.mark.parametrize("axis", [0, 1])
def test_unstack_and_stack(axis):
    x = torch.randn(3, 4)
    ta = ops.tensor_array_unstack(x, axis=axis)
    assert isinstance(ta, TensorArray)
    assert torch.equal(ops.tensor_array_stack(ta, axis=axis), x)


def test_write_changes_the_array_and_returns_it():
    ta, value = TensorArray(), torch.ones(2)
    assert ops.tensor_array_write(ta, torch.tensor(1), value) is ta
    assert ops.tensor_array_read(ta, torch.tensor(1)) is value
    ops.tensor_array_write(ta, 0, value, data_shared=False)
    assert ta.read(0).data_ptr() != value.data_ptr()


def test_size_is_a_scalar_tensor_that_can_bound_a_loop():
    ta = ops.tensor_array_unstack(torch.arange(5))
    size = ops.tensor_array_size(ta)
    assert (size.dtype, size.shape, int(size)) == (torch.int64, (), 5)
    assert TensorArray(size=size).size() == 5
    assert ops.tensor_array_read(ta, size - 1) == 4


def test_read_says_what_the_method_says():
    with pytest.raises(ArrayError, match="index 0 is out of range"):
        ops.tensor_array_read(TensorArray(), 0)
    assert ops.tensor_array_read(TensorArray(), 0, default=torch.tensor(7)) == 7


def test_gradients_pass_through_a_loop_of_operators():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    inputs, outputs = ops.tensor_array_unstack(x), TensorArray()
    step = torch.tensor(0)
    while step < ops.tensor_array_size(inputs):
        value = ops.tensor_array_read(inputs, step)
        outputs = ops.tensor_array_write(outputs, step, value.sin() * (step + 1), data_shared=False)
        step = step + 1
    (grad,) = torch.autograd.grad(ops.tensor_array_stack(outputs).sum(), x)
    weights = torch.arange(1, 5, dtype=torch.float64)[:, None]
    torch.testing.assert_close(grad, x.detach().cos() * weights)


# ------------------------------------------------------------------- the last argument, as the paper has it

ARRAY = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]


def array(dtype=torch.float64, grad=False):
    made = TensorArray()
    for value in ARRAY:
        made.write(value.to(dtype).requires_grad_(grad))
    return made


OPERATORS = {
    "stack": (lambda ta, out=None: ops.tensor_array_stack(ta, out), torch.float64),
    "read": (lambda ta, out=None: ops.tensor_array_read(ta, torch.tensor(1), out), torch.float64),
    "size": (lambda ta, out=None: ops.tensor_array_size(ta, out), torch.int64),
}


@pytest.mark.parametrize(("call", "dtype"), OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("like", ["empty", "empty of another dtype", "fits"])
def test_a_tensor_is_filled_and_given_back(call, dtype, like):
    wanted = call(array())
    out = {
        "empty": torch.empty(0, dtype=dtype),
        "empty of another dtype": torch.empty(0, 3, dtype=torch.float16),
        "fits": torch.full_like(wanted, 7),
    }[like]
    assert call(array(), out) is out
    assert (out.dtype, out.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize(("call", "dtype"), OPERATORS.values(), ids=OPERATORS)
def test_what_does_not_fit_is_never_rounded_or_resized(call, dtype):
    wanted = call(array())
    other = torch.int32 if dtype == torch.int64 else torch.float32
    outs = [torch.full_like(wanted, 7, dtype=other), torch.full((5, 5), 7, dtype=dtype)]
    for out in outs:
        with pytest.raises(ArrayError, match=r"'tensor' does not fit the result(?s:.)*torch\.empty\(0\)"):
            call(array(), out)
        assert bool((out == 7).all())


def test_a_tensor_that_is_filled_holds_no_memory_of_the_array():
    ta, out = array(), torch.empty(0)
    ops.tensor_array_read(ta, 0, out)
    out.zero_()
    assert torch.equal(ta.read(0), ARRAY[0].double())


def test_gradients_flow_through_what_is_filled():
    ta = array(grad=True)
    (ops.tensor_array_stack(ta, torch.empty(0)) * 2).sum().backward()
    out = torch.empty(0)
    for step in range(2):
        (ops.tensor_array_read(ta, step, out) * 3).sum().backward()
    for step in range(2):
        assert torch.equal(ta.read(step).grad, torch.full((2,), 5.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda ta: ops.tensor_array_stack(ta, torch.zeros(2, 2).double().requires_grad_()),
            "a gradient of its",
        ),
        (lambda ta: ops.tensor_array_stack(ta, 0), "'tensor' is the tensor to fill(?s:.)*int"),
        (lambda ta: ops.tensor_array_read(ta, 0, "out"), "'tensor' is the tensor to fill(?s:.)*str"),
        (lambda ta: ops.tensor_array_unstack(torch.ones(2), 1), "'ta' must be a TensorArray(?s:.)*int"),
        (lambda ta: ops.tensor_array_stack(torch.empty(0), ta), "'ta' must be a TensorArray(?s:.)*float32"),
        (lambda ta: ops.tensor_array_size(torch.tensor(0)), "'ta' must be a TensorArray"),
        (
            lambda ta: ops.tensor_array_read(lod_array(), 0, torch.empty(0)),
            "cannot be put into a tensor(?s:.)*LoDTensor of 1 level",
        ),
    ],
    ids=["leaf", "number", "name", "axis", "tensor", "no array", "LoDTensor"],
)
def test_what_cannot_be_filled(call, message):
    with pytest.raises(ArrayError, match=message):
        call(array())


def lod_array():
    made = TensorArray()
    made.write(LoDTensor(torch.ones(2), [[0, 2]]))
    return made


def test_unstack_fills_the_array_that_is_given():
    x, ta = torch.randn(3, 4), array()
    assert ops.tensor_array_unstack(x, ta) is ta
    assert torch.equal(ta.stack(), x)
    assert ops.tensor_array_unstack(x, ta, axis=1).size() == 4


def test_on_a_tape_they_are_recorded():
    with Tape() as tape:
        ta = ops.tensor_array_unstack(layers.data("x", layers.Dense(2)))
        ops.tensor_array_write(ta, ops.tensor_array_size(ta), ops.tensor_array_read(ta, 0))
        out = ops.tensor_array_stack(ta)
        with pytest.raises(ArrayError, match=r"cannot be put into a tensor(?s:.)*TapeItem"):
            ops.tensor_array_stack(ta, torch.empty(0))
    x = torch.randn(3, 2)
    assert torch.equal(tape.topology(out)(x=x)[0], torch.cat([x, x[:1]]))
