"""[time, features] is no batch of sequences for a step that takes rows of features."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from stepnet import LoDTensor, cells, recurrent
from stepnet.errors import StepError

BUILDS = False


class Own(nn.Module):
    def __init__(self, **sizes):
        super().__init__()
        self.w, self.u = nn.Linear(3, 4), nn.Linear(4, 4)
        self.__dict__.update(sizes)

    def forward(self, x, h):
        h = torch.tanh(self.w(x) + self.u(h))
        return h, h

    def initial_state(self, n):
        return torch.zeros(n, 4)


CELLS = {
    "of torch": lambda: nn.GRUCell(3, 4),
    "of stepnet": lambda: cells.LSTM(3, 4),
    "wrapped": lambda: cells.Zoneout(cells.GRU(3, 4), 0.1),
    "own, with its size": lambda: Own(input_size=3),
    "own": Own,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["auto", "naive"])
@pytest.mark.parametrize("name", CELLS)
def test_features_are_no_batch(name, backend):
    cell = CELLS[name]()
    with pytest.raises(
        StepError, match=r"no dimension of features|as the features of one sequence"
    ) as caught:
        recurrent(cell, torch.randn(5, 3), backend=backend)
    assert "x.unsqueeze(1) is one sequence as a batch" in str(caught.value)
    y, _ = recurrent(cell, torch.randn(5, 1, 3), backend=backend)
    assert y.shape == (5, 1, 4)


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_a_state_of_several_rows_for_one_sequence(backend):
    """Each row would see the same x_t. Rows that are no sequences, as of a memory, are not taken apart."""
    cell, x, seen = Own(), torch.randn(5, 3), []
    for n in (2, 3, 5):  # also the number of features
        with pytest.raises(StepError, match=rf"x has no batch, but the state .* has {n} rows(.|\n)*expand"):
            recurrent(cell, x, torch.zeros(n, 4), backend=backend)
    for n in ((4,), (1, 4)):
        assert recurrent(cell, x, torch.zeros(n), backend=backend)[1].shape == n

    def memory(x, m):
        seen.append(x)
        m = m + (m @ torch.ones(4, 3) @ x).softmax(0)[:, None]
        return m.sum(0), m

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, _ = recurrent(memory, x, torch.randn(6, 4), backend=backend)
    assert y.shape == (5, 4)
    assert len(seen) == 5


def test_rows_without_features():
    with pytest.raises(StepError, match="no dimension of features"):
        recurrent(cells.GRU(1, 4), LoDTensor(torch.randn(5), [[0, 5]]))


class Letters(nn.Module):
    """A cell is a part of it, behind a table."""

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(5, 3), nn.GRUCell(3, 4)

    def forward(self, letter, h):
        h = self.cell(self.table(letter), h)
        return h, h


def test_a_number_for_each_row_of_a_step_that_holds_a_cell():
    letters = LoDTensor(torch.tensor([0, 4, 2, 1, 1]), [[0, 3, 5]])
    y, h = recurrent(Letters(), letters, torch.zeros(2, 4), backend="naive")
    assert y.values.shape == (5, 4)
    assert torch.equal(y.values[[2, 4]], h)


class Sums:
    def initial_state(self, n):
        return torch.zeros(n)

    def __call__(self, x, s):
        return s + x, s + x


class OfThree(Sums):
    """A number of its own for each sequence: it runs on three sequences only."""

    def __call__(self, x, s):
        new = s + x * torch.tensor([1.0, 2.0, 3.0])
        return new, new


@pytest.mark.parametrize("step", [Sums(), OfThree()])
def test_a_batch_of_numbers_is_a_batch(step):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, s = recurrent(step, torch.ones(5, 3))
    assert s.tolist() == ([5.0] * 3 if type(step) is Sums else [5.0, 10.0, 15.0])


def test_cond_in_a_step():
    """Where torch.cond compiles, it does not know the modes of a capture: the plain loop runs."""

    def step(x, h):
        new = torch.cond(h.sum() > 0, lambda a, b: torch.tanh(a + b), lambda a, b: a - b, (x, h))
        return new, new

    x, h0 = torch.randn(4, 2, 3), torch.zeros(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = recurrent(step, x, h0)
        expected = recurrent(step, x, h0, backend="naive")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
