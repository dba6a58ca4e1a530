"""Batches of gradients (`is_grads_batched=True`): torch draws no numbers in there, stepnet its samples."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from stepnet import recurrent
from stepnet.data.modes import batches, outside_batches
from stepnet.engine import plans

OPTIMISED = False
DTYPE = torch.float64


def step(x, h):
    h = torch.tanh(x + 0.5 * h)
    return h, h


def plainly(x, backend):
    return recurrent(step, x, torch.zeros(2, 3, dtype=DTYPE), backend=backend)[0]


def by_vmap(x, backend):
    each = torch.func.vmap(
        lambda x: recurrent(step, x, torch.zeros(1, 3, dtype=DTYPE), backend=backend)[0],
        in_dims=1,
        out_dims=1,
    )
    return each(x.unsqueeze(2))


@pytest.mark.parametrize("run", [plainly, by_vmap])
@pytest.mark.parametrize("backend", ["auto", "eager", "c"])
def test_plans_are_made_in_there(backend, run):
    """As when a checkpoint computes again what is forgotten."""
    x = torch.linspace(-1, 1, 18, dtype=DTYPE).reshape(3, 2, 3).requires_grad_()
    y = checkpoint(run, x, backend, use_reentrant=False)
    plans.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (many,) = torch.autograd.grad(y, x, torch.ones(2, *y.shape, dtype=DTYPE), is_grads_batched=True)
    (expected,) = torch.autograd.grad(run(x, "naive").sum(), x)
    torch.testing.assert_close(many, torch.stack([expected, expected]), rtol=1e-9, atol=1e-10)


def test_what_is_around_is_put_back():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            with contextlib.suppress(ZeroDivisionError), outside_batches():
                seen.append((batches(), torch.rand(1).shape))
                seen.append(1 // 0)
            seen.append(batches())
            return grad

    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(Look.apply(x), x, torch.eye(2), is_grads_batched=True)
    assert seen == [(0, (1,)), 1]
    assert batches() == 0


@pytest.mark.parametrize("inside", [False, True])
def test_many_gradients_by_vmap_of_autograd_grad(inside):
    """The recurrence runs before, or in the function, where nothing that it is given is in the batch."""
    x = torch.linspace(-1, 1, 18, dtype=DTYPE).reshape(3, 2, 3).requires_grad_()
    seeds = torch.linspace(-2, 3, 72, dtype=DTYPE).reshape(2, 2, 3, 2, 3)
    y = plainly(x, "eager")

    def pull(seed):
        return torch.autograd.grad(plainly(x, "eager") if inside else y, x, seed, retain_graph=True)[0]

    found = torch.vmap(torch.vmap(pull))(seeds)
    expected = torch.stack([pull(seed) for seed in seeds.flatten(0, 1)]).view(seeds.shape)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
