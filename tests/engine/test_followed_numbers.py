"""Numbers that change at each call, followed through a step, which is not run for each of them."""

from __future__ import annotations

import functools
import math
import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covering import few
from stepnet import recurrent
from stepnet.engine import plans, reads

BUILDS = False  # what becomes of a number, built too, is seen by `test_a_number_is_followed`
D = 3
torch.manual_seed(0)
W = torch.randn(D, D, dtype=torch.float64, requires_grad=True)
NOW: Any = types.SimpleNamespace(t=0.5, n=1)
EPSILON = 0.5
RAMP = [0.97**k for k in range(12)]
ODD = [0.5, 0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e308, -2.0, 1.0, 2.0, 3, True, 0.7]
ODD += [np.float64(0.3), np.float32(0.3), 2**70, 0, -1, 2, 0.25, 1.5]


@pytest.fixture
def recorded(monkeypatch):
    """How often steps were run to see what they do with a number."""
    plans.forget()
    count, record = [], reads.record

    def counted(*args, **kwargs):
        count.append(1)
        return record(*args, **kwargs)

    monkeypatch.setattr(reads, "record", counted)
    return count


def step_of(use):
    def step(x, h):
        h = use(torch.tanh(x @ W + h))
        return h, h

    return step


def outcome(step, backend):
    x = torch.linspace(-2, 2, 4 * 2 * D, dtype=torch.float64).reshape(4, 2, D)
    h = torch.full((2, D), 0.25, dtype=torch.float64, requires_grad=True)
    try:
        y, final = recurrent(step, x, h, backend=backend)
        return [y, final, *torch.autograd.grad((y * y).sum() + final.sum(), (h, W), allow_unused=True)]
    except Exception as error:
        return type(error)


