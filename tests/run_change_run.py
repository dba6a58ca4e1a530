"""A step that is run, changed and run again: each time it gives what the plain loop gives, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepnet import recurrent

D = 3  # features


def rows() -> Tensor:
    """Four steps of two sequences."""
    return torch.randn(4, 2, D, requires_grad=True)


def ran(step: Any, x: Tensor, backend: Any) -> list[Tensor]:
    """What a step gives, and the gradient of x."""
    y, h = recurrent(step, x, torch.ones(2, D), backend=backend)
    return [y, h, *torch.autograd.grad(y.sum() + h.sum(), x)]


def run_change_run(make: Callable[[], Any], change: Callable[[Any], Any]) -> None:
    """The law, of a step and what is changed of it, twice."""
    step, x = make(), rows()
    for _ in range(2):
        for _ in range(4):
            torch.testing.assert_close(ran(step, x, "eager"), ran(step, x, "naive"))
        change(step)
    torch.testing.assert_close(ran(step, x, "eager"), ran(step, x, "naive"))
