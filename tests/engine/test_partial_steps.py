"""A `functools.partial` of a step is known as the function is: a later call finds each change of what it
holds."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from run_change_run import D, ran, rows, run_change_run
from stepnet.engine.walked_steps import unchanged_step
from tables import holds
from torch_since import TOLD


def plain(k: Any, w: Any, x: Any, h: Any, scale: Any = 1.0) -> Any:
    h = torch.tanh(x @ w + h * k) * scale
    return h, h


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.k = nn.Parameter(torch.randn(D, D)), 0.5

    def run(self, scale: Any, x: Any, h: Any) -> Any:
        h = torch.tanh(x @ self.w + h * self.k) * scale
        return h, h


def of_function() -> Any:
    return functools.partial(plain, 0.5, torch.randn(D, D, requires_grad=True), scale=2.0)


def of_method() -> Any:
    return functools.partial(Held().run, 2.0)


def of_partial() -> Any:
    return functools.partial(functools.partial(of_function(), scale=3.0))


def other(step: Any, **how: Any) -> None:
    """As unpickling sets what it holds."""
    parts = {"func": step.func, "args": step.args, "keywords": step.keywords, "own": step.__dict__, **how}
    step.__setstate__((parts["func"], parts["args"], parts["keywords"], parts["own"]))


def shifted(*args: Any, **how: Any) -> Any:
    y, h = plain(*args, **how)
    return y + 1, h


CHANGES: dict[str, tuple[Any, Any]] = {
    "a keyword": (of_function, lambda s: s.keywords.update(scale=0.5)),
    "a keyword less": (of_function, lambda s: s.keywords.clear()),
    "a tensor written to": (of_function, lambda s: s.args[1].data.mul_(2)),
    "a tensor's gradient": (of_function, lambda s: s.args[1].requires_grad_(False)),
    "an argument": (of_function, lambda s: other(s, args=(0.25, s.args[1]))),
    "a tensor": (of_function, lambda s: other(s, args=(0.5, torch.randn(D, D, requires_grad=True)))),
    "keywords": (of_function, lambda s: other(s, keywords={"scale": 0.25})),
    "a function": (of_function, lambda s: other(s, func=shifted)),
    "defaults": (of_partial, lambda s: s.keywords.update(scale=0.5)),
    "an attribute of a method's": (of_method, lambda s: setattr(s.func.__self__, "k", 0.25)),
    "a parameter of a method's": (
        of_method,
        lambda s: setattr(s.func.__self__, "w", nn.Parameter(torch.randn(D, D))),
    ),
    "an attribute of its own": (of_function, lambda s: setattr(s, "note", 1)),
}


def test_run_change_run():
    holds(run_change_run, CHANGES)


@TOLD
@pytest.mark.parametrize("make", [of_function, of_method, of_partial], ids=lambda make: make.__name__)
def test_a_partial_is_walked_no_more(make):
    step, x = make(), rows()
    for _ in range(4):
        ran(step, x, "eager")
    assert unchanged_step(step) is not None
