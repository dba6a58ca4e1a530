"""The operator forms do what the methods do, and return what the paper's last argument received."""

from __future__ import annotations

import pytest
import torch

from stepnet import ops
from stepnet.data.array import TensorArray
from stepnet.errors import ArrayError


@pytest.mark.parametrize("axis", [0, 1])
def test_unstack_and_stack(axis):
    x = torch.randn(3, 4)
    ta = ops.tensor_array_unstack(x, axis)
    assert isinstance(ta, TensorArray)
    assert torch.equal(ops.tensor_array_stack(ta, axis), x)


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
    assert ops.tensor_array_read(TensorArray(), 0, torch.tensor(7)) == 7


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
