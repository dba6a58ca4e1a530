"""What a frame may write besides a scan, and numbers that it asks for, as the same Python by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import stepnet
from stepnet import TensorArray
from stepnet.errors import StepError

BACKEND = "eager"
DTYPE = torch.float64
W = torch.randn(3, 3, dtype=DTYPE, requires_grad=True)
ZERO = torch.zeros(2, 3, dtype=DTYPE)


class _Over(Exception):
    """A loop by hand has ended."""


class ByHand:
    """A loop whose frame is run by Python, turn after turn."""

    def __init__(self, variables):
        self.results = [v.clone() for v in variables]

    def break_if(self, condition):
        if bool(condition):
            raise _Over

    def update(self, variable, value):
        [place] = [k for k, old in enumerate(self.results) if old is variable]
        self.new[place] = torch.as_tensor(value, dtype=variable.dtype)

    def run(self, turn):
        while True:
            self.new: dict[int, Any] = {}
            try:
                turn(self, *self.results)
            except _Over:
                return
            self.results = [self.new[k] for k in range(len(self.results))]


def sizes_as_numbers(loop, x, out, step, h):
    loop.break_if(step == 5)
    rows, features = x.read(step).shape
    whole, rest = divmod(features, 2)
    more, left = divmod(7, features)
    number = float(rows) + math.sqrt(features) + round(rows)
    new = h * whole + x.read(step) * more + (left + rest) * number
    out.write(step, new)
    loop.update(step, step + 1)
    loop.update(h, new)


def updates_by_numbers(loop, x, out, step, h):
    loop.break_if(step == 5)
    out.write(step, x.read(step) * h)
    loop.update(step, out.size())
    loop.update(h, [[0.5] * 3] * 2)


def read_backwards(loop, x, out, step, h):
    loop.break_if(torch.rsub(step, 5) == 0)
    out.write(step, x.read(torch.rsub(step, 4)) + h)
    loop.update(step, step + 1)
    loop.update(h, out.read(step))


def a_matrix_first(loop, x, out, step, h):
    loop.break_if(step == 5)
    new = torch.tanh(torch.matmul(W, h[0]) + x.read(step))
    out.write(step, new)
    loop.update(step, step + 1)
    loop.update(h, new)


def two_ends(loop, x, out, step, h):
    loop.break_if(step == 5)
    loop.break_if(h.sum() > 4)
    out.write(step, h + x.read(step).abs() @ W.abs())
    loop.update(step, step + 1)
    loop.update(h, h + x.read(step).abs())


def one_place_for_all(loop, x, out, step, h):
    loop.break_if(step == 5)
    out.write(step, x.read(2))
    loop.update(step, step + 1)
    loop.update(h, h + x.read(step))


def read_where_it_is_written(loop, x, out, step, h):
    loop.break_if(step == 5)
    out.write(step, out.read(step, ZERO + 1) * 2 + x.read(step))
    loop.update(step, step + 1)
    loop.update(h, h + out.read(0))


BODIES = {
    "sizes as numbers": (sizes_as_numbers, "raised to a scan"),
    "updates by numbers": (updates_by_numbers, "does not end where a counted step reaches a fixed number"),
    "read backwards": (read_backwards, "raised to a scan"),
    "a matrix first": (a_matrix_first, "raised to a scan"),
    "two ends": (two_ends, "the loop ends in more than one place"),
    "one place for all": (one_place_for_all, "what is read at one place is written at every step"),
    "read where it is written": (read_where_it_is_written, "read at the step before it is written there"),
}


def ran(body, by_hand):
    x, out = torch.randn(5, 2, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(0)), TensorArray()
    x.requires_grad_()
    rows, start = TensorArray(unstack_from=x), [torch.tensor(0), ZERO + 0.25]
    if by_hand:
        loop: Any = ByHand(start)
        loop.run(lambda *given: body(given[0], rows, out, *given[1:]))
    else:
        loop = stepnet.create_whileloop(start)
        with loop.frame() as (step, h):
            body(loop, rows, out, step, h)
    found = [*loop.results, *out]
    total = sum((v.square().sum() for v in found if v.requires_grad), torch.zeros(()))
    return loop, found, torch.autograd.grad(total, (x, W), allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("name", BODIES)
def test_a_frame_is_the_same_python(name: str) -> None:
    body, how = BODIES[name]
    loop, *found = ran(body, by_hand=False)
    torch.testing.assert_close(found, [*ran(body, by_hand=True)[1:]])
    assert how in loop.explain()


def test_an_update_that_is_no_tensor() -> None:
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (step,):
        loop.break_if(step == 3)
        with pytest.raises(StepError, match="update: the value is no tensor"):
            loop.update(step, "one more")
        loop.update(step, step + 1)
    assert loop.results[0] == 3
