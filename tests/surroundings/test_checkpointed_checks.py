"""Steps whose plans hold for some rows only, in a region that torch runs once more in backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.utils.checkpoint import checkpoint

from covering import few
from stepnet import recurrent, while_loop
from stepnet.errors import StepError
from torch_since import torch_since

pytestmark = pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")


def draws(h: Tensor) -> Tensor:
    return Normal(h, 1 + h.square(), validate_args=True).log_prob(h + 1).tanh()


def checks(h: Tensor) -> Tensor:
    if (h > 1e6).any():
        raise ValueError
    return torch.tanh(h)


def asks(h: Tensor) -> Tensor:
    return torch.tanh(h * 0.5 if (h > 2).any() else h)


def repeats(h: Tensor) -> Tensor:
    return while_loop(lambda h: h.abs().sum(1) > 1, lambda h: (h * 0.8,), (h,))[0]


SCALES = {"grows": (1, 20), "shrinks": (20, 1), "turns": (1, 1, 20, 400, 1)}


@torch_since("2.8", "it does not tell which run of a checkpoint this is")
@pytest.mark.parametrize("inner", few([draws, checks, asks, repeats], [checks, repeats]))
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("order", few(SCALES, ["grows"]))
def test_a_step_with_a_check_in_a_checkpoint(inner: Callable[..., Tensor], steps: int, order: str) -> None:
    """Torch ends the second run by an error when enough is saved, which says nothing of the rows; and what a
    plan saved that did not hold is not awaited of that run."""
    w = torch.full((2, 2), 0.1, dtype=torch.float64, requires_grad=True)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = inner(h @ w + x)
        return h, h

    for scale in itertools.chain.from_iterable((scale, scale) for scale in SCALES[order]):
        x = torch.linspace(-1, 2, steps * 4, dtype=torch.float64).view(steps, 2, 2) * scale
        given = x.requires_grad_(), torch.zeros(2, 2, dtype=torch.float64).requires_grad_()

        def region(backend: Any, given: Any = given) -> Any:
            return recurrent(step, *given, backend=backend)

        runs: Any = checkpoint(region, None, use_reentrant=False), region("naive")
        found, plain = (torch.autograd.grad(y.sin().sum() + h.square().sum(), (*given, w)) for y, h in runs)
        torch.testing.assert_close(found, plain)


def test_weights_that_are_replaced_while_it_runs_are_named_where_the_second_run_has_others() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
                h = h + x * self.weight
                return h, h

            return recurrent(step, x, torch.zeros(1, 2), checkpoint=1, backend="naive")[0]

    other = {"weight": torch.full((2,), 3.0, requires_grad=True)}
    y = torch.func.functional_call(Model(), other, torch.ones(3, 1, 2))
    with pytest.raises(StepError, match="functional_call"):
        y.sum().backward()
