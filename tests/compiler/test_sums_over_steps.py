"""Gradients of states that no step changes are summed in the type in which the plain loop sums them."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop
from stepnet import LoDTensor


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_sums_of_what_was_rounded_on_the_way(backend):
    """Each step's part is rounded to float32; their sum is not."""

    def step(x, state):
        h, m = state
        h = torch.tanh(0.5 * h + x * m.float().double())
        return h, (h, m)

    x = LoDTensor.from_lengths(torch.randn(50, 3, dtype=torch.float64), [[40, 0, 10]])
    h, m = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    as_the_plain_loop(step, x, (h, m), backend, rtol=1e-12)
