"""The helpers that other tests stand on: wrong answers are planted, and each must be caught by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepnet import cells
from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.testing import LENGTHS, assert_close, check_step, oracle, poisoned

DTYPE = torch.float64
SIZES = [2, 0, 3]


class _Passed(torch.autograd.Function):
    """A tensor as it is, its gradient damaged on the way back."""

    @staticmethod
    def forward(ctx, tensor, damage):
        ctx.damage = damage
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.damage(grad.clone()), None


class Case:
    """A GRU over three sequences, run rightly; a test damages what comes out or what flows back."""

    def __init__(self):
        torch.manual_seed(0)
        self.cell = cells.GRU(2, 3, dtype=DTYPE)
        self.rows = torch.randn(5, 2, dtype=DTYPE, requires_grad=True)
        self.h0 = torch.randn(3, 3, dtype=DTYPE, requires_grad=True)

    def run(self, y=lambda v: v, final=lambda v: v, x_back=None, h_back=None, lengths=SIZES):
        rows = self.rows if x_back is None else _Passed.apply(self.rows, x_back)
        h0 = self.h0 if h_back is None else _Passed.apply(self.h0, h_back)
        out, last = recurrent(self.cell, LoDTensor.from_lengths(rows, [lengths]), h0, backend="naive")
        return out.with_values(y(out.values)), final(last)

    def check(self, run):
        check_step(self.cell, LoDTensor.from_lengths(self.rows, [SIZES]), self.h0, run=run)


def put(at, value):
    def damage(tensor):
        tensor = tensor.clone()
        tensor[at] = value
        return tensor

    return damage


def test_what_is_right_passes():
    case = Case()
    case.check(case.run)


WRONG = {
    "a number of y": (
        lambda c: c.run(y=put((3, 1), 7.0)),
        ["y of sequence 2 (length 3)", "[1, 1]", "got 7.0"],
    ),
    "a small error in y": (lambda c: c.run(y=lambda v: v + 1e-9), ["y of sequence 0 (length 2)", "1e-09"]),
    "nan in y": (lambda c: c.run(y=put((4, 2), torch.nan)), ["y of sequence 2", "[2, 2]", "got nan"]),
    "rows of y in another order": (lambda c: c.run(y=lambda v: v.flip(0)), ["y of sequence 0"]),
    "the final state of another sequence": (
        lambda c: c.run(final=lambda h: h[[2, 1, 0]]),
        ["final state of sequence 0 (length 2)"],
    ),
    "a state that an empty sequence did not keep": (
        lambda c: c.run(final=put(1, 0.0)),
        ["final state of sequence 1 (length 0)"],
    ),
    "y in another dtype": (lambda c: c.run(y=lambda v: v.float()), ["a row of y is torch.float32[3]"]),
    "y of another width": (
        lambda c: c.run(y=lambda v: v[:, :2]),
        ["a row of y is torch.float64[2]", "expected"],
    ),
    "too few final states": (lambda c: c.run(final=lambda h: h[:2]), ["2 rows", "3 sequences"]),
    "another LoD": (lambda c: c.run(lengths=[3, 0, 2]), ["y does not have the LoD of x"]),
    "y that is no LoDTensor": (lambda c: (c.run()[0].values, c.run()[1]), ["y does not have the LoD of x"]),
    "y nested in another way": (lambda c: ((c.run()[0],), c.run()[1]), ["y is nested as (*,), expected *"]),
    "a state nested in another way": (
        lambda c: (c.run()[0], [c.run()[1]]),
        ["the final state is nested as [*], expected *"],
    ),
    "y without a gradient": (lambda c: c.run(y=lambda v: v.detach()), ["y of sequence 0 has no gradient"]),
    "a gradient of x": (
        lambda c: c.run(x_back=put((2, 0), 5.0)),
        ["the gradient of x in sequence 2 (length 3)", "[0, 0]", "got 5.0"],
    ),
    "a gradient of x, a little": (
        lambda c: c.run(x_back=lambda g: g + 1e-8),
        ["the gradient of x in sequence 0 (length 2)"],
    ),
    "a gradient of an initial state": (
        lambda c: c.run(h_back=put((1, 2), 0.25)),
        ["the gradient of state", "[1, 2]"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_wrong_answer_is_caught(name):
    case = Case()
    plant, words = WRONG[name]
    with pytest.raises(AssertionError) as caught:
        case.check(lambda: plant(case))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_wrong_gradient_of_a_weight_is_caught_by_its_name():
    case = Case()
    weights = dict(case.cell.named_parameters())
    weights["bias_hh"] = _Passed.apply(case.cell.bias_hh, lambda grad: grad * 1.001)

    def step(x, h):
        return torch.func.functional_call(case.cell, weights, (x, h))

    x = LoDTensor.from_lengths(case.rows, [SIZES])
    with pytest.raises(AssertionError, match="the gradient of bias_hh differs by"):
        case.check(lambda: recurrent(step, x, case.h0, backend="naive"))


def test_a_gradient_where_there_is_none_is_caught():
    w = torch.randn(2, 2, dtype=DTYPE, requires_grad=True)
    x = torch.randn(3, 1, 2, dtype=DTYPE, requires_grad=True)

    def step(x, s):
        return (x @ w).detach(), ()

    with pytest.raises(AssertionError, match="the gradient of x in sequence 0"):
        check_step(step, x, (), run=lambda: (x @ w.detach(), ()))


def test_a_sequence_that_sees_another_is_caught():
    """The oracle has one sequence at a time, so a step that mixes rows cannot agree with itself."""

    def step(x, s):
        s = s + x.mean(0, keepdim=True)
        return s, s

    x, s = torch.randn(2, 3, 2, dtype=DTYPE), torch.zeros(3, 2, dtype=DTYPE)
    with pytest.raises(AssertionError, match="y of sequence 0"):
        check_step(step, x, s, backend="naive")


def test_a_reverse_run_is_not_a_forward_one():
    case = Case()
    x = LoDTensor.from_lengths(case.rows, [SIZES])
    with pytest.raises(AssertionError, match="y of sequence 0"):
        check_step(case.cell, x, case.h0, reverse=True, run=case.run)


def test_dense_shapes_are_compared():
    cell = nn.GRUCell(2, 3, dtype=DTYPE)
    x = torch.randn(4, 2, 2, dtype=DTYPE)
    y, h = recurrent(cell, x, backend="naive")
    check_step(cell, x, run=lambda: (y, h))
    with pytest.raises(AssertionError, match="y does not have the steps and the batch of x"):
        check_step(cell, x, run=lambda: (y[:3], h))


def test_the_oracle_by_hand():
    x = LoDTensor.from_lengths(torch.tensor([[1.0], [2.0], [4.0]]), [[2, 0, 1]])
    out = oracle(lambda x, s: (10 * s + x, s + x), x, torch.tensor([[0.5], [7.0], [0.0]]))
    assert [[leaf.flatten().tolist() for leaf in y] for y in out.y] == [[[6.0, 17.0]], [[]], [[4.0]]]
    assert [[leaf.tolist() for leaf in s] for s in out.final] == [[[[3.5]]], [[[7.0]]], [[[4.0]]]]
    back = oracle(lambda x, s: (10 * s + x, s + x), x, torch.tensor([[0.5], [7.0], [0.0]]), reverse=True)
    assert back.y[0][0].flatten().tolist() == [26.0, 7.0]


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([float("nan")], [float("nan")], None),
        ([float("inf"), 1.0], [float("inf"), 1.0], None),
        ([], [], None),
        ([1e6 + 1e-7], [1e6], None),
        ([1.0], [1.0 + 1e-9], "differs by 1e-09 at [0]"),
        ([float("inf")], [1.0], "differs by inf"),
        ([1.0], [float("inf")], "differs by inf"),
        ([1.0], [float("nan")], "differs by inf"),
        ([float("-inf")], [float("inf")], "differs by inf"),
        ([1.0, 2.0], [1.0], "has shape [2], expected [1]"),
    ],
)
def test_assert_close(got, expected, words):
    got, expected = torch.tensor(got, dtype=DTYPE), torch.tensor(expected, dtype=DTYPE)
    if words is None:
        assert_close("v", got, expected, 1e-12)
        return
    with pytest.raises(AssertionError) as caught:
        assert_close("v", got, expected, 1e-12)
    assert words in str(caught.value)


def test_ragged_cases_hold_what_every_test_must_meet():
    cases = list(LENGTHS.values())
    assert () in cases
    assert any(len(lengths) == 1 for lengths in cases)
    assert any(0 in lengths[1:-1] and sum(lengths) for lengths in cases)
    assert any(lengths and not sum(lengths) for lengths in cases)
    assert any(1 in lengths for lengths in cases)
    assert any(list(lengths) != sorted(lengths, reverse=True) for lengths in cases)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3),
        lambda: torch.empty(3, dtype=torch.float64),
        lambda: torch.empty_like(torch.zeros(3)),
        lambda: torch.zeros(2).new_empty(3),
        lambda: torch.empty(16, dtype=torch.uint8).view(torch.float32),
        lambda: torch.empty(16, dtype=torch.uint8).view(torch.float64),
    ],
)
def test_unset_memory_is_poisoned(make):
    with poisoned():
        assert make().isnan().all()
    assert torch.zeros(3).sum() == 0
