"""`torch.autograd.grad` in a step by a state: through the steps before, if these made another state of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from outcomes import outcome, same
from stepnet import recurrent

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
