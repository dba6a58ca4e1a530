"""Slices of tensors in frames, from one place that is counted to another: their length is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet
from stepnet import TensorArray

N = 5
SCAN, RECORDED = "raised to a scan", "as recorded"


def run(read: Callable[[Any, Any], Any], start: int, by: int, end: int, x: Tensor) -> tuple[Tensor, str]:
    states, W = TensorArray(), torch.arange(16.0).reshape(4, 4) / 40
    loop = stepnet.create_whileloop([torch.tensor(start), torch.zeros(2, 4)])
    with loop.frame() as (s, h):
        loop.break_if(s == end)
        new = torch.tanh(h @ W + read(x, s))
        states.write(new)
        loop.update(h, new)
        loop.update(s, s + by)
    return states.stack(), loop.explain()


CASES = {
    "one, squeezed": (lambda x, s: x[s : s + 1].squeeze(0), 0, 1, N, SCAN),
    "one, joined": (lambda x, s: torch.cat([x[s : s + 1], x[s : s + 1]]).sum(0), 0, 1, N, SCAN),
    "the one before": (lambda x, s: x[s - 1 : s].squeeze(0), 1, 1, N, SCAN),
    "downwards": (lambda x, s: x[s - 1 : s].squeeze(0), N, -1, 0, SCAN),
    "each second": (lambda x, s: x[2 * s : 2 * s + 1].squeeze(0), 0, 1, 3, SCAN),
    "another axis": (lambda x, s: x.transpose(0, 1)[:, s : s + 1].squeeze(1), 0, 1, N, SCAN),
    "behind the end": (lambda x, s: x[s : s + 1].sum(0), 0, 1, N + 2, RECORDED),
    "before the beginning": (lambda x, s: x[s - 1 : s].sum(0), 0, 1, N, RECORDED),
    "two": (lambda x, s: x[s : s + 2].unbind(0)[1], 0, 1, N - 1, RECORDED),
    "up to here": (lambda x, s: x[: s + 1].sum(0), 0, 1, N, RECORDED),
    "from a number to another": (lambda x, s: x[s : 2 * s + 1].mean(0), 0, 1, N, RECORDED),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_are_those_of_the_step(name):
    read, start, by, end, how = CASES[name]
    x = torch.randn(N, 2, 4, requires_grad=True)
    stepnet.set_backend("eager")
    found, told = run(read, start, by, end, x)
    assert how in told or torch.__version__ < "2.13"  # some of torch's calls have no rule for rows
    h, expected = torch.zeros(2, 4), []
    for s in range(start, end, by):
        h = torch.tanh(h @ (torch.arange(16.0).reshape(4, 4) / 40) + read(x, s))
        expected.append(h)
    torch.testing.assert_close(found, torch.stack(expected))
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, torch.stack(expected))]
    torch.testing.assert_close(*gradients)
