"""Sums over rows of arithmetic, which gradients of weights are that multiply number by number."""

import pytest
import torch

from stepnet import LoDTensor, recurrent

# lengths, and what the last row has of special values
ROWS = [([7, 0, 1, 12], 0.0), ([20], 0.0), ([0, 0], 0.0), ([1], 0.0), ([], 0.0)]
ROWS += [([3, 14], value) for value in (torch.inf, -torch.inf, torch.nan)]


def decay(x, h, a, b, c, d):
    h = a * h + b * torch.tanh(x)
    return c * h * d, h


def another_reads(x, h, a, b, c, d):
    h = a * h + b * torch.tanh(x)
    y = c * h
    return (y, d * h.exp(), h * torch.where(x > 0, d, b)), h


def normed(x, h, a, b, c, d):
    h = a * h + b * x
    centered = h - h.mean(-1, keepdim=True)
    return d + c * centered * (centered.square().mean(-1, keepdim=True) + 1e-3).rsqrt(), h


def of_parts(x, h, a, b, c, d):
    h = a[:2].repeat(2) * h + torch.cat([x[..., :2] * b[:2], d[2:].exp() * x[..., 2:]], -1)
    return (h.unflatten(-1, (2, 2)) * c.unflatten(-1, (2, 2))).flatten(-2), h


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [decay, another_reads, normed, of_parts], ids=lambda step: step.__name__)
def test_gradients_are_those_of_the_plain_loop(step):
    torch.manual_seed(0)
    weights = [torch.rand(4, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    for lengths, special in ROWS:
        x = torch.randn(sum(lengths), 4, dtype=torch.float64)
        x[-1:, 2] += special
        expected, found = (_gradients(step, weights, x, lengths, backend) for backend in ("naive", "c"))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def _gradients(step, weights, values, lengths, backend):
    x = values.clone().requires_grad_()
    start = torch.ones(len(lengths), 4, dtype=torch.float64, requires_grad=True)
    rows = LoDTensor.from_lengths(x, [lengths])
    y, last = recurrent(lambda x, h: step(x, h, *weights), rows, start, backend=backend)
    leaves = y if isinstance(y, tuple) else (y,)
    loss = sum(leaf.values.square().sum() for leaf in leaves) + last.sin().sum()
    return torch.autograd.grad(loss, [*weights, x, start], allow_unused=True)
