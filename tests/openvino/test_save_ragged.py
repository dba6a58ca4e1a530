"""Ragged models are written on padded inputs with lengths, and match per sequence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import check_ragged
from stepnet import LoDTensor, cells
from stepnet.errors import IRError
from stepnet.openvino import load, save

BACKEND = "naive"


def rows(lengths, features=3):
    return LoDTensor.from_lengths(torch.randn(sum(lengths), features), [lengths])


CELLS = [cells.LSTM, cells.GRU, cells.LayerNormLSTM, cells.MinGRU, cells.SLSTM]


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", few([False, True], [True]))
@pytest.mark.parametrize("cell", few(CELLS, [cells.LayerNormLSTM]))
def test_a_cell(cell, reverse, tmp_path):
    check_ragged(stepnet.Recurrent(cell(3, 4), reverse=reverse), lambda n: (rows(n),), tmp_path / "m.xml")


@pytest.mark.exhaustive  # of any lengths: with tapes, too
def test_layers_in_two_directions(tmp_path):
    module = stepnet.nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)
    check_ragged(module, lambda n: (rows(n),), tmp_path / "m.xml")


@pytest.mark.exhaustive
def test_a_packed_example(tmp_path):
    module = stepnet.nn.GRU(3, 4, bidirectional=True)
    check_ragged(module, lambda n: (rows(n),), tmp_path / "m.xml", packed=True)


def test_initial_states_have_a_row_for_each_sequence(tmp_path):
    check_ragged(stepnet.nn.GRU(3, 4), lambda n: (rows(n), torch.randn(1, len(n), 4)), tmp_path / "m.xml")


@pytest.mark.parametrize("reverse", few([False, True], [True]))
def test_a_delay_line_starts_and_ends_with_its_sequence(reverse, tmp_path):
    def step(x, s):
        a, b = s
        return b + x, (x, a)

    def make(n):
        return rows(n), (torch.randn(len(n), 3), torch.randn(len(n), 3))

    check_ragged(stepnet.Recurrent(step, reverse=reverse), make, tmp_path / "m.xml")


def inverted(x, s):
    """What plans of rows have no row for: the order of numbers, small matrices, places of what is largest."""
    h, n = s
    matrix = torch.eye(3) + 0.1 * torch.einsum("bi,bj->bij", x, h)
    largest, places = torch.cummax(torch.linalg.solve(matrix, x), -1)
    return {"y": torch.sort(h - x, -1).values, "at": places}, (largest * 0.5, n)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_that_is_written_whole_ends_with_its_sequence(reverse, tmp_path):
    def make(n):
        return rows(n), (torch.randn(len(n), 3), torch.randn(len(n), 3))

    check_ragged(stepnet.Recurrent(inverted, reverse=reverse), make, tmp_path / "m.xml")


def test_a_step_that_is_written_whole_carries_nothing(tmp_path):
    module = stepnet.Recurrent(lambda x, s: (torch.sort(x, -1).values, s))
    check_ragged(module, lambda n: (rows(n), ()), tmp_path / "m.xml")


class _AfterDenseSteps(nn.Module):
    """A number of dense steps that ragged ones compute with."""

    def forward(self, x, before):
        n = before.shape[0]
        _, last = stepnet.recurrent(lambda a, h: (h, torch.tanh(a + h)), before, torch.zeros_like(before[0]))
        return stepnet.recurrent(lambda a, h: (a * n + torch.arange(n).sum(), torch.tanh(a + h) / n), x, last)


def test_the_number_of_dense_steps_before_ragged_ones(tmp_path):
    check_ragged(
        _AfterDenseSteps(), lambda n: (rows(n), torch.randn(len(n) + 4, len(n), 3)), tmp_path / "m.xml"
    )


class _ByHand(nn.Module):
    """Means by lengths: those of the file, not of the example."""

    def forward(self, x):
        lengths = x.lengths()[:, None].clamp(min=1)
        return stepnet.sequence_pool(x, "sum") / lengths, x * stepnet.sequence_expand(lengths, x)


@pytest.mark.exhaustive
def test_lengths_are_those_of_the_input(tmp_path):
    check_ragged(_ByHand(), lambda n: (rows(n),), tmp_path / "m.xml")


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.to_padded()[0],
        lambda x: x.map(torch.tanh)[0],
        lambda x: stepnet.sequence_concat([x, x]),
        lambda x: x.values * stepnet.TensorArray.unpack(x)[0].size(),
        lambda x: stepnet.sequence_mask(x.lengths()),
    ],
    ids=["padded", "one sequence", "joined", "counted", "a mask"],
)
def test_what_takes_the_lengths_of_the_example_is_refused(run, tmp_path):
    with pytest.raises(IRError, match=r"is saved is for any lengths|what is traced has no numbers"):
        save(_Runs(run), tmp_path / "m.xml", rows([4, 2, 3]))


class _Runs(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.forward = run


class _Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 8))
        self.rnn = stepnet.nn.LSTM(8, 6, bidirectional=True)
        self.norm = nn.LayerNorm(12)
        self.linear = nn.Linear(12, 3)

    def forward(self, tokens):
        y, (h, _) = self.rnn(torch.nn.functional.embedding(tokens, self.table))
        scores = torch.softmax(self.linear(torch.relu(self.norm(y))), -1)
        return scores, torch.cat([h[0], h[1]], -1)


@pytest.mark.exhaustive
def test_layers_on_rows_around_a_recurrence(tmp_path):
    def make(n):
        return (LoDTensor.from_lengths(torch.randint(0, 10, (sum(n),)), [n]),)

    check_ragged(_Tagger(), make, tmp_path / "m.xml")


class _Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = stepnet.nn.GRU(3, 4)

    def forward(self, x):
        y, h = self.rnn(x)
        weighted = y * stepnet.sequence_softmax(y)
        around = y - stepnet.sequence_expand(h[0], x)
        pooled = [stepnet.sequence_pool(y, how) for how in ("sum", "mean", "sqrt", "max", "first", "last")]
        turned = stepnet.sequence_reverse(self.rnn(stepnet.sequence_reverse(x))[0])
        return pooled, stepnet.sequence_pool(weighted, "sum", 7.0), around, turned


def test_operations_on_whole_sequences(tmp_path):
    check_ragged(_Pooled(), lambda n: (rows(n),), tmp_path / "m.xml")


def test_inputs_are_padded_and_have_lengths(tmp_path):
    save(stepnet.Recurrent(cells.GRU(3, 4)), tmp_path / "m.xml", rows([2, 3]))
    inputs = load(tmp_path / "m.xml").inputs
    assert [(i.name, i.shape, i.dtype) for i in inputs] == [
        ("x", (-1, -1, 3), torch.float32),
        ("lengths", (-1,), torch.int64),
    ]


def test_what_mixes_rows_is_an_error(tmp_path):
    class Module(nn.Module):
        def forward(self, x):
            return x.map(lambda v: v - v.mean(0))

    with pytest.raises(IRError, match=r"mixes rows of ragged sequences"):
        save(Module(), tmp_path / "m.xml", rows([2, 3]))


def test_sequences_of_sequences_are_refused(tmp_path):
    x = LoDTensor.from_lengths(torch.randn(5, 3), [[1, 1], [2, 3]])
    with pytest.raises(IRError, match="sequences of sequences"):
        save(stepnet.Recurrent(cells.GRU(3, 4)), tmp_path / "m.xml", x)
