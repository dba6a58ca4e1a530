"""A file that is read and written again does not grow: what was added to fit an operator is taken away."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import stepnet
from stepnet import cells
from tables import holds

ir = pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402


class Turned(torch.nn.Module):
    """A cell over batch-first sequences, from their end."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        return stepnet.recurrent(self.cell, x, self.cell.initial_state(len(x)), axis=1, reverse=True)[0]


class Nested(torch.nn.Module):
    """A recurrence in each step of another."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = cells.MinGRU(5, 4), cells.PeepholeLSTM(4, 3)

    def forward(self, x):
        def step(words, state):
            _, h = stepnet.recurrent(self.inner, words, self.inner.initial_state(len(words)), axis=1)
            return self.outer(h, state)

        return stepnet.recurrent(step, x, self.outer.initial_state(x.shape[1]))[0]


MODULES = {
    "an operator": lambda: Turned(cells.GRU(5, 4)),
    "norms with weights in the body": lambda: Turned(cells.LayerNormLSTM(5, 4)),
    "a scan in a scan": Nested,
}


def test_no_nodes_are_added(tmp_path, opened):
    def same(name):
        torch.manual_seed(0)
        module, rank = MODULES[name]().eval(), 4 if name == "a scan in a scan" else 3
        example = torch.randn(*(2, 4, 3)[: rank - 1], 5)
        stepnet.onnx.save(module, tmp_path / "0.onnx", example)
        for k in (1, 2):
            stepnet.onnx.save(stepnet.onnx.load(tmp_path / f"{k - 1}.onnx"), tmp_path / f"{k}.onnx", example)
        first, second = (
            Counter(node.op_type for node in ir.load(tmp_path / f"{k}.onnx").graph.all_nodes())
            for k in (1, 2)
        )
        assert first == second
        x = torch.randn(*(3, 6, 2)[: rank - 1], 5)
        with torch.no_grad():
            torch.testing.assert_close(opened(tmp_path / "2.onnx")(x)[0], module(x))

    holds(same, {name: (name,) for name in MODULES})


def test_a_loop_that_is_written_again_shapes_its_condition_once(tmp_path):
    class Doubled(torch.nn.Module):
        def forward(self, x):
            start = torch.zeros((), dtype=torch.int64), x
            more = lambda i, v: (i < 10) & (v.abs().max() < 50)  # noqa: E731
            return stepnet.while_loop(more, lambda i, v: (i + 1, v * 2 + x), start)[1]

    def shapes(graph):
        return sum(node.op_type == "Reshape" for node in graph.all_nodes())

    model, x, found = Doubled(), torch.ones(2, 3), []
    for _ in range(3):
        stepnet.onnx.save(model, tmp_path / "m.onnx", x)
        model = stepnet.onnx.load(tmp_path / "m.onnx")
        torch.testing.assert_close([*model(x)], [Doubled()(x)])
        found.append(shapes(ir.load(tmp_path / "m.onnx").graph))
    assert found == [2, 2, 2]
