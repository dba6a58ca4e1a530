"""Noise of a generator of the step's own: the numbers of the plain loop, and the state that it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stepnet import LoDTensor, explain, recurrent, while_loop
from stepnet.errors import SlowPathWarning, StepError, Unsupported
from stepnet.executors.base import Backend

DTYPE = torch.float64
D = 4
ONE, OTHER = torch.Generator(), torch.Generator()
W = torch.eye(D, dtype=DTYPE).mul_(0.5).requires_grad_()


def noisy(x: Tensor, h: Tensor) -> Any:
    """Every kind of draw, of two generators; one that torch's own generator takes no part in."""
    normal = torch.randn(h.shape, generator=ONE, dtype=DTYPE)
    filled = torch.empty(h.shape, dtype=DTYPE).uniform_(-1, 2, generator=OTHER)
    whole = torch.randint(2, 7, (x.shape[0],), generator=ONE)
    kept = torch.rand(x.shape[0], D, generator=ONE, dtype=DTYPE) < 0.7
    waited = torch.zeros(x.shape[0], D, dtype=DTYPE)
    waited.exponential_(generator=OTHER)
    h = torch.tanh(x @ W + h * kept + 0.1 * normal + filled * waited) + 0.01 * whole[:, None].to(h)
    return (h, whole), h


def both(x: Tensor, h: Tensor) -> Any:
    h = h + x + torch.rand(x.shape[0], D, generator=ONE, dtype=DTYPE) + 0 * torch.rand_like(h)
    return h, h


def inputs(lengths: list[int] | None) -> tuple[Any, Tensor, Tensor]:
    rows = sum(lengths) if lengths is not None else 12
    x = torch.linspace(-1, 1, rows * D, dtype=DTYPE).reshape(rows, D).requires_grad_()
    n = len(lengths) if lengths is not None else 3
    h = torch.ones(n, D, dtype=DTYPE, requires_grad=True)
    return x if lengths is None else LoDTensor.from_lengths(x, [lengths]), x, h


