"""`torch.autograd.grad` in a step by a state: through the steps before, if these made another state of it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import stepnet
from outcomes import outcome, same
from stepnet import recurrent
from torch_since import torch_since

WEIGHT = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3).requires_grad_()


def surprise(h: Any, w: Any) -> Any:
    return torch.autograd.grad((torch.tanh(h) * torch.sin(w)).sum(), w, create_graph=True)[0]


def made_of_new(x: Any, state: Any) -> Any:
    h, w = state
    w = w - 0.2 * surprise(x @ WEIGHT + h, w)
    h = torch.tanh(x @ WEIGHT + w + h)
    return h, (h, w)


def kept(x: Any, state: Any) -> Any:
    h, w = state
    h = torch.tanh(x @ WEIGHT + surprise(x + h, w) + w)
    return h, (h, w)


def seen_whole(x: Any, h: Any, w: Any) -> Any:
    h = torch.tanh(x @ WEIGHT + surprise(x + h, w) + h)
    return h, h


def made_of_old(x: Any, state: Any) -> Any:
    h, w = state
    new = w - 0.2 * surprise(x @ WEIGHT + h, w)
    return h + new, (torch.tanh(x @ WEIGHT + w + h), new)


def alone(x: Any, state: Any) -> Any:
    h, w = state
    w = w - 0.2 * surprise(x @ WEIGHT, w)
    h = torch.tanh(x + w + h)
    return h, (h, w)


def detached(x: Any, state: Any) -> Any:
    h, w = state
    own = w.detach().requires_grad_()
    with torch.enable_grad():
        g = surprise(x @ WEIGHT + h, own)
    w = w - 0.2 * g
    h = torch.tanh(x @ WEIGHT + w + h)
    return h, (h, w)


def not_asked_for(x: Any, state: Any) -> Any:
    h, w = state
    h = h - 0.2 * surprise(x + w, h)
    w = torch.tanh(x @ WEIGHT + w)
    return h, (h, w)


def given(*shape: int) -> Any:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=draw).requires_grad_()


@pytest.mark.parametrize("step", [made_of_new, kept, seen_whole])
def test_through_the_steps_before(step: Any) -> None:
    x, h, w = given(4, 2, 3), given(2, 3), given(1, 2, 3)[0]
    state, how = (h, {"static": w}) if step is seen_whole else ((h, w), {})
    ys, s = [], state
    for row in x:
        y, s = step(row, s, *how.values())
        ys.append(y)
    with pytest.warns(
        stepnet.errors.SlowPathWarning, match="by a state, of what depends on another state, which"
    ):
        y, _ = recurrent(step, x, state, **how)
    torch.testing.assert_close(y, torch.stack(ys), rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", [made_of_old, alone, detached, not_asked_for])
def test_through_one_step_compiles(step: Any) -> None:
    x, state = given(4, 2, 3), (given(2, 3), given(1, 2, 3)[0])
    for ours, plain in zip(
        *(outcome(step, x, state, b, weights=[WEIGHT]) for b in ("c", "naive")), strict=True
    ):
        same(ours, plain)


def plain_rows(step: Any, x: Any, state: Any) -> Any:
    ys = []
    for row in x:
        y, state = step(row, state)
        ys.append(y)
    return torch.stack(ys)


# What a caller makes of x, h and w, and the steps whose gradients by w go through it.
MAKES: list[Any] = [
    pytest.param(lambda x, h, w: (x + w, h, w), (made_of_old, alone), id="x of w"),
    pytest.param(lambda x, h, w: (x, h + w.sin(), w), (made_of_old,), id="h of w"),
    pytest.param(lambda x, h, w: (x, w, w), (made_of_old,), id="h is w"),
    pytest.param(lambda x, h, w: (x * h, h, w), (), id="x of h"),
    pytest.param(lambda x, h, w: (x, h, w + h.sin() + x[0]), (), id="w of h and x"),
    pytest.param(lambda x, h, w: (x, *torch.stack([h, w]).unbind()), (), id="h beside w"),
    pytest.param(lambda x, h, w: (x + w, h, w.clone()), (), id="w copied"),
]


class Model(torch.nn.Module):
    def __init__(self, step: Any, make: Any) -> None:
        super().__init__()
        self.step, self.make = step, make

    def forward(self, x: Any, h: Any, w: Any) -> Any:
        rows, *state = self.make(x, h, w)
        return recurrent(self.step, rows, tuple(state))[0]


def is_that_of_the_plain_loop(y: Any, step: Any, x: Any, state: Any) -> None:
    torch.testing.assert_close(y, plain_rows(step, x, state), rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", [made_of_old, alone])
@pytest.mark.parametrize(("make", "through"), MAKES)
def test_through_what_the_caller_did(make: Any, through: Any, step: Any) -> None:
    x, *state = given(4, 2, 3), given(2, 3), given(1, 2, 3)[0]
    rows, *made = make(x, *state)
    for _ in range(3):  # a later call is not taken for one like those before
        is_that_of_the_plain_loop(recurrent(step, x, tuple(state))[0], step, x, tuple(state))
        if step not in through:
            y, _ = recurrent(step, rows, tuple(made), backend="c")
            is_that_of_the_plain_loop(y, step, rows, tuple(made))
            continue
        with pytest.raises(stepnet.errors.Unsupported, match="of what its caller made of that state"):
            recurrent(step, rows, tuple(made), backend="c")
        with warnings.catch_warnings():  # told once
            warnings.simplefilter("ignore", stepnet.errors.SlowPathWarning)
            is_that_of_the_plain_loop(recurrent(step, rows, tuple(made))[0], step, rows, tuple(made))


@torch_since("2.13", "its Dynamo follows torch.autograd.grad")
@pytest.mark.filterwarnings("ignore:A model attribute")
@pytest.mark.parametrize("step", [made_of_new, kept, made_of_old, not_asked_for])
@pytest.mark.parametrize(("make", "through"), MAKES[:1] + MAKES[-1:])
def test_exported_or_refused(make: Any, through: Any, step: Any) -> None:
    x, *state = given(4, 2, 3), given(2, 3), given(2, 3, 1)[:, :, 0].detach().requires_grad_()
    model = Model(step, make)
    reason = "the step before made" if step in (made_of_new, kept) else "its caller made"
    if reason == "the step before made" or (through and step is made_of_old):
        with pytest.raises(stepnet.errors.StepError, match=reason):
            torch.export.export(model, (x, *state), strict=False)
        return
    rows, *made = make(x, *state)
    y = torch.export.export(model, (x, *state), strict=False).module()(x, *state)
    is_that_of_the_plain_loop(y, step, rows, tuple(made))
