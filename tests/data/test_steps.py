"""What stack() gives is the caller's own."""

from __future__ import annotations

import pytest
import torch

from stepnet.data.array import TensorArray, contents_of
from stepnet.data.steps import Steps


def two_arrays(grad: bool = False) -> tuple[TensorArray, TensorArray, torch.Tensor]:
    """As a loop leaves them that writes the same value to both."""
    tensor = torch.arange(6.0, requires_grad=grad).reshape(3, 2)
    steps, a, b = Steps(tensor), TensorArray(size=3), TensorArray()
    contents_of(a).put(0, steps)
    contents_of(b).put(0, steps)
    return a, b, tensor


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_written_to_a_stack_reaches_no_other(grad):
    a, b, tensor = two_arrays(grad)
    for stacked in (a.stack(), b.stack(), a.concat()):
        stacked.detach().numpy()[:] = 7  # which no version counts
    assert tensor.tolist() == a.stack().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert b.read(1).tolist() == [2, 3]


def test_what_the_caller_unstacked_is_never_given_away():
    x = torch.arange(3.0)
    array = TensorArray(unstack_from=x)
    array.stack().zero_()
    assert x.tolist() == [0, 1, 2]


def test_steps_are_taken_apart_with_the_gradient_mode_they_came_in():
    x = torch.ones(2, 3, requires_grad=True) * 2
    with torch.no_grad():
        array, steps = TensorArray(unstack_from=x), x.unbind(0)
    assert array.read(0).requires_grad == steps[0].requires_grad
    with torch.no_grad():
        assert TensorArray(unstack_from=x).read(1).requires_grad == steps[1].requires_grad
