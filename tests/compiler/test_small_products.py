"""Small products of two matrices of each row are made in a scan, not by torch on all rows at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outcomes import as_the_plain_loop, wanting
from plans import plan_of
from stepnet import LoDTensor
from stepnet.ir.verify import verify

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


def of_lines(loop, kind):
    """The products of a matrix of each row by a weight in regions of a kind."""
    values = loop.body.values
    nodes = [node for region in loop.regions if region.kind == kind for node in region.nodes]
    pairs = [[values[name] for name in node.inputs] for node in nodes if node.op == "matmul"]
    return sum(b.kind == "shared" and len(a.shape) > 1 for a, b in pairs)


class BlockOverWindow(nn.Module):
    """A feed-forward block on each of the last rows: with no state in it, and no product of two rows."""

    def __init__(self, width: int, wide: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, wide, dtype=dtype), nn.Linear(wide, width, dtype=dtype)

    def forward(self, x, window):
        window = torch.cat([window[:, 1:], x[:, None]], 1)
        y = window + self.down(torch.relu(self.up(window / (1 + window.square().mean(-1, keepdim=True)))))
        return y.mean(1), window


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_lines_by_a_weight_are_multiplied_in_a_scan(dtype):
    torch.manual_seed(0)
    step = BlockOverWindow(5, 7, dtype)
    x = torch.randn(9, 5, dtype=dtype)
    x, state = wanting((LoDTensor.from_lengths(x, [[3, 0, 5, 1]]), x.new_zeros(4, LINES, 5)))
    plan = plan_of(step, x, state, backend="c")
    assert [of_lines(plan.forward, kind) for kind in ("map", "scan")] == [0, 2]
    assert [of_lines(plan.backward, kind) for kind in ("map", "scan")] == [0, 2]
    verify(plan, "plan")
    if dtype == torch.float64:
        as_the_plain_loop(step, x, state)


def test_lines_by_a_weight_that_no_cache_holds_are_left_to_torch():
    step = BlockOverWindow(8, 1 << 16, torch.float32)
    plan = plan_of(step, torch.randn(2, 1, 8), torch.zeros(1, LINES, 8), backend="c")
    assert [of_lines(plan.forward, kind) for kind in ("map", "scan")] == [2, 0]
