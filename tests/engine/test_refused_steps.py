"""A step whose walk takes long and is refused is not walked at each call."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stepnet import errors, recurrent
from stepnet.engine import plans, reads, refused_steps, warm_calls

PLANS_ON_DISK = False
TIMED = True


def test_a_refused_step_is_looked_at_from_time_to_time(monkeypatch):
    now, walks = [0.0], []

    def clock():
        now[0] += 1e-6
        return now[0]

    def slow(loop, *, everything=False):
        walks.append(loop)
        now[0] += 0.1
        return reached(loop, everything=everything)

    def step(x, h):
        h = torch.tanh(x + h) * len(["" for name in others if name == "math"])
        return h, h

    reached, others = reads.reached, sys.modules
    refused_steps.forget_resting()
    monkeypatch.setattr(reads, "reached", slow)
    monkeypatch.setattr(plans, "clock", clock)
    monkeypatch.setattr(refused_steps, "clock", clock)
    x, h = torch.randn(3, 2, 4), torch.zeros(2, 4)
    expected = recurrent(step, x, h, backend="naive")[0]
    with pytest.warns(errors.SlowPathWarning, match=r"sys\.modules"):
        torch.testing.assert_close(recurrent(step, x, h)[0], expected)
    with warnings.catch_warnings(), monkeypatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr(warm_calls, "reach", None)  # nor there
        for _ in range(5):
            torch.testing.assert_close(recurrent(step, x, h)[0], expected)
    assert len(walks) == 1
    with pytest.raises(errors.Unsupported, match=r"sys\.modules"):
        recurrent(step, x, h, backend="c")
    assert len(walks) == 2
    now[0] += 10
    others, walk, looked = {"math": None}, warm_calls.reach, []
    monkeypatch.setattr(warm_calls, "reach", lambda *given: (looked.append(given), walk(*given))[1])
    torch.testing.assert_close(recurrent(step, x, h)[0], expected)
    assert looked
    assert not refused_steps.rests(step)


class Asked(nn.Module):
    """Nobody knows what it reads until it is recorded, and then it asks numbers of tensors."""

    def __getattr__(self, name) -> Any:
        return 2.0 if name == "gain" else super().__getattr__(name)

    def forward(self, x, h):
        h = x * self.gain + h * int(h.sum())
        return h, h


def test_an_open_step_that_is_refused_once_it_is_recorded_is_so_from_time_to_time(monkeypatch):
    now, looks, find = [0.0], [], plans.find_plan

    def slow(*args, **more):
        looks.append(0)
        now[0] += 0.1
        return find(*args, **more)

    refused_steps.forget_resting()
    monkeypatch.setattr(plans, "find_plan", slow)
    monkeypatch.setattr(plans, "clock", lambda: now[0])
    monkeypatch.setattr(refused_steps, "clock", lambda: now[0])
    step, x, h = Asked(), torch.randn(3, 2, 4), torch.zeros(2, 4)
    with pytest.warns(errors.SlowPathWarning, match="values of a tensor"):
        recurrent(step, x, h)
    for expected in (2, 2, 2):  # the first look may have compiled
        torch.testing.assert_close(recurrent(step, x, h)[0], recurrent(step, x, h, backend="naive")[0])
        assert len(looks) == expected
    now[0] += 2.1
    for expected in (3, 3):
        recurrent(step, x, h)
        assert len(looks) == expected


class WeightDropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.Parameter(torch.eye(4))

    def forward(self, x, h):
        h = torch.tanh(x + h @ F.dropout(self.recurrent, 0.5, self.training))
        return h, h


def test_a_step_without_a_plan_is_looked_up_when_it_reads_something_else(monkeypatch):
    monkeypatch.setattr(
        "stepnet.engine.other_threads.is_only_thread", lambda: True
    )  # tests may have left some
    looked, find = [], plans.find_plan
    monkeypatch.setattr(plans, "find_plan", lambda *a, **k: looked.append(0) or find(*a, **k))
    step, x, h = WeightDropped(), torch.randn(3, 2, 4), torch.zeros(2, 4)

    def ran(*, by_plan, looks):
        looked.clear()
        torch.manual_seed(1)
        y = recurrent(step, x, h)[0]
        torch.manual_seed(1)
        torch.testing.assert_close(y, recurrent(step, x, h, backend="naive")[0])
        assert ("Stack" not in str(y.grad_fn)) == by_plan
        assert len(looked) == looks

    with pytest.warns(errors.SlowPathWarning, match="shared by all rows"):
        ran(by_plan=False, looks=1)
    ran(by_plan=False, looks=0)
    with pytest.raises(errors.Unsupported, match="shared by all rows"):
        recurrent(step, x, h, backend="eager")
    step.eval()
    ran(by_plan=True, looks=1)
    step.train()
    ran(by_plan=False, looks=0)
