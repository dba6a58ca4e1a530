"""Which layers run at each step, by the edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir_files import Net
from stepnet.openvino import load
from stepnet.report.schedule import when

CASES = Path(__file__).parent.parent / "openvino" / "cases"


def loop_of(path):
    model = load(path)
    return next(layer for layer in model.graph.net.layers.values() if layer.bodies)


def test_attention():
    """Memory's projection once; the step from the state to the state; scores and outputs after."""
    layer = loop_of(CASES / "corpus" / "attention_decoder" / "model.xml")
    net, found = layer.bodies[""], when(layer)
    each = {net.layers[i].type for i, how in found.items() if how == "step"}
    assert {"GRUCell", "SoftMax", "Tanh", "Concat", "ReduceSum"} <= each
    assert {net.layers[i].type for i, how in found.items() if how == "rows"} >= {"LogSoftmax", "Squeeze"}
    products = [found[i] for i in net.order if net.layers[i].type == "MatMul"]
    assert sorted(products) == ["once", "rows", "step", "step"]


def body_of(folder, edges):
    """Results x + a, b, tanh(a), exp(x) and -c; `edges` go from a Result, by number, to a Parameter."""
    net = Net()
    inputs = [net.parameter("X", "2,5,3"), *(net.parameter(name, "2,1,3") for name in "ABC")]
    body = net.body()
    x, a, b, c = (body.parameter(name, "2,1,3") for name in "xabc")
    sources = [
        body.add("Add", [x, a], name="sum"), b, body.add("Tanh", [a], name="tanh"),
        body.add("Exp", [x], name="exp"), body.add("Negative", [c], name="minus"),
    ]  # fmt: skip
    results = [body.result(source) for source in sources]
    rows = f'<input external_port_id="0" internal_layer_id="{x[0]}" axis="1"/>'
    for i, parameter in enumerate((a, b, c)):
        rows += f'<input external_port_id="{i + 1}" internal_layer_id="{parameter[0]}"/>'
    rows += f'<output external_port_id="4" internal_layer_id="{results[0]}"/>'
    ids = {"a": a[0], "b": b[0], "c": c[0]}
    back = "".join(f'<edge from-layer="{results[r]}" to-layer="{ids[p]}"/>' for r, p in edges)
    net.result(net.loop(body, inputs, rows, back))
    layer = loop_of(net.write(folder))
    named = layer.bodies[""].layers
    return {
        named[i].name: how for i, how in when(layer).items() if named[i].type not in ("Parameter", "Result")
    }


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([], "rows once rows once"),
        ([(0, "a")], "step rows rows once"),
        ([(3, "a")], "rows rows rows once"),  # a value of the step before, known beforehand
        ([(2, "b"), (1, "a")], "rows step rows once"),  # two states that take turns
        ([(1, "b")], "rows once rows once"),  # carried, and never changed
        ([(4, "c")], "rows once rows step"),
        ([(0, "a"), (2, "c")], "step rows rows rows"),
    ],
)
def test_states(tmp_path, edges, expected):
    found = body_of(tmp_path, edges)
    assert " ".join(found[name] for name in ("sum", "tanh", "exp", "minus")) == expected
