"""Graphs of no format: what a module becomes, and that each format has a rule for every op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import stepnet
from stepnet import LoDTensor, cells
from stepnet.errors import IRError
from stepnet.export import Target, decompositions, module_graph
from stepnet.export.graph import OPS, Cell, LoopOp
from stepnet.export.trace import program
from stepnet.openvino.writing.from_graph import LAYERS

TARGET = Target("Clay", "tablet", {"lgamma": "it has no fingers"}, lambda cell: True)
EXPORT = Path(stepnet.__file__).parent / "export"
# not by a row of a table
BY_HAND = {
    "parameter", "constant", "result", "loop", "cell", "copy", "conv", "conv_transpose", "max_pool",
    "mean_pool",
}  # fmt: skip


def graph_of(module, *example, **options):
    torch.manual_seed(0)
    return module_graph(module.eval(), example, TARGET, **options)


def contents(graph, kind):
    return [node.content for node in graph.nodes if isinstance(node.content, kind)]


def ops(graph):
    return [node.op for node in graph.nodes]


def test_openvino_has_a_row_for_every_op_and_none_besides():
    assert set(LAYERS) | BY_HAND == OPS
    assert not set(LAYERS) & BY_HAND


def test_no_file_knows_a_format():
    for path in EXPORT.glob("*.py"):
        assert not re.search(r"openvino|onnx", path.read_text(encoding="utf-8"), re.IGNORECASE), path.name


@pytest.mark.exhaustive
def test_casts_and_operators_of_python_are_not_taken_apart(monkeypatch):
    """What a cast asks of the example, and numbers asked for alone, is in no graph; what is not known is."""
    apart = []
    monkeypatch.setattr(decompositions, "_Again", lambda *_: apart.append(1) or 1 / 0)

    class Asks(nn.Module):
        def forward(self, x):
            torch._check(x.shape[0] >= 2)
            y = x.double() * 2
            return (((x > 0) & (y < 3)) | (x < -1)) ^ (y > 5), y.to(torch.int64) & 3, torch.where(x > 0, y, 0)

    found = ops(graph_of(Asks(), torch.randn(5, 3)))
    assert {"and", "or", "xor", "bitwise_and"} <= set(found)
    assert not apart

    class Unknown(nn.Module):
        def forward(self, x):
            return torch.linalg.det(x.double())

    with pytest.raises(ZeroDivisionError):
        graph_of(Unknown(), torch.randn(5, 3, 3))


def test_a_known_cell_is_one_node():
    graph = graph_of(stepnet.Recurrent(cells.GRU(3, 4)), torch.randn(5, 2, 3))
    (cell,) = contents(graph, Cell)
    assert (cell.kind, cell.time, cell.reverse, cell.linear_before_reset) == ("gru", 0, False, True)
    assert (cell.w.shape, cell.r.shape, cell.b.shape) == ((12, 3), (12, 4), (16,))
    assert "matmul" not in ops(graph)


def test_a_loop_holds_only_what_depends_on_the_state():
    graph = graph_of(stepnet.Recurrent(cells.PeepholeLSTM(3, 4)), torch.randn(5, 2, 3))
    (loop,) = contents(graph, LoopOp)
    assert ops(loop.body).count("matmul") == ops(graph).count("matmul") == 1
    assert len(loop.back_edges) == 2
    assert [port.axis for port in loop.inputs if port.axis is not None] == [0]


def test_a_loop_without_slices_says_what_counts_it():
    module = stepnet.Recurrent(lambda x, h: (h, 0.5 * h))
    graph = graph_of(module, torch.randn(5, 2, 3), torch.randn(2, 3))
    (loop,) = contents(graph, LoopOp)
    value, axis = loop.count
    assert graph.nodes[value.node].op == "parameter"
    assert axis == 0


def test_a_while_loop_computes_its_condition():
    class Halved(nn.Module):
        def forward(self, x):
            (y,) = stepnet.while_loop(lambda v: v.sum() > 1, lambda v: (v / 2,), (x,))
            return y

    graph = graph_of(Halved(), torch.rand(4, 3) + 1)
    (loop,) = contents(graph, LoopOp)
    assert loop.condition is not None
    assert loop.body.nodes[loop.goes_on].op == "result"
    assert loop.body.dtype(loop.body.nodes[loop.goes_on].inputs[0]) == torch.bool


def test_ragged_sequences_are_padded_and_come_with_lengths():
    x = LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]])
    graph = graph_of(stepnet.Recurrent(cells.LSTM(3, 4)), x)
    inputs = {node.name: node.attributes["shape"] for node in graph.nodes if node.op == "parameter"}
    assert inputs == {"x": (-1, -1, 3), "lengths": (-1,)}


class Everything(nn.Module):
    """Calls whose dtype is not that of their first operand."""

    def forward(self, x, i):
        top, at = x.topk(2, -1)
        return {
            "sums": (x > 0).sum(-1), "mixed": i * 0.5, "cut": x.int() + i, "mask": torch.where(x > 0, x, 1.0),
            "top": top, "at": at + 1, "sizes": torch.arange(x.shape[0]) * x.shape[1], "half": x.half() + 1,
            "logic": (x > 0) & (i > 1), "mean": i.float().mean(), "wide": x.double().exp(),
        }  # fmt: skip


def test_a_graph_knows_the_dtypes_that_torch_has():
    example = torch.randn(4, 3), torch.randint(3, (4, 3))
    graph = graph_of(Everything(), *example)
    results = {node.attributes["names"][0]: node.dtypes[0] for node in graph.nodes if node.op == "result"}
    assert results == {name: value.dtype for name, value in Everything()(*example).items()}


def test_errors_are_in_the_words_of_the_format():
    def step(x, s):
        return x, torch.linalg.qr(x.unsqueeze(-1)).R.squeeze(-1) + s

    with pytest.raises(IRError, match=r"linalg_qr.*has no Clay tablet here"):
        graph_of(stepnet.Recurrent(step), torch.randn(5, 2, 3), torch.randn(2, 1))
    ragged = LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]])
    with pytest.raises(IRError, match=r"'aten.lgamma.default'.*has no Clay tablet here: it has no fingers"):
        graph_of(stepnet.Recurrent(lambda x, s: (torch.lgamma(s), s + x)), ragged, torch.randn(2, 3))


def test_rows_of_ragged_sequences_are_not_made_from_nothing():
    class Made(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, x):
            return x.with_values(x.values + self.make(x.values))

    x = LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]])
    assert "expand" in ops(graph_of(Made(torch.ones_like), x))
    with pytest.raises(IRError, match="makes rows of ragged sequences from nothing"):
        graph_of(Made(lambda rows: torch.ones(rows.shape[0], 3)), x)


def test_an_example_without_steps_is_refused():
    ports = [
        stepnet.InputPort("a", "a", axis=0),
        stepnet.InputPort("s", "s"),
        stepnet.OutputPort("y", 0, axis=0),
    ]
    iterator = stepnet.TensorIterator(lambda a, s: (a + s,) * 2, ports, [stepnet.BackEdge(1, "s")])
    recurrence, none = stepnet.Recurrent(cells.LSTM(3, 4)), torch.randn(0, 2, 3)
    for module, *example in (
        (recurrence, none),
        (recurrence, LoDTensor.from_lengths(none[:, 0], [[0, 0]])),
        (iterator, none, torch.randn(1, 2, 3)),
    ):
        with pytest.raises(IRError, match=r"holds no|has no step"):
            graph_of(module, *example)


def test_weights_without_data_cannot_be_written():
    module = stepnet.Recurrent(cells.PeepholeLSTM(3, 4)).to("meta")
    with pytest.raises(IRError, match="a constant has no data"):
        graph_of(module, torch.randn(4, 2, 3, device="meta"))


def test_gradient_modes_leave_nothing_in_a_trace():
    """Torch makes calls of their own of what runs in them, and may fail to take such calls apart."""

    def run(x):
        with torch.no_grad():
            y = x * 2
            assert not torch.is_grad_enabled()
            with torch.enable_grad():
                assert torch.is_grad_enabled()
                y = y.sin() + x
        return (y,)

    traced = program(run, None, [torch.ones(2)], [{}], "here", lambda node: True)
    assert {str(node.target) for node in traced.nodes} == {
        "aten.mul.Tensor",
        "aten.sin.default",
        "aten.add.Tensor",
    }
