"""Frames whose values are no rows of a batch, but the one row of one: a step may name their dimensions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stepnet
from stepnet import TensorArray
from tables import holds

BUILDS = False
T = 5
LENS = torch.tensor([2, 5, 0])
torch.manual_seed(0)
W = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
TABLE = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
gru, norm = nn.GRUCell(4, 4).double(), nn.GroupNorm(2, 4).double()


def masked(which: Any) -> Any:
    def step(s: Any, x: Any, h: Any) -> Any:
        return torch.where(which(s < LENS), torch.tanh(h @ W + x), h)

    return step


ROWS = {  # of [3, 4]
    "mask[:, None]": masked(lambda m: m[:, None]),
    "mask.unsqueeze(1)": masked(lambda m: m.unsqueeze(1)),
    "mask.view(-1, 1)": masked(lambda m: m.view(-1, 1)),
    "lens[:, None]": lambda s, x, h: torch.where(s < LENS[:, None], torch.tanh(h @ W + x), h),
    "a product with the mask": lambda s, x, h: (s < LENS).double()[:, None] * torch.tanh(h @ W + x),
    "rows that mix": lambda s, x, h: torch.tanh(h @ W + x * s) - h.mean(0),
    "dim=0": lambda s, x, h: torch.softmax(h @ W + x * s, 0) + torch.cumsum(x, 0),
    "dim=1": lambda s, x, h: torch.tanh(torch.cat([h[:, 1:], h[:, :1]], 1) @ W + x * s),
    "roll, flip": lambda s, x, h: torch.tanh(torch.roll(h, 1, 0) @ W + x.flip(0) * s),
    "einsum": lambda s, x, h: torch.tanh(torch.einsum("ij,kj->ik", h, W) + x * s),
    "gather": lambda s, x, h: torch.tanh(h.gather(0, (h > 0).long()) @ W + x * s),
    "torch.zeros": lambda s, x, h: torch.tanh(h @ W + x + torch.zeros(h.shape[0], 1) + s),
    "a norm of all": lambda s, x, h: (h @ W + x * s) / (1 + (h @ W + x).norm()),
    "GroupNorm": lambda s, x, h: norm(h @ W + x * s),
    "GRUCell": lambda s, x, h: gru(x, h) * (s + 1) / 9,
    "recurrent": lambda s, x, h: torch.tanh(stepnet.recurrent(gru, x[None], h)[1] @ W + s),
}
ALONE = {  # of [4]
    "a product with a matrix": lambda s, x, h: torch.tanh(W @ h + x),
    "dot": lambda s, x, h: torch.tanh(torch.dot(x, h) + W @ h + x),
    "outer": lambda s, x, h: torch.tanh(torch.outer(x, h) @ W @ h + x),
    "softmax(0)": lambda s, x, h: torch.softmax(W @ h, 0) * x + h.mean(),
    "table[s]": lambda s, x, h: torch.tanh(W @ h + x + TABLE[s]),
    "table[:, s]": lambda s, x, h: torch.tanh(W @ h + x + TABLE[-4:, s.clamp(max=3)]),
    "one_hot": lambda s, x, h: torch.tanh(W @ h + x * F.one_hot(s.clamp(max=3), 4)),
    "scatter": lambda s, x, h: torch.tanh(W @ h.scatter(0, s.clamp(max=3).reshape(1), x[:1])),
    "GRUCell of one": lambda s, x, h: gru(x, h),
}


def by_hand(step: Any, x: Any, h: Any) -> Any:
    out = []
    for t in range(T):
        h = step(torch.tensor(t), x[t], h)
        out.append(h)
    return torch.stack(out)


def framed(step: Any, x: Any, boot: Any, scan: bool = True) -> Any:
    xs, out = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == T)
        out.write(s, step(s, xs.read(s), out.read(s - 1, boot)))
        loop.update(s, s + 1)
    lifted = scan and torch.__version__ >= "2.13"  # before, some of torch's calls have no rule for rows
    assert "raised to a scan" in loop.explain() or not lifted, loop.explain()
    return out.stack()


def held(step: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(T, *shape, dtype=torch.float64, requires_grad=True)
    boot = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    known = (x, boot, W, TABLE, *gru.parameters(), *norm.parameters())
    found = []
    for run in (framed, by_hand):
        y = run(step, x, boot)
        found.append((y, *torch.autograd.grad(y.sin().sum(), known, materialize_grads=True)))
    torch.testing.assert_close(*found)


def test_rows_that_a_step_tells_apart():
    holds(held, {name: (step, (3, 4)) for name, step in ROWS.items()})


def test_vectors():
    holds(held, {name: (step, (4,)) for name, step in ALONE.items()})


@pytest.mark.parametrize(
    "draw", [torch.rand_like, lambda x: F.dropout(x, 0.5), lambda x: torch.bernoulli(x.sigmoid())]
)
def test_what_is_drawn_is_what_would_be(draw):
    x, boot = torch.randn(T, 3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)

    def step(s: Any, x: Any, h: Any) -> Any:
        return torch.tanh(torch.roll(h, 1, 0) + draw(x) * s)

    found = []
    for run in (by_hand, lambda *given: framed(*given, scan=False)):
        torch.manual_seed(3)
        found.append(run(step, x, boot))
    torch.testing.assert_close(*found)


MATRIX = torch.randn(5, 5)
PRODUCTS = {
    "from the left": lambda s: s @ MATRIX,
    "linear": lambda s: F.linear(s, MATRIX),
    "as a column": lambda s: (MATRIX @ s[:, None])[:, 0],
    "from the right": lambda s: MATRIX @ s,
    "mv": lambda s: torch.mv(MATRIX, s),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_features_that_might_be_rows_are_told_apart_in_silence(name, capfd):
    product, x = PRODUCTS[name], torch.randn(4, 5)
    stepnet.set_backend("eager")
    loop = stepnet.create_whileloop([torch.tensor(0), x[0]])
    with loop.frame() as (t, h):
        loop.break_if(t == 4)
        loop.update(h, torch.tanh(product(h) + x[t]))
        loop.update(t, t + 1)
    h = x[0]
    for row in x:
        h = torch.tanh(product(h) + row)
    torch.testing.assert_close(loop.results[1], h)
    assert "raised to a scan" in loop.explain()
    assert capfd.readouterr().err == ""
