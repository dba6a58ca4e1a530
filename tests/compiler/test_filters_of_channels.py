"""Filters of each channel over a window that a state shifts: products in which no weight is read twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain
from stepnet.testing import check_step

F64 = torch.float64
C, K = 3, 4
FILTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum": lambda window, w: torch.einsum("bkc,ck->bc", window, w),
    "einsum, a scale of each channel": lambda window, w: torch.einsum("bc,c->bc", window[:, -1], w[:, 0]),
    "matmul": lambda window, w: (window.mT.unsqueeze(-2) @ w.unsqueeze(-1)).flatten(1),
    "matmul, spread": lambda window, w: (window[:, -1, :, None, None] @ w.unsqueeze(-2)).sum(-1).flatten(1),
    "conv1d": lambda window, w: F.conv1d(window.mT, w.unsqueeze(1), groups=w.shape[0]).squeeze(-1),
}


class Filter(torch.nn.Module):
    """Keeps the last inputs, and gives a sum of them by weights of each channel."""

    def __init__(self, of: Callable[[Tensor, Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(channels, K, dtype=F64))
        self.of = of

    def forward(self, x: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat([window[:, 1:], torch.tanh(x).unsqueeze(1)], 1)
        return self.of(window, self.w), window


@pytest.mark.parametrize("channels", few([C, 1], [C]))
@pytest.mark.parametrize("name", FILTERS)
def test_as_the_plain_loop(name, channels):
    step = Filter(FILTERS[name], channels)
    x = wanting(LoDTensor.from_lengths(torch.randn(9, channels, dtype=F64), [[4, 0, 5]]))
    as_the_plain_loop(step, x, torch.randn(3, K, channels, dtype=F64, requires_grad=True), "c")


@pytest.mark.parametrize("name", ["einsum", "conv1d"])
def test_no_table_of_windows_is_multiplied(name):
    """It would be written row by row, read by a product that reads each number once, and both in backward."""
    step = Filter(FILTERS[name], C)
    x, window = (torch.randn(*s, dtype=F64).requires_grad_() for s in ((5, 2, C), (2, K, C)))
    said, _ = str(explain(step, x, window)).split("FLOP: ")
    assert "matmul" not in said


def test_gradients_of_gradients():
    step = Filter(FILTERS["einsum"], C)
    x, window = (torch.randn(*s, dtype=F64).requires_grad_() for s in ((5, 2, C), (2, K, C)))
    check_step(step, x, window, backend="c")
