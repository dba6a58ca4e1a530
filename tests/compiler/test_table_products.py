"""Products of rows that a step looks up: made of the whole table, once a call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepnet import explain, recurrent

D, WORDS = 3, 7


class Words(nn.Module):
    """A step whose output is its next input; `beside`: with the state beside the row, as attention has it."""

    def __init__(self, words=WORDS, beside=False):
        super().__init__()
        self.table = nn.Embedding(words, D, padding_idx=1)
        self.mix, self.turn = nn.Linear(D + D * beside, D), nn.Linear(D, D)
        self.out, self.beside = nn.Linear(D, words), beside

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
    def products(step):
        told = str(
            explain(step, None, (torch.arange(2), torch.zeros(2, D, dtype=torch.float64)), steps=5)
        ).split("BACKWARD")[0]
        once = told.split("once, on weights")[1].split("steps of")[0]
        return once.count("matmul")

    assert products(Words().double()) == products(Words(beside=True).double()) == 1
    assert products(Words(words=300).double()) == 0  # which takes as long as many steps
