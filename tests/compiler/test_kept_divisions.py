"""Divisions of whole numbers, which no CPU has by the vector: made once, and not again on the way back."""

import operator

import pytest
import torch

from outcomes import as_the_plain_loop, wanting
from plans import ops, plan_of
from stepnet import LoDTensor

PERIODS = torch.arange(1, 9)
DIVISIONS = {"remainder": operator.mod, "floor_divide": operator.floordiv}


@pytest.mark.parametrize("name", DIVISIONS)
def test_what_is_made_of_them_is_kept(name):
    def step(x, state):
        h, t = state
        h = torch.where(DIVISIONS[name](t, PERIODS) == 0, torch.tanh(x + h), h)
        return h, (h, t + 1)

    given = LoDTensor.from_lengths(torch.randn(6, 8, dtype=torch.float64), [[4, 0, 2]])
    state = torch.randn(3, 8, dtype=torch.float64), torch.arange(3)[:, None]
    x, state = wanting((given, state))
    plan = plan_of(step, x, state)
    assert name in ops(plan.forward)
    assert name not in ops(plan.backward)
    as_the_plain_loop(step, x, state)
