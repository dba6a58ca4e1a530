"""Gradients of states that nobody asks for, row by row read by what comes after the scan: also in calls
that go by places, as those like several before do."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from covering import few
from stepnet import LoDTensor, recurrent

D = 5
W, V = torch.randn(2, D, D, dtype=torch.float64, requires_grad=True).unbind()
B = torch.randn(D, dtype=torch.float64, requires_grad=True)


def added(x, h):
    z = F.linear(torch.tanh(x + h), W, B)
    return z, h + z


def apart(x, h):
    return x * 2, h + F.linear(torch.tanh(h), W, B)


def narrow(x, h):
    z = F.linear(torch.tanh(x + h)[:, : D - 1], W[:, : D - 1], B)
    return z, h + z


def beside(x, h):
    return torch.tanh(x) @ V, h * 0.5 + torch.tanh(x + h) @ W


STEPS = {"added": added, "apart": apart, "narrow": narrow, "beside": beside}


def outcome(step, backend, x, h, order, shown):
    y, last = recurrent(step, x, h, backend=backend)
    rows = y.values if isinstance(y, LoDTensor) else y
    loss = last.square().sum() + (rows.square().sum() if shown else 0)
    given = [t for t in (x.values if isinstance(x, LoDTensor) else x, h, W, V, B) if t.requires_grad]
    found = torch.autograd.grad(loss, given, create_graph=order == 2, allow_unused=True)
    if order == 2:
        loss = sum(g.square().sum() for g in found if g is not None and g.requires_grad)
        found = torch.autograd.grad(loss, given, allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("of_h", [False, True])
@pytest.mark.parametrize("name", few(STEPS, ["added", "apart", "beside"]))
def test_as_in_the_first_call(name, of_h, order, ragged):
    for shown in (False, True):
        for seed in range(4):
            draw = torch.Generator().manual_seed(seed)
            x = torch.randn(3, 2, D, dtype=torch.float64, generator=draw, requires_grad=True)
            rows = (
                LoDTensor.from_lengths(x.detach().flatten(0, 1).requires_grad_(), [[4, 2]]) if ragged else x
            )
            h = torch.randn(2, D, dtype=torch.float64, generator=draw, requires_grad=of_h)
            expected = outcome(STEPS[name], "naive", rows, h, order, shown)
            torch.testing.assert_close(outcome(STEPS[name], "c", rows, h, order, shown), expected)
