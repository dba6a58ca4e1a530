"""Gradients of what gradients are part of, by every way to ask for them, beside the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from covering import few
from outcomes import same
from stepnet import LoDTensor, cells, recurrent
from stepnet.engine import jvp_on_saved_rows
from stepnet.engine.jvp_on_saved_rows import SharedRows
from stepnet.executors import gradients
from stepnet.executors.loop import PreparedLoop, shift
from threads import at_once

LENGTHS = [3, 0, 1, 5]


class Critic(nn.Module):
    """A score for each row, of an LSTM or of a step whose state is no result."""

    def __init__(self, hidden_state: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.float64, generator=generator) / 2)
        self.u = nn.Parameter(torch.randn(4, 4, dtype=torch.float64, generator=generator) / 2)
        self.head = nn.Parameter(torch.randn(4, dtype=torch.float64, generator=generator))
        self.hidden_state = hidden_state

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.tanh(x @ self.w.T + h @ self.u.T)
        return (new.sin() if self.hidden_state else new), new

    def forward(self, x: Tensor, h: Tensor, backend: Any) -> tuple[Tensor, Tensor]:
        y, last = recurrent(self.step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=backend)
        return y.values @ self.head, last


def made() -> tuple[Critic, Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randn(sum(LENGTHS), 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(len(LENGTHS), 4, dtype=torch.float64, requires_grad=True)
    return Critic(True), x, h


def linear(score: Tensor, last: Tensor) -> Tensor:
    return score.sum()


def curved(score: Tensor, last: Tensor) -> Tensor:
    return score.square().sum() + last.sin().sum()


def alone(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    return [*torch.autograd.grad(g.square().sum(), own, allow_unused=True)]


def with_the_loss(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    return [*torch.autograd.grad(loss * 3 + (g.norm() - 1) ** 2, own)]


def of_all(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    loss.backward(create_graph=True)
    total = sum(t.grad.square().sum() for t in own if t.grad is not None)
    for t in own:
        t.grad = None
    total.backward()  # pyright: ignore
    return [t.grad for t in own]


def two_gradients(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    (k,) = torch.autograd.grad(loss * loss, [h], create_graph=True)
    return [*torch.autograd.grad(g.square().sum() + k.square().sum(), own, allow_unused=True)]


def twice_over(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    one = torch.autograd.grad(g.square().sum(), own, retain_graph=True, allow_unused=True)
    return [*one, *torch.autograd.grad(g.pow(3).sum(), own, allow_unused=True)]


def of_the_head(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    first = torch.autograd.grad(g.square().sum(), [model.head], retain_graph=True)
    return [*first, *torch.autograd.grad(g.square().sum(), [model.w])]


def in_a_batch(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    both = torch.stack([torch.ones_like(g), g.detach()])
    return [*torch.autograd.grad(g, own, both, is_grads_batched=True, allow_unused=True)]


def third(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)
    (k,) = torch.autograd.grad(g.square().sum(), [x], create_graph=True)
    return [*torch.autograd.grad(k.square().sum() + g.sum(), own, allow_unused=True)]


def after_an_error(model: Critic, x: Tensor, h: Tensor, loss: Tensor, own: list[Tensor]) -> list[Any]:
    (g,) = torch.autograd.grad(loss, [x], create_graph=True)

    class Broken(Exception):
        pass

    def fail(grad: Tensor) -> None:
        raise Broken

    with model.w.register_hook(fail), pytest.raises(Broken):  # pyright: ignore[reportAttributeAccessIssue]
        torch.autograd.grad(g.square().sum(), own, retain_graph=True, allow_unused=True)
    return [*torch.autograd.grad(g.square().sum(), own, allow_unused=True)]


WAYS: list[Callable[..., list[Any]]] = [
    alone, with_the_loss, of_all, two_gradients, twice_over, of_the_head, in_a_batch, third, after_an_error,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using backward")  # which of_all does
@pytest.mark.covering(1)
@pytest.mark.parametrize("again", [False, True], ids=["", "checkpoint"])
@pytest.mark.parametrize("loss", [linear, curved])
@pytest.mark.parametrize("way", few(WAYS, WAYS[1::4]))
def test_penalties(way: Callable[..., list[Any]], loss: Callable[..., Tensor], again: bool) -> None:
    if again and way is after_an_error and torch.__version__ < "2.10":
        pytest.skip("under older torch a weight's hook is not called there, in what is checkpointed")

    def found(backend: str) -> list[Any]:
        model, x, h = made()
        results = checkpoint(model, x, h, backend, use_reentrant=False) if again else model(x, h, backend)
        return way(model, x, h, loss(*results), [x, h, *model.parameters()])

    same(found("c"), found("naive"), atol=1e-9)


def test_hooks_see_what_they_saw() -> None:
    def found(backend: Any) -> list[Any]:
        model, x, h = made()
        seen: list[Any] = []
        rows = LoDTensor.from_lengths(x, [LENGTHS])
        y, _ = recurrent(model.step, rows, h, backend=backend)
        y.values.register_hook(seen.append)
        (g,) = torch.autograd.grad(y.values.sum(), [x], create_graph=True)
        seen += torch.autograd.grad(g.square().sum(), [y.values, model.u], allow_unused=True)
        return seen

    same(found("c"), found("naive"), atol=1e-9)


@pytest.mark.parametrize("loss", [linear, curved])
def test_one_backward_loop_gives_both_parts(loss: Callable[..., Tensor]) -> None:
    """Of a loss that is linear in y, too, if its own gradient is asked for beside that of its gradient."""
    runs, run = list[PreparedLoop](), PreparedLoop.run

    def counted(self: PreparedLoop, *args: Any, **how: Any) -> Any:
        runs.append(self)
        return run(self, *args, **how)

    for _ in range(2):  # the first makes the plans
        model, x, h = made()
        score = loss(*model(x, h, "eager"))
        (g,) = torch.autograd.grad(score, [x], create_graph=True)
        with patch.object(PreparedLoop, "run", counted):
            runs.clear()
            torch.autograd.grad(score + g.square().sum(), [*model.parameters()])
    assert len(runs) == 2  # the derivative along the gradient, and its gradient


def test_a_gradient_taken_in_another_thread() -> None:
    """There autograd numbers its nodes anew, and comes to the loop's own gradient first."""

    def found(backend: Any) -> list[Any]:
        model, x, h = made()
        loss = linear(*model(x, h, backend))
        with ThreadPoolExecutor(1) as pool:
            (g,) = pool.submit(torch.autograd.grad, loss, [x], create_graph=True).result()
        return [*torch.autograd.grad(loss + g.square().sum(), [x, h, *model.parameters()])]

    expected = found("naive")
    for _ in range(2):  # the first makes the plans
        same(found("c"), expected, atol=1e-9)


