"""Sizes of which one is left in the example, as `x[:, 1:]` leaves of two, stay open in what is written."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from file_formats import FORMATS
from saved_modules import plain_loops
from stepnet import cells, recurrent, while_loop
from stepnet.errors import IRError

BACKEND = "naive"


class Model(nn.Module):
    """A function of some layers and the inputs."""

    def __init__(self, function):
        super().__init__()
        self.function, self.rnn = function, nn.LSTM(3, 4, batch_first=True)
        self.cell, self.linear = cells.MinGRU(3, 4), nn.Linear(3, 3)

    def forward(self, *inputs):
        return self.function(self, *inputs)

    def over(self, x):
        """A recurrence over what is [batch, time, 3]."""
        return recurrent(self.cell, x.transpose(0, 1), x.new_zeros(len(x), 4))[0]


def is_written(form, function, examples, others, path, **options):
    pytest.importorskip("onnx_ir" if form == "onnx" else "openvino")
    save, run, file = FORMATS[form][0].save, *FORMATS[form][1:]
    module = Model(function)
    with plain_loops(), torch.no_grad():
        save(module, path / file, tuple(map(torch.randn, examples)), **options)
        for shapes in others:
            inputs = [torch.randn(shape) for shape in shapes]
            found = torch.from_numpy(run(path / file, [x.numpy() for x in inputs])[0])
            torch.testing.assert_close(found, module(*inputs))


def attended(module, x):
    """A memory of half the steps."""
    memory = x[:, : x.shape[1] // 2]

    def step(row, state):
        weights = torch.softmax((memory * state.unsqueeze(1)).sum(-1), -1)
        state = torch.tanh(module.linear(row) + (weights.unsqueeze(-1) * memory).sum(1))
        return state, state

    return recurrent(step, x.transpose(0, 1), x.new_zeros(len(x), 3))[0]


def repeated(module, x):
    memory = x[:, : x.shape[1] // 2]
    start = torch.tensor(0), x.mean(1)
    return while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, torch.tanh(s + memory.sum(1))), start)[1]


def repeated_half(module, x):
    half = x[:, : x.shape[1] // 2]
    start = torch.tensor(0), half
    return while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, torch.tanh(s * 0.5 + half[:, -1:])), start)[1]


@pytest.mark.parametrize(
    ("function", "example"),
    [
        pytest.param(lambda m, x: m.linear(x[:, 1:]).sum(1), [(3, 2, 3)], id="all but the first"),
        pytest.param(lambda m, x: m.linear(x[:, :-2]).sum(1), [(4, 3, 3)], id="all but two"),
        pytest.param(lambda m, x: m.rnn(x[:, 1:] - x[:, :-1])[0], [(3, 2, 3)], id="differences"),
        pytest.param(lambda m, x: m.over(torch.diff(x, dim=1)), [(2, 2, 3)], id="own cell"),
        pytest.param(lambda m, x: m.over(x[1:]), [(2, 4, 3)], id="sequences"),
        pytest.param(lambda m, x: m.over(x.unfold(1, 3, 1).sum(-1)), [(2, 3, 3)], id="unfold"),
        pytest.param(lambda m, x, y: m.over((x * y)[:, 1:]), [(3, 2, 3)] * 2, id="two together"),
        pytest.param(
            lambda m, x, y: m.over(x[:, 1:]) + m.over(y[:, 2:]).sum(0), [(4, 2, 3), (4, 3, 3)], id="two apart"
        ),
        pytest.param(attended, [(3, 2, 3)], id="memory of a step"),
        pytest.param(repeated, [(3, 2, 3)], id="read in a body"),
        pytest.param(repeated_half, [(4, 3, 3)], id="carried by a body"),
    ],
)
def test_stays_open(function, example, tmp_path, monkeypatch):
    others = [[(5, 7, 3)] * len(example), [(2, 4, 3)] * len(example)]
    told: list[logging.LogRecord] = []  # by torch, of sizes of one
    monkeypatch.setattr(logging.getLogger("torch._export.non_strict_utils"), "callHandlers", told.append)
    is_written("onnx", function, example, [example, *others], tmp_path)
    assert not told


@pytest.mark.parametrize(
    "function", [pytest.param(repeated, id="read"), pytest.param(repeated_half, id="carried")]
)
def test_in_openvino(function, tmp_path):
    is_written("openvino", function, [(3, 2, 3)], [[(3, 2, 3)], [(5, 7, 3)]], tmp_path)


@pytest.mark.parametrize("shape", [(1, 5, 3), (1, 2, 3), (3, 2, 3)])
def test_asked_for_where_the_example_has_one(shape, tmp_path):
    def shorter(module, x):
        return module.over(x[:, 1:])

    is_written("onnx", shorter, [shape], [[shape], [(4, 6, 3)]], tmp_path, dynamic={"input_0": [0, -2]})


def test_what_any_example_fixes_is_told_as_before(tmp_path):
    def counted(module, x):
        return sum(x[:, i] for i in range(x.shape[1]))

    with pytest.raises(IRError, match="could not be traced with sizes left open"):
        is_written("onnx", counted, [(3, 2, 3)], [], tmp_path, dynamic={"input_0": [0, 1]})
