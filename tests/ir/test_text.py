"""Graphs print, and the print parses back to the same graph, opaque calls included."""

from __future__ import annotations

import pytest
import torch

from covering import few
from ir_text import parse_graph, print_graph
from plan_steps import DTYPE, KALMAN, cell
from plans import entry_of, plan_of, verify_entry
from stepnet import cells
from stepnet.data.lod import LoDTensor
from stepnet.errors import GraphError
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.text import print_region


def _odd(x, h):
    """Numbers, lists and strings among the arguments of calls that no rule knows."""
    h = torch.special.i0e(h + x) * torch.tensor([1.0, -0.5, 2.0], dtype=DTYPE)
    h = torch.nn.functional.dropout(h, 0.25) + torch.randn_like(h)
    q = torch.linalg.qr(h[:, :, None], mode="reduced")[0]
    return torch.bucketize(h.detach(), torch.tensor([0.0, 1.0], dtype=DTYPE), right=True), h * q[:, :, 0]


STEPS = {
    **{name: cell(name) for name in ("LSTM", "GRU", "LayerNormLSTM", "SLSTM", "MinGRU")},
    "a Kalman filter": KALMAN,
    "odd calls": (_odd, torch.zeros(2, 3, dtype=DTYPE)),
}


@pytest.mark.parametrize("name", few(STEPS, ["LayerNormLSTM", "a Kalman filter"]))
def test_every_captured_graph_prints_and_parses(name):
    step, state = STEPS[name]
    x = LoDTensor.from_lengths(torch.randn(3, 3, dtype=DTYPE, requires_grad=True), [[2, 1]])
    entry = entry_of(step, x, state)
    assert entry.compiled is not None, entry.refusals
    verify_entry(entry)
    graph = entry.compiled.joint.graph
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert [node.line for node in again.nodes] == [node.line for node in graph.nodes]
    assert all(again.values[n] == graph.values[n] for n in again.values)
    assert parse_graph(print_graph(again)) == again


def test_opaque_calls_are_among_them():
    step, state = STEPS["odd calls"]
    x = LoDTensor.from_lengths(torch.randn(3, 3, dtype=DTYPE), [[2, 1]])
    graph = entry_of(step, x, state).compiled.joint.graph
    opaque = [node for node in graph.nodes if node.op == "opaque"]
    assert any("linalg" in node.attr("target") for node in opaque)
    assert all(node.line and node.line.startswith("test_text.py:") for node in opaque)
    assert any("" in node.outputs for node in parse_graph(print_graph(graph)).nodes) == any(
        "" in node.outputs for node in graph.nodes
    )


@pytest.mark.parametrize(
    "attrs",
    [
        (("value", float("inf")),),
        (("value", float("-inf")),),
        (("value", float("nan")),),
        (("value", True),),
        (("value", 10**30),),
        (
            (
                "args",
                (("value", None), ("list", ())),
            ),
        ),
        (("target", "a } {'b': # text"),),
    ],
    ids=str,
)
def test_attributes_of_every_kind_come_back(attrs):
    values = {"x": Value("x", "row", (), "float32"), "y": Value("y", "shared", (2, 1), "bool")}
    graph = Graph("g", ("x",), (Node("full", (), ("y",), attrs, "a b.py:3"),), ("y", "x"), values)
    again = parse_graph(print_graph(graph))
    assert repr(again.nodes) == repr(graph.nodes)  # nan is not equal to itself
    assert again.values == dict(graph.values)
    assert again.results == ("y", "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph g\n  in x: row[3 float32", "line 2 of a printed graph declares no value"),
        ("graph g\n  in x: column[3] float32", "line 2 of a printed graph declares no value"),
        ("graph g\n  x tanh y", "line 2 of a printed graph is not understood"),
        ("graph g\n\n  out x", "line 2 of a printed graph is not understood"),
        ("graph g\n  y: row[] float32 = tanh(x) {'a': open('f')}", "line 2"),
        ("graph g\n  y: row[] float32 = tanh(x) {1}", "line 2"),
        ("graph g\n  y: row[] float32 = tanh(x) {'a': (}", "line 2"),
    ],
)
def test_what_is_no_graph_is_refused_by_line(text, words):
    with pytest.raises(GraphError, match=words):
        parse_graph(text)


def test_a_loop_prints_its_regions_and_carries():
    gru = cells.GRU(3, 4, dtype=DTYPE)
    x = LoDTensor.from_lengths(torch.randn(3, 3, dtype=DTYPE), [[2, 1]])
    loop = plan_of(gru, x).forward
    text = "\n".join(print_region(loop, region) for region in loop.regions)
    assert "scan of forward\n  carry state <- v" in text
    assert "map of forward" in text
    assert text.count("matmul(") == 2
