"""Rows of more numbers than the stack of a thread holds."""

from __future__ import annotations

import pytest
import torch

from stepnet import recurrent
from stepnet.errors import Unsupported


def step(x, h):
    a = torch.tanh(x + h)
    b = a.softmax(-1)
    d = torch.sigmoid(a) * (b * a).sum(-1, keepdim=True)
    return d.sum(-1, keepdim=True), (a - d).flip(-1)


def run(size, backend):
    x = torch.linspace(-1, 1, 4 * size).reshape(2, 2, size).requires_grad_()
    y, h = recurrent(step, x, torch.zeros(2, size), backend=backend)
    return y.detach(), h.detach(), torch.autograd.grad(y.sum() + h.sum(), x)[0]


def test_they_are_left_to_torch():
    with pytest.raises(Unsupported, match="the values of one row take"):
        run(2_000_000, "c")
    for ours, plain in zip(run(300_000, "auto"), run(300_000, "naive"), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-5)
