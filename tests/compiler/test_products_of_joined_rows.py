"""Products over rows of tables of parts side by side: by the parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outcomes import as_the_plain_loop, outcome, same, wanting
from plans import ops, plan_of
from stepnet import LoDTensor, recurrent

F64 = torch.float64
X, H = 5, 3


class Joins(torch.nn.Module):
    """Multiplies what is given, side by side, by weights that lie one way or the other."""

    def __init__(self, join, size, turned) -> None:
        super().__init__()
        self.join, self.turned = join, turned
        self.w = torch.nn.Parameter(torch.randn((size, H) if turned else (H, size), dtype=F64) / 2)
        self.b = torch.nn.Parameter(torch.randn(H, dtype=F64))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        table, beside = self.join(x, h)
        h = torch.tanh(table @ (self.w if self.turned else self.w.t()) + self.b) + beside
        return h, h


def read_elsewhere(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    table = torch.cat([x, h], 1)
    return table, table.square().sum(1, keepdim=True) / 9


# what is joined; of how many columns; how many tables the backward loop writes
JOINED = {
    "x, h": (lambda x, h: (torch.cat([x, h], 1), h / 2), X + H, 0),
    "h, x": (lambda x, h: (torch.cat([h, x], 1), x[:, :1] / 2), X + H, 0),
    "what is made of both": (lambda x, h: (torch.cat([h * x[:, :1], x.sin()], 1), 0), X + H, None),
    "h twice": (lambda x, h: (torch.cat([h, h], 1), x[:, :1]), 2 * H, 0),
    "three": (lambda x, h: (torch.cat([h, x, h], 1), 0), X + 2 * H, 1),
    "read elsewhere": (read_elsewhere, X + H, None),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("how", JOINED)
def test_gradients_first_and_second(how, turned):
    join, size, tables = JOINED[how]
    step, h = Joins(join, size, turned), torch.randn(3, H, dtype=F64).requires_grad_()
    x = wanting(LoDTensor.from_lengths(torch.randn(9, X, dtype=F64), [[4, 0, 5]]))
    as_the_plain_loop(step, x, h, "c")
    if tables is not None:
        maps = ops(plan_of(step, x, h, backend="c").backward, "map")
        assert maps.count("cat") == tables

    def second(backend):
        y, last = recurrent(step, x, h, backend=backend)
        inner = [x.values, h, step.w]
        first = torch.autograd.grad(y.values.square().sum() + last.sum(), inner, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), [*inner, step.b])

    same(second("c"), second("naive"))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -0.0, 1e300])
def test_special_numbers(odd):
    join, size, _ = JOINED["x, h"]
    step, h = Joins(join, size, turned=False), torch.randn(3, H, dtype=F64).requires_grad_()
    x = wanting(LoDTensor.from_lengths(torch.randn(9, X, dtype=F64), [[4, 0, 5]]))
    x.values.detach()[3, 1] = odd
    (values, grads), (plain, others) = (outcome(step, x, h, name) for name in ("c", "naive"))
    for ours, other in zip((*values, *grads), (*plain, *others), strict=True):
        torch.testing.assert_close(ours, other, equal_nan=True)
