"""What stack() gives is the caller's own, though nothing is copied where the array is not used again."""

from __future__ import annotations

import pytest
import torch

from stepnet.data.array import TensorArray
from stepnet.data.steps import Steps
from stepnet.errors import ArrayError


def two_arrays(grad: bool = False) -> tuple[TensorArray, TensorArray, torch.Tensor]:
    """As a loop leaves them that writes the same value to both."""
    tensor = torch.arange(6.0, requires_grad=grad).reshape(3, 2)
    steps, a, b = Steps(tensor, own=True), TensorArray(size=3), TensorArray()
    a._put(0, steps)
    b._put(0, steps)
    return a, b, tensor


def test_the_first_stack_copies_nothing():
    a, b, tensor = two_arrays()
    first, second, other = a.stack(), a.stack(), b.stack()
    assert first is tensor
    second += 1
    other += 2
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_values_stay_as_they_are_when_the_stack_is_written_to_after_they_were_read():
    for read_first in (True, False):
        a, b, _ = two_arrays()
        if read_first:
            value = a.read(1)
        stacked = a.stack()
        if not read_first:
            value = b.read(1)
        stacked.zero_()
        assert value.tolist() == [2, 3]
        assert (b if read_first else a).read(1).tolist() == [2, 3]


def test_values_that_were_written_over_are_an_error_not_wrong():
    a, b, _ = two_arrays()
    a.stack().zero_()
    for use in (lambda: a.stack(), lambda: b.read(0), lambda: b.stack(), lambda: b.write(0, torch.ones(2))):
        with pytest.raises(ArrayError, match=r"changed in place.*(\n.*)*stack\(\)\.clone\(\)"):
            use()


def test_with_a_gradient_there_is_a_copy_so_backward_has_what_it_kept():
    a, b, tensor = two_arrays(grad=True)
    stacked = a.stack()
    assert stacked is not tensor
    stacked.zero_()
    assert b.read(2).tolist() == [4, 5]


def test_what_the_caller_unstacked_is_never_given_away():
    x = torch.arange(3.0)
    array = TensorArray(unstack_from=x)
    array.stack().zero_()
    assert x.tolist() == [0, 1, 2]
    with torch.inference_mode():
        a = TensorArray()
        a._put(0, Steps(torch.ones(2, 1), own=True))
        a.stack().zero_()
        assert a.read(1).tolist() == [1]


def test_steps_are_taken_apart_with_the_gradient_mode_they_came_in():
    x = torch.ones(2, 3, requires_grad=True) * 2
    with torch.no_grad():
        array, steps = TensorArray(unstack_from=x), x.unbind(0)
    assert array.read(0).requires_grad == steps[0].requires_grad
    with torch.no_grad():
        assert TensorArray(unstack_from=x).read(1).requires_grad == steps[1].requires_grad