def outcome(step: Any, lengths: list[int] | None, backend: Backend, reverse: bool) -> list[Tensor]:
    """Results of two calls, the gradients, and the states of the generators after them."""
    x, rows, h = inputs(lengths)
    x = x if lengths is not None else rows.view(4, 3, D)
    ONE.manual_seed(7)
    OTHER.manual_seed(8)
    results = []
    for _ in range(2):
        y, final = recurrent(step, x, h, backend=backend, reverse=reverse)
        leaves = y if isinstance(y, tuple) else (y,)
        results += [*(leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in leaves), final]
    total = torch.cat([(r * r.cos()).flatten() for r in results if r.requires_grad]).sum()
    found = torch.autograd.grad(total, [rows, h, W], materialize_grads=True, allow_unused=True)
    return [*results, *found, ONE.get_state(), OTHER.get_state()]


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", [[3, 0, 1, 6], [1], [], None], ids=str)
@pytest.mark.parametrize("step", [noisy, both], ids=lambda s: s.__name__)
def test_the_numbers_of_the_plain_loop(step, lengths):
    for reverse in (False, True):
        expected = outcome(step, lengths, "naive", reverse)
        for ours, theirs in zip(outcome(step, lengths, "c", reverse), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_compiling_and_explaining_draw_nothing():
    x, _, h = inputs([2, 3])
    ONE.manual_seed(5)
    OTHER.manual_seed(5)
    before = ONE.get_state(), OTHER.get_state()
    told: Any = explain(lambda x, h: noisy(x, h * 1.5), x, h, backend="c")
    assert told.executor == "c"
    assert all(map(torch.equal, before, (ONE.get_state(), OTHER.get_state())))


def seeds(x: Tensor, h: Tensor) -> Any:
    ONE.manual_seed(3)
    return h + torch.randn(h.shape, generator=ONE, dtype=DTYPE), h


def of_odds(x: Tensor, h: Tensor) -> Any:
    return h + torch.bernoulli(torch.sigmoid(h.detach()), generator=ONE), h


def of_all_rows(x: Tensor, h: Tensor) -> Any:
    return h + torch.randn(D, generator=ONE, dtype=DTYPE), h


def by_columns(x: Tensor, h: Tensor) -> Any:
    return h + torch.randn(D, x.shape[0], generator=ONE, dtype=DTYPE).t(), h


WORDS = {
    seeds: "calls manual_seed",
    of_odds: "in a way that cannot be drawn before the loop (test_draws.py:",
    of_all_rows: "does not have a row for each sequence",
    by_columns: "does not have a row for each sequence",
}


@pytest.mark.parametrize("step", WORDS, ids=lambda s: s.__name__)
def test_what_no_plan_draws(step):
    x, _, h = inputs([2, 3])
    ONE.manual_seed(5)
    before = ONE.get_state()
    with pytest.raises(Unsupported) as caught:
        recurrent(step, x, h, backend="c")
    assert WORDS[step] in str(caught.value)
    assert torch.equal(before, ONE.get_state())
    with pytest.warns(SlowPathWarning):
        ours = recurrent(step, x, h)[1]
    ONE.set_state(before)
    torch.testing.assert_close(ours, recurrent(step, x, h, backend="naive")[1])


def by_seed(x: Tensor, h: Tensor) -> Any:
    return h, h + x * (ONE.initial_seed() % 7)


def by_state(x: Tensor, h: Tensor) -> Any:
    return h, h + x * int(ONE.get_state()[:8].sum())


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("step", [by_seed, by_state], ids=lambda s: s.__name__)
def test_a_seed_that_the_step_reads_is_that_of_each_call(step):
    x, _, h = inputs([2, 3])
    for seed in (3, 5):
        ONE.manual_seed(seed)
        last = [recurrent(step, x, h, backend=backend)[1] for backend in ("auto", "auto", "naive")]
        torch.testing.assert_close(last[:2], [last[2]] * 2)


def test_its_gradient_is_differentiated_again_with_the_same_noise():
    found = []
    for backend in ("naive", "c"):
        x, rows, h = inputs([2, 0, 3])
        ONE.manual_seed(7)
        OTHER.manual_seed(8)
        y, _ = recurrent(noisy, x, h, backend=backend)
        after = torch.rand(2, generator=ONE)
        first = torch.autograd.grad(y[0].values.sin().sum(), [rows, h, W], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [rows, h, W])
        found.append([after, *first, *second, ONE.get_state(), OTHER.get_state()])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


def test_a_gradient_whose_noise_is_lost():
    x, rows, h = inputs([2, 3])
    y, _ = recurrent(both, x, h, backend="c")  # torch's own generator is asked for all steps at once
    with pytest.raises(StepError, match="draws noise"):
        torch.autograd.grad(y.values.sum(), rows, create_graph=True)


def test_many_gradients_of_one_noise():
    x, rows, h = inputs([2, 3])
    y = recurrent(noisy, x, h, backend="c")[0][0].values
    seeds = torch.randn(3, *y.shape, dtype=DTYPE)
    (many,) = torch.autograd.grad(y, rows, seeds, is_grads_batched=True, retain_graph=True)
    for seed, one in zip(seeds, many, strict=True):
        torch.testing.assert_close(torch.autograd.grad(y, rows, seed, retain_graph=True)[0], one)


def checked(x: Tensor, h: Tensor) -> Any:
    if not x.isfinite().all():
        raise ValueError("x is not finite")
    h = (x @ W + h * torch.rand(x.shape[0], D, generator=ONE, dtype=DTYPE)).abs().sqrt()
    return h, h


def test_the_plain_loop_draws_the_same_where_its_gradients_are_asked_for():
    found = []
    for backend in ("naive", "c"):
        ONE.manual_seed(7)
        x = torch.zeros(2, 3, D, dtype=DTYPE, requires_grad=True)  # the root of zero has no gradient
        y, _ = recurrent(checked, x, torch.zeros(3, D, dtype=DTYPE), backend=backend)
        found.append([y, *torch.autograd.grad(y.sum(), [x, W])])
    torch.testing.assert_close(*found, equal_nan=True)


def halved(x: Tensor, h: Tensor) -> Any:
    h = h + x * torch.rand(x.shape[0], D, generator=ONE, dtype=DTYPE)
    h, _ = while_loop(lambda h, x: h.abs().amax(1) > 1, lambda h, x: (h / 2, x), (h, x))
    return h, h


def test_a_run_that_is_made_again_draws_the_same():
    """The plan for few inner steps does not hold for large rows: its noise is drawn once more."""
    for size in (1.0, 20.0):
        found = []
        for backend in ("c", "naive"):
            ONE.manual_seed(3)
            x, h = torch.full((2, 3, D), size, dtype=DTYPE), torch.zeros(3, D, dtype=DTYPE)
            y, _ = recurrent(halved, x, h, backend=backend)
            found.append((y, ONE.get_state()))
        torch.testing.assert_close(*found)
