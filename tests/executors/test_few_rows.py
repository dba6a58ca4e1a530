"""Gradients of weights over few rows are made beside the loop, over more by torch: the same ones."""

from __future__ import annotations

import pytest
import torch

from covering import few
from outcomes import as_the_plain_loop
from stepnet.cells import GRU, LSTM

BACKEND = "c"


@pytest.mark.parametrize("steps", [1, 20, 129, 130])
@pytest.mark.parametrize("cell", few([LSTM, GRU], [LSTM]))
def test_as_the_plain_loop(cell, steps):
    x = torch.randn(steps, 2, 3, requires_grad=True)
    cell = cell(3, 4)
    as_the_plain_loop(cell, x, cell.initial_state(2), rtol=2e-4, atol=2e-5)
