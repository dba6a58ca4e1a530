"""What a step's Python computes of the floats that `.item()` gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from covering import few
from outcomes import as_the_plain_loop
from stepnet import LoDTensor

OPTIMISED = False
DTYPE = torch.float64
RATE = torch.tensor(0.3)

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mixed": lambda x, h: (1 - RATE.item()) * h + RATE.item() * x,
    "of itself": lambda x, h: h * (RATE.item() * RATE.item() - 2 * RATE.item()) + x,
    "bounds": lambda x, h: (x + h).clamp(-RATE.item(), 1 + RATE.item()),
    "alpha": lambda x, h: torch.add(x, h, alpha=1 - RATE.item()),
    "a default": lambda x, h: torch.nn.functional.softplus(x - h, 1 + RATE.item()),
    "filled": lambda x, h: torch.where(x > -RATE.item(), h, 1 - RATE.item()),
}


@pytest.mark.parametrize("name", few(STEPS, ["mixed", "alpha"]))
def test_floats_of_items_are_computed_with(name: str) -> None:
    made = torch.Generator().manual_seed(5)
    rows = torch.randn(6, 3, dtype=DTYPE, generator=made, requires_grad=True)
    h = torch.randn(3, 3, dtype=DTYPE, generator=made, requires_grad=True)
    x = LoDTensor.from_lengths(rows, [[4, 0, 2]])

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = STEPS[name](x, h)
        return h, h

    for rate in (0.3, 0.9):
        RATE.fill_(rate)
        as_the_plain_loop(step, x, h, "c")
