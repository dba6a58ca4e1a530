"""What `.item()` gives is compared, and the truth handed to torch: as `if` asks it, anew at each call."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop
from plans import entry_of
from tables import holds

FLAG = torch.tensor(0.5)
W = torch.full((3, 3), 0.2, dtype=torch.float64, requires_grad=True)
WAYS = {
    "as_tensor of a weight": lambda x, h: torch.where(torch.as_tensor(W[0, 0].item() > 0), h @ W, x),
    "full": lambda x, h: torch.where(torch.full_like(h, FLAG.item() > 0, dtype=torch.bool), h @ W, x),
    "product": lambda x, h: h @ W * (FLAG.item() <= 0),
}


@pytest.fixture(autouse=True)
def _numbers_put_back():
    yield
    FLAG.abs_()
    W.detach().abs_()


def test_truths_of_numbers_are_handed_to_torch():
    def check(way):
        def step(x, h):
            h = torch.tanh(way(x, h) + x)
            return h, h

        x, h = (torch.randn(*size, 3, dtype=torch.float64, requires_grad=True) for size in ((4, 2), (2,)))
        for _ in range(2):
            as_the_plain_loop(step, x, h, weights=[W])
            assert entry_of(step, x, h, backend="c").ready is not None
            FLAG.neg_()
            W.detach().neg_()

    holds(check, {name: (way,) for name, way in WAYS.items()})
