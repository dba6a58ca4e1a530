"""Gradients that are differentiated when the step reads something else than at its call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from covering import every
from stepnet import recurrent

OPTIMISED = False
D, DTYPE = 3, torch.float64


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("way", every(2, ["dict", "attribute", "number", "closure"]))
def test_a_step_that_changes_after_its_gradient_was_taken(backend, way):
    """As in MAML: what it reads next is made of that gradient, which is differentiated when all is over."""

    def outer(backend):
        torch.manual_seed(4)
        first = nn.Parameter(torch.randn(D, D, dtype=DTYPE))
        held, gain = nn.Module(), [1.0]
        held.w = first
        weights = {"w": first}
        fast = first

        def step(x, h):
            w = {"dict": weights["w"], "attribute": held.w, "closure": fast, "number": first}[way]
            h = torch.tanh((x + h @ w) * gain[0])
            return h, h

        x = torch.randn(4, 2, D, dtype=DTYPE)
        for _ in range(3):
            y, _ = recurrent(step, x, torch.zeros(2, D, dtype=DTYPE), backend=backend)
            (g,) = torch.autograd.grad(
                y.square().sum(), fast if way != "number" else first, create_graph=True
            )
            fast = fast - 0.1 * g
            weights["w"] = fast
            if way == "attribute":
                held._parameters.pop("w", None)
                held.w = fast
            gain[0] += 0.5 * (way == "number")
        y, _ = recurrent(step, x, torch.zeros(2, D, dtype=DTYPE), backend=backend)
        return torch.autograd.grad(y.square().sum() + fast.square().sum(), first)

    for _ in range(2):
        torch.testing.assert_close(outer(backend), outer("naive"))
