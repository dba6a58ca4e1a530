"""Products of rows that a step looks up: made of the whole table, once a call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepnet import explain, recurrent
from stepnet.executors.c.kept_products import KeptProduct

D, WORDS = 3, 7


class Words(nn.Module):
    """A step whose output is its next input; `beside`: with the state beside the row, as attention has it."""

    def __init__(self, words=WORDS, beside=False, size=D):
        super().__init__()
        self.table = nn.Embedding(words, size, padding_idx=1)
        self.mix, self.turn = nn.Linear(size + size * beside, size), nn.Linear(size, size)
        self.out, self.beside = nn.Linear(size, words), beside

    def forward(self, _, state):
        word, h = state
        row = self.table(word)
        h = torch.tanh(self.mix(torch.cat([row, h], 1) if self.beside else row) + self.turn(h))
        scores = self.out(h)
        return scores, (scores.argmax(1), h)


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("beside", [False, True])
def test_values_and_gradients(backend, beside):
    step = Words(beside=beside).double()
    for n in (4, 1, 0):
        word, h = torch.arange(n) % WORDS, torch.randn(n, D, dtype=torch.float64, requires_grad=True)
        found = []
        for way in (backend, "naive"):
            y, last = recurrent(step, None, (word, h), steps=5, backend=way)
            loss = y.square().sum() + last[1].sum()
            found.append([y, *last, *torch.autograd.grad(loss, (h, *step.parameters()))])
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_where_it_is_so():
    def products(step, size=D):
        told = str(
            explain(step, None, (torch.arange(2), torch.zeros(2, size, dtype=torch.float64)), steps=5)
        ).split("BACKWARD")[0]
        once = told.split("once, on weights")[1].split("steps of")[0]
        return once.count("matmul")

    assert products(Words().double()) == products(Words(beside=True).double()) == 1
    assert products(Words(words=300).double()) == 0  # which takes as long as many steps
    kept = Words(words=300, size=64).double()
    assert products(kept, 64) == 0  # for what trains
    with torch.no_grad():
        assert products(kept, 64) == 1


@pytest.mark.parametrize("beside", [False, True])
def test_kept_as_long_as_it_is_true(beside):
    step, (word, h) = Words(300, beside, 64), (torch.arange(3), torch.randn(3, 64))

    def agree():
        for _ in range(3):  # made; kept; found
            found = [recurrent(step, None, (word, h), steps=4, backend=by)[0] for by in ("c", "naive")]
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        agree()
        step.mix.weight.data.mul_(-1)  # which no version tells
        agree()
        step.table.weight.numpy()[:] *= 2
        agree()
        step.table = nn.Embedding(300, 64)
        agree()
        step.table.weight[299] = torch.nan  # a row that is not read
        step.out.bias[299] = -1e4
        agree()


def test_kept_by_its_bits():
    """Not by what `==` says: of zeros with a sign, of what is not a number, of a matrix with its dimensions
    in another order."""
    made = []
    product = KeptProduct(lambda a, b, rows: made.append(1) or a @ b)
    a, b = torch.zeros(8, 8), torch.randn(8, 8)

    def times(count, a, b):
        made.clear()
        for _ in range(4):
            torch.testing.assert_close(product(a, b, rows=1), a @ b, rtol=0, atol=0, equal_nan=True)
        assert len(made) == count

    times(2, a, b)
    times(2, a.neg_(), b)
    times(2, a.fill_(torch.nan), b)
    times(2, a.normal_(), b.t())
    times(2, a, torch.randn(8, 16)[:, ::2])
    times(2, b, a)
    times(1, a, b)  # others take turns with it
    with torch.inference_mode():
        times(2, torch.ones(8, 8), torch.ones(8, 8))
    product = KeptProduct(lambda a, b, rows: a @ b)
    for _ in range(3):
        product(a.add_(1), b, rows=1)
    assert not product._kept  # of weights that train it is another one at each call
