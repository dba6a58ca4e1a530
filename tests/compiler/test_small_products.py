"""Small products of two matrices of each row are made in a scan, not by torch on all rows at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outcomes import as_the_plain_loop, wanting
from plans import plan_of
from stepnet import LoDTensor

OPTIMISED = False
LINES = 4


class OverWindow(nn.Module):
    """Attention over the last rows, whose state waits for nothing: what is made of it could all be a map."""

    def __init__(self, asks: str, width: int) -> None:
        super().__init__()
        self.asks = asks
        self.into, self.out = nn.Linear(width, 3 * width).double(), nn.Linear(width, width).double()

    def forward(self, x, window):
        window = torch.cat([window[:, 1:], x[:, None]], 1)
        q, k, v = self.into(window / window.norm(dim=-1, keepdim=True).clamp(min=1)).chunk(3, -1)
        if self.asks == "the last":
            q = q[:, -1:]
        y = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        return self.out(y).flatten(1), window


def products(loop, kind):
    """The products of two matrices of a row in regions of a kind."""
    nodes = [node for region in loop.regions if region.kind == kind for node in region.nodes]
    kinds = [[loop.body.values[name].kind for name in n.inputs] for n in nodes if n.op == "matmul"]
    return kinds.count(["row", "row"])


@pytest.mark.parametrize(("asks", "width"), [("each", 3), ("the last", 5)])
def test_which_scans_make(asks, width):
    torch.manual_seed(0)
    step = OverWindow(asks, width)
    x = torch.randn(9, width, dtype=torch.float64)
    x, state = wanting((LoDTensor.from_lengths(x, [[3, 0, 5, 1]]), x.new_zeros(4, LINES, width)))
    plan = plan_of(step, x, state, backend="c")
    assert [products(plan.forward, kind) for kind in ("map", "scan")] == [0, 2]
    assert [products(plan.backward, kind) for kind in ("map", "scan")] == [0, 4]
    as_the_plain_loop(step, x, state)


def test_large_ones_are_left_to_torch():
    lines = 64

    def step(x, window):
        window = torch.cat([window[:, 1:], x[:, None]], 1)
        wide = window @ torch.eye(lines, dtype=x.dtype)
        return (wide @ wide.transpose(1, 2)).sum(1), window

    x, state = torch.randn(2, 1, lines), torch.zeros(1, lines, lines)
    plan = plan_of(step, x, state, backend="eager")
    assert products(plan.forward, "scan") == 0
