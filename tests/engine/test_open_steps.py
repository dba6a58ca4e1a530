"""A step that no walk closes goes by the plain loop where a look at it takes longer than its plan saves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import stepnet
from stepnet import LoDTensor, api, recurrent
from stepnet.engine import open_steps, plans, warm_calls
from torch_since import torch_since

STEPS = 4


class Open(nn.Module):
    """Nobody knows what it reads until it runs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def __getattr__(self, name) -> Any:
        return 2.0 if name == "gain" else super().__getattr__(name)

    def forward(self, x, h):
        h = torch.tanh(x * self.gain + h * self.scale)
        return h, h


class Clocked:
    """Looks, runs and plain loops that take what is said, on a clock of their own."""

    def __init__(self, patch, look, run, plain):
        self.now, self.ways, self.step = 0.0, "", Open()
        open_steps.forget_open()
        for module in (open_steps, plans, warm_calls):
            patch.setattr(module, "clock", lambda: self.now)
        for where, name, letter, seconds in (
            (plans, "find_plan", "L", look),
            (plans, "run_plan", "", run),
            (api, "plainly", "p", plain),
        ):
            patch.setattr(where, name, self._taking(getattr(where, name), letter, seconds))

    def _taking(self, function, letter, seconds):
        def taking(*args, **more):
            self.ways += letter
            self.now += seconds
            if "backend" in more:  # no C, which takes time to build
                more["backend"] = "eager"
            return function(*args, **more)

        return taking

    def call(self, times=1, **more):
        """Which way calls go, each of which gives what the plain loop gives."""
        self.ways = ""
        x = torch.linspace(-1, 1, STEPS * 2, dtype=torch.float64).reshape(STEPS, 2, 1).requires_grad_()
        h = torch.full((2, 1), 0.3, dtype=torch.float64, requires_grad=True)
        read = (x, h, self.step.scale)
        for _ in range(times):
            y, last = recurrent(self.step, x, h, **more)
            found = [y, last]
            if torch.is_grad_enabled():
                found += torch.autograd.grad((y * y).sum() + last.sum(), read)
            ways, now = self.ways, self.now
            y, last = recurrent(self.step, x, h, backend="naive")
            expected = [y, last]
            if torch.is_grad_enabled():
                expected += torch.autograd.grad((y * y).sum() + last.sum(), read)
            self.ways, self.now = ways, now
            torch.testing.assert_close(found, expected)
        return self.ways


def test_a_look_that_takes_too_long_is_taken_from_time_to_time(monkeypatch):
    calls = Clocked(monkeypatch, look=0.1, run=0.001, plain=0.02)
    assert calls.call(6) == "LLLppp"
    assert calls.call(2, backend="eager") == "LL"  # asked for
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert calls.call(2) == "LL"  # and the same bits each time


@pytest.mark.exhaustive
def test_explain_tells_of_it(monkeypatch):
    calls = Clocked(monkeypatch, look=0.1, run=0.001, plain=0.02)
    x, h = torch.ones(STEPS, 2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    assert calls.call(3) == "LLL"
    assert "for now" not in str(stepnet.explain(calls.step, x, h))
    assert calls.call(2) == "pp"
    assert "go by the plain loop for now" in str(stepnet.explain(calls.step, x, h))


def test_calls_of_another_size_are_another_matter(monkeypatch):
    calls = Clocked(monkeypatch, look=0.1, run=0.001, plain=0.02)
    calls.call(6)
    with torch.no_grad():
        assert calls.call(5) == "LLLpp"  # without gradients it is another matter
    calls.now += 2.1  # 20 times what a look loses
    assert calls.call(3) == "Lpp"
    long = LoDTensor.from_lengths(torch.ones(90, 1, dtype=torch.float64), [[80, 0, 10]])
    calls.ways = ""
    recurrent(calls.step, long, torch.zeros(3, 1, dtype=torch.float64))
    assert calls.ways == "L"  # nothing is known of such


def test_a_plan_that_saves_more_than_its_look_takes_stays(monkeypatch):
    """The plain loop is tried twice, and its backward counts."""
    calls = Clocked(monkeypatch, look=0.1, run=0.001, plain=0.06)
    assert calls.call(8) == "LLLppLLL"
    with torch.no_grad():
        assert calls.call(6) == "LLLppp"


def test_the_plain_loop_is_not_tried_where_it_cannot_be_faster(monkeypatch):
    calls = Clocked(monkeypatch, look=STEPS * 1e-5, run=0.0, plain=math.inf)
    assert calls.call(6) == "LLLLLL"


@torch_since("2.8", "it does not tell which run of a checkpoint this is, so calls in there never rest")
@pytest.mark.parametrize("first", ["LLL", "LLLp"])
def test_a_checkpoint_computes_a_call_again_as_it_went(monkeypatch, first):
    """Even if in between the step came to rest, or to be looked at again."""
    calls = Clocked(monkeypatch, look=0.1, run=0.001, plain=0.02)
    assert calls.call(len(first) - 1) == first[:-1]
    x = torch.ones(STEPS, 2, 1, dtype=torch.float64)
    h = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    calls.ways = ""
    y = checkpoint(lambda h: recurrent(calls.step, x, h)[0], h, use_reentrant=False)
    assert calls.ways == first[-1]
    if first == "LLL":
        assert calls.call(2) == "pp"
    else:
        calls.now += 100
        assert calls.call(2) == "Lp"
    y.sum().backward()
    expected = torch.autograd.grad(recurrent(calls.step, x, h, backend="naive")[0].sum(), h)[0]
    torch.testing.assert_close(h.grad, expected)
