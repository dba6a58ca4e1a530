"""Steps that do something at their first call alone, in a region that torch runs once more in backward."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepnet import Recurrent, recurrent
from stepnet.engine import checkpointed_calls
from torch_since import torch_since

pytestmark = pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.linear(x) + h)
        return h, h


class Caches(Plain):
    @functools.cached_property
    def scale(self) -> float:
        return 0.5

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x * self.scale, h)


class Counts(Plain):
    calls = 0

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return super().forward(x, h)


def by_hand(step: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    ys: list[Tensor] = []
    for row in x:
        y, h = step(row, h)
        ys.append(y)
    return torch.stack(ys), h


@pytest.mark.exhaustive
@pytest.mark.parametrize("nested", [False, True])
def test_each_call_goes_as_it_went_at_first(nested: bool) -> None:
    """Also where a region is run for several gradients; nothing is kept when it is gone."""

    def found(run: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        plain, caches, counts, x = Plain(), Caches(), Counts(), torch.randn(4, 2, 3, dtype=torch.float64)
        x.requires_grad_()

        def region(x: Tensor) -> Tensor:
            for step in (plain, caches, counts, caches, plain, caches):
                x, _ = run(step, x, torch.zeros(2, 3, dtype=torch.float64))
            return x

        def around(x: Tensor) -> Any:
            return checkpoint(region, x, use_reentrant=False)

        y: Any = checkpoint(around if nested else region, x, use_reentrant=False)
        inputs = [x, *plain.parameters(), *caches.parameters(), *counts.parameters()]
        first = torch.autograd.grad(y.sin().sum(), inputs, retain_graph=True)
        second = torch.autograd.grad(y.sum(), inputs, create_graph=True)
        of: Any = sum(g.square().sum() for g in second)
        return [*first, *second, *torch.autograd.grad(of, inputs)]

    ours = lambda *given: recurrent(*given, backend="auto")  # noqa: E731
    torch.testing.assert_close(found(ours), found(by_hand), rtol=1e-9, atol=1e-9)
    gc.collect()
    assert not checkpointed_calls._regions


@torch_since("2.8", "it does not tell which run of a checkpoint this is")
def test_a_property_that_is_cached_in_a_checkpoint() -> None:
    step, x = Caches(), torch.ones(2, 1, 3, dtype=torch.float64, requires_grad=True)
    h = torch.zeros(1, 3, dtype=torch.float64)
    y: Any = checkpoint(lambda x: recurrent(step, x, h)[0], x, use_reentrant=False)
    expected = torch.autograd.grad(by_hand(step, x, h)[0].sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), expected)


def test_under_functional_call_the_weights_are_those_of_the_call() -> None:
    """A loop in torch computes again when functional_call is over, from the weights of the module."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = Plain()

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return checkpoint(self.plain, x, h, use_reentrant=False)  # pyright: ignore[reportReturnType]

    module, x = Recurrent(Checkpointed()), torch.randn(5, 2, 3, dtype=torch.float64)
    plain, found = module.step.plain, []
    other = {name: (p * 0.5).detach().requires_grad_() for name, p in module.named_parameters()}
    for model in (module, Recurrent(plain, backend="naive")):
        weights = dict(zip((name for name, _ in model.named_parameters()), other.values(), strict=True))
        y, h = torch.func.functional_call(model, weights, (x, torch.zeros(2, 3, dtype=torch.float64)))
        found.append(torch.autograd.grad(y.square().sum() + h.sum(), [*other.values()]))
    torch.testing.assert_close(*found)