def check(step, values, change, backend="auto"):
    for value in values:
        change(value)
        ours, plain = outcome(step, backend), outcome(step, "naive")
        if isinstance(plain, type) or isinstance(ours, type):
            assert ours is plain, value
            continue
        for a, b in zip(ours, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def temperature(value):
    NOW.t = value


def guarded(h):
    return h * 2 if NOW.t < 0.8 else h * NOW.t


def caught(h):
    try:
        return h * (1 / NOW.t)
    except ZeroDivisionError:
        return h * 7


def made_of_it(h):
    z = torch.ones((), dtype=h.dtype) * NOW.t
    return h * 2 if z > 0.75 else h * 3


def of_its_class(h):
    return h * 2 if type(NOW.t) is float and NOW.t < 0.75 else h * NOW.t


def not_read_always(h):
    return h * NOW.t if NOW.t > 0.9 or NOW.t < 0.75 else h.sin()


FOLLOWED = {
    "product": lambda h: h * NOW.t,
    "from the left": lambda h: NOW.t * h + (1 - NOW.t) * h.cos() - NOW.t / (2 + h),
    "of other numbers": lambda h: h * (1 - NOW.t) ** 2 + -NOW.t * 0.5 // 0.3 % 2,
    "quotient": lambda h: torch.softmax(h / NOW.t, -1),
    "power": lambda h: (h.abs() + 0.1) ** NOW.t + NOW.t**h,
    "between": lambda h: h.clamp(-NOW.t, NOW.t).masked_fill(h > NOW.t, NOW.t),
    "compared": lambda h: torch.where(h > NOW.t, h * 2, NOW.t),
    "lerp": lambda h: torch.lerp(h, h.cos(), NOW.t),
    "alpha": lambda h: torch.add(h, h.cos(), alpha=NOW.t),
    "no less than": lambda h: h * max(NOW.t, 0.1),
    "instance": lambda h: h * NOW.t if isinstance(NOW.t, (int, float)) else h,
    "asked once": guarded,
    "asked twice": not_read_always,
    "refused by Python": caught,
    "truth": lambda h: h * NOW.t if NOW.t else h.cos(),
    "tensor": lambda h: h * torch.tensor(NOW.t, dtype=h.dtype),
    "dropped": lambda h: h + F.dropout(h, NOW.t, training=False),
}
SEEN = {
    "exp": lambda h: h * math.exp(-abs(NOW.t)),
    "text": lambda h: h * float(f"{NOW.t}"),
    "whole": lambda h: h * int(NOW.t * 4),
    "numpy": lambda h: h * float(np.sqrt(abs(NOW.t))),
    "an index": lambda h: h * [1.0, 3.0][int(NOW.t > 0.75)] + h[:, : 1 + round(NOW.t)].sum(),
    "a tensor of it": made_of_it,
    "its class": of_its_class,
    "hash": lambda h: h * {NOW.t: 2.0}.get(0.97, 3.0),
    "place": lambda h: h + h[:, torch.tensor(NOW.t, dtype=torch.float64).round().long()][:, None],
    "a tensor asked": lambda h: h * (2 if torch.tensor(NOW.t, dtype=torch.float64) > 0.75 else 3),
    "sixteen bits": lambda h: h + (h.half() * NOW.t).to(h.dtype) * 0,
    "whole tensors": lambda h: h + ((h > 0).long() * NOW.t).to(h.dtype),
    "which norm": lambda h: h * torch.linalg.vector_norm(h, NOW.t, dim=1, keepdim=True),
    "refused by torch": lambda h: h + F.celu(h, NOW.t) + torch.quantile(h, abs(NOW.t), 1, keepdim=True),
    "range of a float": lambda h: h + h.float().masked_fill(h > 0, NOW.t).clamp(-1, 1).to(h.dtype),
    "list": lambda h: h * torch.tensor([NOW.t, 1.0, 2.0], dtype=h.dtype),
}


BUILT = [(name, "c") for name in [*FOLLOWED][::3]]


@pytest.mark.parametrize(("name", "backend"), few([*BUILT, *((name, "auto") for name in FOLLOWED)], BUILT))
@pytest.mark.filterwarnings("ignore")
def test_a_number_is_followed(name, backend, recorded):
    step = step_of(FOLLOWED[name])
    check(step, RAMP, temperature, backend)
    known = len(recorded)
    check(step, [0.96**k - 0.01 for k in range(2, 11)], temperature, backend)
    assert len(recorded) == known
    check(step, ODD, temperature, backend)


ALL_VALUES = [*RAMP[::-1], *RAMP, *ODD]
BY_OTHER_OPS = ("refused by torch", "which norm")  # for each value
SEES = [(name, ALL_VALUES) for name in SEEN] + [(name, ALL_VALUES[6::4]) for name in BY_OTHER_OPS]


@pytest.mark.parametrize(
    ("name", "values"),
    few(
        SEES,
        [*[(name, ALL_VALUES) for name in ("exp", "numpy", "its class", "a tensor asked", "list")], SEES[-1]],
    ),
    ids=lambda part: part if isinstance(part, str) else str(len(part)),
)
@pytest.mark.filterwarnings("ignore")
def test_what_looks_at_a_number_sees_each(name, values, recorded):
    check(step_of(SEEN[name]), values, temperature)


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_refuses_some_numbers_sees_each():
    check(step_of(lambda h: F.softshrink(h, NOW.t)), [*RAMP, -2.0], temperature)


class Annealed(nn.Module):
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.t, self.also, self.held = 0.5, 0.5, {"t": 0.5}

    def forward(self, x, h):
        h = torch.tanh(x @ W + h * self.t - h.cos() * self.also + self.held["t"] * h.sin() * self.scale)
        return h, h


@pytest.mark.parametrize("name", ["t", "also", "held", "scale", "two", "all in one"])
@pytest.mark.filterwarnings("ignore")
def test_wherever_it_stands(name, recorded, monkeypatch):
    monkeypatch.setattr(Annealed, "scale", 1.0)
    step = Annealed()

    def change(value):
        if name in ("t", "two", "all in one"):
            step.t = value
        if name in ("also", "all in one"):
            step.also = value
        if name == "two":
            step.also = value * 2
        if name in ("held", "all in one"):
            step.held["t"] = value
        if name == "scale":
            Annealed.scale = value

    check(step, RAMP, change)
    known = len(recorded)
    check(step, [0.9, 0.8, 0.7, 0.61], change)
    assert name == "all in one" or len(recorded) == known
    step.also = 0.125  # which did not change before
    check(step, [0.95, 0.85, 0.75, 0.65, 0.55, 0.45], change)
    step.also, step.t = 3.0, 2.0
    check(step, [0.94, 0.84, 0.74, 0.64, 0.54, 0.44], change)


def test_of_one_object_in_two_places_each_is_read():
    step = Annealed()
    for k in range(12):
        value = 0.9**k
        step.t = step.also = value
        check(step, [None], lambda _: None)
    for k in range(6):
        step.t = 0.8**k
        check(step, [None], lambda _: None)


def _global():
    def step(x, h):
        h = torch.tanh(x @ W + h * EPSILON)
        return h, h

    return step, lambda value: globals().update(EPSILON=value)


def _closure():
    t = 0.5

    def change(value):
        nonlocal t
        t = value

    def step(x, h):
        h = torch.tanh(x @ W + h * t)
        return h, h

    return step, change


def _default():
    def step(x, h, t=0.5):
        h = torch.tanh(x @ W + h * t)
        return h, h

    def change(value):
        step.__defaults__ = (value,)

    return step, change


def _partial():
    def of(x, h, t):
        h = torch.tanh(x @ W + h * t)
        return h, h

    step = functools.partial(of, t=0.5)
    return step, lambda value: step.keywords.update(t=value)


@pytest.mark.parametrize("made", [_global, _closure, _default, _partial])
def test_of_functions(made, recorded):
    step, change = made()
    check(step, RAMP, change)
    known = len(recorded)
    check(step, [0.61, 0.62, 0.63], change)
    assert len(recorded) == known
    check(step, [1, True, math.inf], change)


@pytest.mark.filterwarnings("ignore")
def test_the_p_of_a_dropout(recorded):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x, h):
            h = self.drop(torch.tanh(x + h))
            return h, h

    step, x, h = Dropping(), torch.randn(4, 2000, 2), torch.zeros(2000, 2)
    for p in [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.35, 0.0, 1.0]:
        step.drop.p = p
        y, _ = recurrent(step, x, h)
        assert abs((y == 0).double().mean() - p) < 0.03
    assert len(recorded) <= 8
    step.drop.p = 1.5
    with pytest.raises(ValueError, match="dropout probability"):
        recurrent(step, x, h)


def test_a_weight_that_is_another_is_asked_again(recorded):
    """What a number meets is asked for at each call as ever."""
    weight = torch.ones(D, dtype=torch.float64)

    def step(x, h):
        h = torch.tanh(x + h * NOW.t * (2 if bool((weight > NOW.t).all()) else 3))
        return h, h

    check(step, RAMP, temperature)
    weight *= 0.8
    check(step, [*RAMP, 0.81, 0.79, 0.3], temperature)


@pytest.mark.filterwarnings("ignore")
def test_a_count():
    def change(value):
        NOW.n = value

    uses = {"h": lambda h: torch.tanh(h * NOW.n / 4) + h / (1 + abs(NOW.n)) + (h.abs() + 0.1) ** (NOW.n % 5)}
    uses["place"] = lambda h: h + h[:, NOW.n % 3 : NOW.n % 3 + 1]
    uses["schedule"] = lambda h: h * (1.0 if NOW.n < 8 else 0.5 ** (NOW.n - 8)) * min(NOW.n, 12)
    for use in uses.values():
        check(step_of(use), [*range(1, 20), 0, -3, 2**40, 2**64, 1.5, True], change)
