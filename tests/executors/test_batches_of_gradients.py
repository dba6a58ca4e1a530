"""Batches of gradients (`is_grads_batched=True`): torch draws no numbers in there, stepnet its samples."""

from __future__ import annotations

import contextlib
import functools
import warnings

import pytest
import torch
from torch.autograd import grad
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


def of_first(x, y, g, penalty, v):
    return grad(y, x, v, retain_graph=True)


def of_second(x, y, g, penalty, v):
    return grad(g, x, v, retain_graph=True)


def of_both(x, y, g, penalty, v):
    """What comes in for the penalty is in no transform: its derivative is one plan, made in there."""
    return grad([penalty, y], x, [torch.ones((), dtype=DTYPE), v], retain_graph=True)


def of_neither(x, y, g, penalty, v):
    (found,) = grad([penalty, y], x, [torch.ones((), dtype=DTYPE), torch.ones_like(y)], retain_graph=True)
    return (found * v,)


def each_of_two(function, v):
    return torch.func.vmap(function)(torch.stack([v, 2 * v]))


def along(function, v):
    return torch.func.jvp(function, (v,), (2 * v,))


def gradient(function, v):
    return torch.func.grad(lambda v: function(v)[0].sin().sum())(v)


AROUND = {
    "vmap": each_of_two,
    "vmap in vmap": lambda f, v: each_of_two(lambda v: each_of_two(f, v), v),
    "jvp": along,
    "jvp in jvp": lambda f, v: along(lambda v: along(f, v), v),
    "grad": gradient,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("pull", [of_both, of_second, of_first, of_neither])
@pytest.mark.parametrize("around", AROUND)
def test_transforms_around_a_backward(around, pull):
    """The recurrence ran before them: what is plain stays outside of them."""
    found = {}
    for backend in ("naive", "eager"):
        plans.forget()
        x = torch.linspace(-1, 1, 18, dtype=DTYPE).reshape(3, 2, 3).requires_grad_()
        y = plainly(x, backend)
        (g,) = grad(y.sin().sum(), x, create_graph=True)
        v = torch.linspace(-2, 3, 18, dtype=DTYPE).reshape(3, 2, 3)
        found[backend] = AROUND[around](functools.partial(pull, x, y, g, g.square().sum()), v)
    torch.testing.assert_close(found["eager"], found["naive"], rtol=1e-9, atol=1e-10)
