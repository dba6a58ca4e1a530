"""torch's sum of two truth values is true where one of them is, and so counts as 1 in what follows."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop
from plans import entry_of
from stepnet import recurrent

PLACES = torch.tensor([[0, 0, 2]])
ADDED = {
    "+": lambda a, b: a + b,
    "alpha": lambda a, b: torch.add(a, b, alpha=True),
    "in place": lambda a, b: a.clone().add_(b) + False,
}
LEFT_TO_TORCH = {
    "sum": lambda a, b: torch.stack([a, b], 1).sum(1, dtype=torch.bool),
    "scatter_add": lambda a, b: a.scatter_add(1, PLACES.expand(len(a), 3), b),
    "index_add": lambda a, b: a.index_add(1, PLACES[0], b),
}


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_sums_of_truths(backend):
    ways = ADDED if backend == "c" else ADDED | LEFT_TO_TORCH

    def step(x, h):
        found = [way(x > 0, h > 0) for way in ways.values()]
        h = torch.tanh(x + 0.5 * h) * sum(t.double() for t in found)
        return (h, *found), h

    x, h = torch.rand(4, 2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    recurrent(step, -x, -h, backend=backend)  # the plan is held against the plain loop where no sum is of two
    as_the_plain_loop(step, x.requires_grad_(), h.requires_grad_(), backend)
    assert entry_of(step, x, h, backend=backend).ready is not None