@pytest.mark.parametrize("written", [False, True], ids=["", "y was written to"])
def test_what_the_run_kept_is_not_computed_again(written: bool) -> None:
    model, runs = Critic(False), list[Any]()
    run = SharedRows.run

    def noted(self: SharedRows, *args: Any) -> Any:
        runs.append(run(self, *args))
        return runs[-1]

    def found(backend: Any) -> list[Any]:
        _, x, h = made()
        y, last = recurrent(model.step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=backend)
        (g,) = torch.autograd.grad(y.values.sum() + last.sin().sum(), [x], create_graph=True)
        if written:
            y.values.mul_(2.0)
        own = [x, h, model.w, model.u]
        one = torch.autograd.grad(g.square().sum(), own, retain_graph=True)
        return [*one, *torch.autograd.grad(g.pow(3).sum() + last.sum(), own)]

    expected = found("naive")
    with patch.object(SharedRows, "run", noted):
        for _ in range(2):
            same(found("eager"), expected, atol=1e-9)
    assert [made is None for made in runs] == [written] * 4


@pytest.mark.exhaustive  # the values are those of the test above
def test_earlier_rows_are_copied_once() -> None:
    """Those of the state, and those of its derivative."""
    torch.manual_seed(3)
    cell, moved = cells.GRU(3, 4).double(), list[Any]()
    made = [torch.randn(size, dtype=torch.float64) for size in ((6, 2, 3), (2, 4))]

    def noted(rows: Tensor, boot: Tensor, layout: Any) -> Tensor:
        moved.append(rows)
        return shift(rows, boot, layout)

    def found(backend: Any) -> list[Any]:
        x, h = (t.clone().requires_grad_() for t in made)
        y, _ = recurrent(cell, x, h, backend=backend)
        (g,) = torch.autograd.grad(y.square().sum(), [x], create_graph=True)
        moved.clear()
        return [*torch.autograd.grad(g.square().sum(), [x, h, *cell.parameters()])]

    expected = found("naive")
    with patch.object(jvp_on_saved_rows, "shift", noted), patch.object(gradients, "shift", noted):
        for _ in range(2):  # the first makes the plans
            same(found("eager"), expected, atol=1e-9)
    assert len(moved) == 2


def test_second_gradients_from_threads() -> None:
    model, x, h = made()
    (g,) = torch.autograd.grad(curved(*model(x, h, "c")), [x], create_graph=True)
    expected = torch.autograd.grad(g.square().sum(), [model.w, x], retain_graph=True)
    for one in at_once(lambda _: torch.autograd.grad(g.square().sum(), [model.w, x], retain_graph=True)):
        torch.testing.assert_close(one, expected)


def test_a_step_that_is_another_by_now_has_the_derivative_that_is_known():
    """Of the gradient of a weight it is made beforehand; beside the gradient of a loss it runs alone then."""
    found = {}
    for backend in ("naive", "eager"):
        weight, kept = torch.eye(3, dtype=torch.float64).requires_grad_(), [torch.tanh]

        def step(x, h, weight=weight, kept=kept):
            h = kept[0](x @ weight + h)
            return h, h

        x = torch.linspace(-1, 2, 24, dtype=torch.float64).view(4, 2, 3)
        y, _ = recurrent(step, x, torch.zeros(2, 3, dtype=torch.float64), backend=backend)
        (grad,) = torch.autograd.grad(y.sum(), weight, create_graph=True)
        kept[0] = torch.sin
        found[backend] = torch.autograd.grad(grad.square().sum() + y.sin().sum(), weight)
    torch.testing.assert_close(found["eager"], found["naive"], rtol=1e-10, atol=1e-10)
