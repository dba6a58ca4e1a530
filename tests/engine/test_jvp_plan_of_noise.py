"""Second derivatives of steps that draw noise: those of the plain loop on the noise that the call drew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import few
from stepnet import LoDTensor, recurrent
from stepnet.executors import higher_order

DTYPE = torch.float64
LENGTHS = [2, 0, 3, 1]
N, B, D = 6, 4, 3
CELL = nn.GRUCell(D, D).double()


def noisy(x: Tensor, h: Tensor, drawn: Callable[..., Tensor]) -> Any:
    """Noise on the way in and in the state, beside what no derivative depends on, and a gradient cut off."""
    first = drawn("randn_like", h)
    h = CELL(x * (drawn("rand_like", x) < 0.7), h) * drawn("rand_like", h)
    return {"y": h * h.detach() * drawn("randn_like", h) + first, "z": drawn("rand_like", x).sqrt()}, h


KINDS = ("randn", "rand", "rand", "randn", "rand")


def by_chance(step: Callable[..., Any]) -> Callable[..., Any]:
    def drawing(x: Tensor, h: Tensor) -> Any:
        return step(x, h, lambda kind, like: getattr(torch, kind)(like))

    return drawing


def by_noise(step: Callable[..., Any]) -> Callable[..., Any]:
    def handed(parts: Any, h: Tensor) -> Any:
        x, *noise = parts
        given = iter(noise)
        return step(x, h, lambda kind, like: next(given))

    return handed


def derivatives(y: Any, final: Tensor, wanted: list[Tensor], orders: int) -> list[Tensor]:
    """Gradients of the first order to the last."""
    value = sum((t.values.sin().sum() for t in y.values()), final.square().sum())
    found: list[Tensor] = []
    for order in range(orders):
        grads = torch.autograd.grad(
            value, wanted, create_graph=order + 1 < orders, allow_unused=True, materialize_grads=True
        )
        found += grads
        value = sum((g.square().sum() for g in grads), torch.zeros((), dtype=DTYPE))
    return found


@pytest.mark.parametrize("backend", few(["auto", "eager"], ["auto"]))
def test_they_are_those_of_the_noise_that_was_drawn(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows = torch.randn(N, D, dtype=DTYPE, requires_grad=True)
    h0 = torch.randn(B, D, dtype=DTYPE, requires_grad=True)
    wanted = [rows, h0, *CELL.parameters()]
    x = LoDTensor.from_lengths(rows, [LENGTHS])

    for _ in range(2):
        torch.manual_seed(7)
        noise = [getattr(torch, kind)(N, D, dtype=DTYPE) for kind in KINDS]
        drawn = torch.get_rng_state()
        parts = (x, *(x.with_values(t) for t in noise))
        expected = derivatives(*recurrent(by_noise(noisy), parts, h0, backend="naive"), wanted, 2)
        torch.manual_seed(7)
        with monkeypatch.context() as only:
            only.setattr(higher_order, "by_plain_loop", None)
            y, final = recurrent(by_chance(noisy), x, h0, backend=backend)
            torch.rand(3)  # what others draw in between changes nothing
            found = derivatives(y, final, wanted, 2)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
        after = torch.rand(3)
        torch.set_rng_state(drawn)
        torch.rand(3)
        assert torch.equal(after, torch.rand(3))  # second derivatives draw nothing of their own


def test_noise_of_a_generator_of_the_step_is_drawn_again_by_the_plain_loop() -> None:
    own = torch.Generator()

    def step(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x + h) * torch.rand(h.shape, generator=own, dtype=h.dtype)
        return h, h

    x = torch.randn(5, 2, D, dtype=DTYPE, requires_grad=True)
    found = []
    for backend in ("auto", "naive"):
        own.manual_seed(3)
        y, _ = recurrent(step, x, torch.zeros(2, D, dtype=DTYPE), backend=backend)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        found.append([first, *torch.autograd.grad(first.square().sum(), x)])
    torch.testing.assert_close(*found)


def test_distributions_that_check_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they hold is asked of the rows of the derivative, too."""
    found = []
    for checks in (True, False):

        def step(x: Tensor, h: Tensor, checks: bool = checks) -> Any:
            h = torch.distributions.Normal(torch.tanh(h), x.exp(), validate_args=checks).rsample()
            return h, h

        x = torch.linspace(-1, 1, 4 * D, dtype=DTYPE).reshape(2, 2, D).requires_grad_()
        monkeypatch.setattr(higher_order, "by_plain_loop", None)
        torch.manual_seed(5)
        y, _ = recurrent(step, x, torch.zeros(2, D, dtype=DTYPE), backend="eager")
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append([y, grad, *torch.autograd.grad(grad.square().sum(), x)])
    torch.testing.assert_close(*found)
    assert all(t.abs().sum() > 0 for t in found[0])
