"""Every cell, saved as OpenVINO IR, computes the same at other lengths and batch sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import Beside, check, plain_loops
from stepnet import cells

BACKEND = "naive"

CELLS = {
    "LSTM": lambda: cells.LSTM(3, 4),
    "GRU": lambda: cells.GRU(3, 4),
    "RNN": lambda: cells.RNN(3, 4),
    "RNN relu": lambda: cells.RNN(3, 4, nonlinearity="relu"),
    "LayerNormLSTM": lambda: cells.LayerNormLSTM(3, 4),
    "PeepholeLSTM": lambda: cells.PeepholeLSTM(3, 4),
    "MinGRU": lambda: cells.MinGRU(3, 4),
    "SLSTM": lambda: cells.SLSTM(3, 4),
    "Zoneout": lambda: cells.Zoneout(cells.LSTM(3, 4), 0.2),
    "AllStates": lambda: cells.AllStates(cells.LSTM(3, 4)),
    "LearnedInitialState": lambda: cells.LearnedInitialState(cells.GRU(3, 4)),
    "VariationalDropout": lambda: cells.VariationalDropout(cells.LSTM(3, 4), 0.2, 0.2),
    "MinLSTM": lambda: cells.MinLSTM(3, 4),
    "RGLRU": lambda: cells.RGLRU(3),
    "MLSTM": lambda: cells.MLSTM(3, 4, 2),
    "SelectiveSSM": lambda: cells.SelectiveSSM(3, 4),
    "GLA": lambda: cells.GLA(3, 4, 2),
    "DeltaNet": lambda: cells.DeltaNet(3, 4, 2),
    "GatedDeltaNet": lambda: cells.GatedDeltaNet(3, 4, 2),
    "RWKVTimeMix": lambda: cells.RWKVTimeMix(3),
    "torch LSTMCell": lambda: nn.LSTMCell(3, 4),
    "torch GRUCell": lambda: nn.GRUCell(3, 4),
    "torch RNNCell": lambda: nn.RNNCell(3, 4),
}


LIKE_OTHERS = {
    "RNN relu", "MinGRU", "MinLSTM", "VariationalDropout", "GLA", "DeltaNet", "torch GRUCell",
    "torch RNNCell", "AllStates", "RGLRU", "GatedDeltaNet",
}  # fmt: skip
APART = [name for name in CELLS if name not in LIKE_OTHERS]
GROUPS = [APART[::2], APART[1::2], sorted(LIKE_OTHERS)]


@pytest.mark.parametrize("names", few(GROUPS, GROUPS[:1]), ids=", ".join)
def test_cells(names, tmp_path):
    module = Beside(stepnet.Recurrent(CELLS[name](), reverse=len(name) % 2 == 0) for name in names)
    check(module, lambda t, b: (torch.randn(t, b, 3),), tmp_path / "m.xml")


@pytest.mark.parametrize("name", few(["LSTM", "GRU", "RNN", "PeepholeLSTM"], ["GRU"]))
def test_a_cell_with_the_batch_first_and_an_initial_state(name, tmp_path):
    module = stepnet.Recurrent(CELLS[name](), axis=1, reverse=True)

    def make(t, b):
        state = (torch.randn(b, 4), torch.randn(b, 4)) if "LSTM" in name else torch.randn(b, 4)
        return torch.randn(b, t, 3), state

    check(module, make, tmp_path / "m.xml")


@pytest.mark.parametrize("name", few(["LSTM", "GRU", "LayerNormLSTM", "MinGRU"], ["LSTM", "MinGRU"]))
def test_double_precision_stays_double(name, tmp_path):
    from stepnet.openvino import load, save

    module = stepnet.Recurrent(CELLS[name]().double()).eval()
    save(module, tmp_path / "m.xml", torch.randn(4, 3, 3, dtype=torch.float64))
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    with plain_loops():
        found, expected = load(tmp_path / "m.xml")(x), module(x)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)


def test_all_cells_are_tried():
    tried = {name.split()[0] for name in CELLS if not name.startswith("torch")}
    here = {name for name in vars(cells) if isinstance(getattr(cells, name), type)}
    assert here - tried == {"Cell"}


def test_of_an_lstm_the_cell_states(tmp_path):
    cell = nn.LSTMCell(3, 4)

    def step(x, state):
        h, c = cell(x, state)
        return c, (h, c)

    class CellStates(nn.Module):
        def forward(self, x, h, c):
            return stepnet.recurrent(step, x, (h, c))

    check(CellStates(), lambda t, b: (torch.randn(t, b, 3), *torch.randn(2, b, 4)), tmp_path / "m.xml")
