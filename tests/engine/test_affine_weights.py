"""Derivatives of derivatives where a weight is only added: nothing that moves along it differs again."""

from __future__ import annotations

import pytest
import torch

import stepnet
from stepnet import LoDTensor

NAMES = ("W", "V", "first", "bias")


def gradients(run, loss, weights):
    """First, second and third derivatives of a loss, of each weight."""
    y, last = run(weights)
    value, found = loss(y, last), []
    for order in (1, 2, 3):
        made = torch.autograd.grad(value, weights, create_graph=order < 3, materialize_grads=True)
        found += made
        value = sum(gradient.square().sum() for gradient in made)
    return found


def outside(x, h, W, V, b):
    h = torch.tanh(x @ W + h)
    return h @ V + b, h


def inside(x, h, W, V, b):
    h = torch.tanh(x @ W + h @ W)
    return h @ V + b, h * (1 - h)


def added_to_the_state(x, h, W, V, b):
    h = torch.tanh(x @ W + h @ V)
    return h, h + b


@pytest.mark.parametrize("step", [outside, inside, added_to_the_state])
@pytest.mark.parametrize(
    "loss",
    [lambda y, last: y.square().sum() + last.sum(), lambda y, last: (y[:, :1] * y).sum()],
    ids=["square", "product"],
)
def test_three_orders(step, loss):
    torch.manual_seed(0)
    rows = [torch.randn(n, 2, dtype=torch.float64) for n in (3, 0, 1)]
    weights = [
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 2), (2, 2), (3, 2), (2,))
    ]

    def ours(weights):
        W, V, first, b = weights
        y, last = stepnet.recurrent(lambda x, h: step(x, h, W, V, b), LoDTensor.from_sequences(rows), first)
        return y.values, last

    def by_hand(weights):
        W, V, first, b = weights
        ys, lasts = [], []
        for sequence, h in zip(rows, first.split(1), strict=True):
            for x in sequence.split(1) if len(sequence) else ():
                y, h = step(x, h, W, V, b)
                ys.append(y)
            lasts.append(h)
        return torch.cat(ys), torch.cat(lasts)

    pairs = zip(gradients(ours, loss, weights), gradients(by_hand, loss, weights), strict=True)
    for at, (found, wanted) in enumerate(pairs):
        torch.testing.assert_close(
            found, wanted, msg=lambda m, at=at: f"{NAMES[at % 4]}, order {at // 4 + 1}: {m}"
        )
