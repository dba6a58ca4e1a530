"""`stepnet inspect`: what stands in the tables, as JSON, and in the picture's file."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from covering import every
from ir_files import Net
from stepnet.report.inspect import inspect_model


def test_a_loop(stepnet, cases):
    code, out, err = stepnet("inspect", cases / "corpus" / "lstmcell_v4_reverse_time_major" / "model.xml")
    assert (code, err) == (0, "")
    words = [" ".join(line.split()) for line in out.splitlines()]
    head = "model.xml 'm' IR version 11, 4 layers, 1 loop, 128 parameters, 520 B of constants"
    assert words[0] == head
    assert "input X float32[5, 2, 3]" in words
    assert "in X -> x cut along axis 0, backwards" in words
    assert "in s0_0 -> s0 state before the first step" in words
    assert "LOOP TensorIterator_133588 TensorIterator, 5 steps" in words
    assert sum(line.startswith("back edge") for line in words) == 2
    assert any("1 of 3 layers at each step" in line for line in words)
    assert any(line.startswith("LSTMCell") and line.endswith("each step") for line in words)
    assert any(line.startswith("Squeeze") and line.endswith("once, all steps") for line in words)
    assert not any(line.endswith(" ") or len(line) > 200 for line in words)
    assert all("\x1b" not in line for line in words)


def test_loops_in_loops(stepnet, cases):
    out = stepnet("inspect", cases / "corpus" / "ti_in_loop" / "model.xml").out
    assert "LOOP Loop_284342  Loop, 3 steps" in out
    assert "LOOP Loop_284342 / TensorIterator_284335  TensorIterator, 4 steps" in out
    assert "plain loop, everything at each step: its body holds a loop or a branch" in out


@pytest.mark.parametrize(
    ("case", "says"),
    every(
        2,
        [
            ("loop_while", "while the body's condition holds"),
            ("no_slice_count_from_output", "TensorIterator, 5 steps"),
            ("torch_gru_sequence", "dynamic steps: one for each element of x along axis 1"),
            ("output_part2_reverse", "joined along axis 1, backwards, 2 at a time (stride -2)"),
            ("end_minus2", "cut along axis 1, from 0 to -2"),
            ("onnx_lstm_seqlens_ti", "the same at each step"),
            ("output_part2_reverse", "compiled: 2 layers, once for all steps"),
            ("one_result_two_back_edges", "compiled: 2 layers, at each step"),
            ("conv_lstm", "compiled: "),
        ],
    ),
)
def test_how_a_loop_is_told(stepnet, cases, case, says):
    assert says in stepnet("inspect", cases / "corpus" / case / "model.xml").out


def test_a_loop_that_zeros_would_never_end(stepnet, tmp_path):
    """Inside a TensorIterator a Loop that goes on while x < 1."""
    net = Net()
    x = net.parameter("x", "2,5,1")
    body, inner = net.body(), net.body()
    state = inner.parameter("s", "1")
    go = inner.add("Less", [state, inner.const(np.ones(1, np.float32))], outputs=["BOOL"])
    ends = [inner.result(inner.add("Multiply", [state, inner.const(np.float32(2))])), inner.result(go)]
    x_t = body.parameter("x_t", "2,1,1")
    first = body.add("ReduceMax", [x_t, body.const(np.array([0, 1]))], keep_dims="false")
    more = [body.const(np.array(-1)), body.const(np.array(True)), first]
    rows = (
        f'<input external_port_id="2" internal_layer_id="{state[0]}"/>'
        f'<output external_port_id="3" internal_layer_id="{ends[0]}"/>'
        f'<output external_port_id="-1" internal_layer_id="{ends[1]}" purpose="execution_condition"/>'
    )
    again = f'<edge from-layer="{ends[0]}" to-layer="{state[0]}"/>'
    loop = body.loop(inner, more, rows, again, kind="Loop", version="opset5")
    y = body.result(body.add("Add", [loop, x_t]))
    rows = (
        f'<input external_port_id="0" internal_layer_id="{x_t[0]}" axis="1"/>'
        f'<output external_port_id="1" internal_layer_id="{y}" axis="1"/>'
    )
    net.result(net.loop(body, [x], rows))
    code, out, err = stepnet("inspect", net.write(tmp_path))
    assert (code, err) == (0, "")
    assert "plain loop, everything at each step: its body holds a loop or a branch" in out
    assert "while the body's condition holds" in out


def test_shapes_say_what_is_counted(stepnet, cases):
    model = cases / "corpus" / "dynamic_batch_time" / "model.xml"
    small, large = (
        json.loads(stepnet("inspect", model, "--json", *shapes).out)
        for shapes in ((), ("--shape", "X=3,7,2", "--shape", "a0=3,1,2"))
    )
    assert small["counted_at"] == {"X": [1, 1, 2], "a0": [1, 1, 2]}
    assert large["counted_at"] == {"X": [3, 7, 2], "a0": [3, 1, 2]}
    assert large["cost"]["flops"] == 21 * small["cost"]["flops"] > 0
    assert [net["net"]["layers"][2]["loop"]["steps"] for net in (small, large)] == [1, 7]


def test_json(stepnet, cases):
    found = json.loads(stepnet("inspect", cases / "corpus" / "attention_decoder" / "model.xml", "--json").out)
    assert found["parameters"] == 212
    assert found["inputs"][0] == {"name": "X", "value": {"dtype": "float32", "shape": [2, 5, 3]}}
    (loop,) = (layer["loop"] for layer in found["net"]["layers"] if layer["loop"])
    assert (loop["kind"], loop["steps"], loop["static"], loop["compiled"]) == (
        "TensorIterator",
        5,
        True,
        True,
    )
    ports = {port["inner"]: (port["outer"], port["way"]) for port in loop["takes"]["body"]}
    assert ports == {"x": ("X", "slice"), "m": ("memory", "whole"), "h": ("h0", "state")}
    assert [edge["parameter"] for edge in loop["back_edges"]] == ["h"]
    runs = {layer["type"]: layer["when"] for layer in loop["bodies"]["body"]["layers"]}
    assert runs["GRUCell"] == "step"
    assert runs["LogSoftmax"] == "rows"


def test_an_inspection_is_what_the_command_shows(stepnet, cases, tmp_path):
    path = cases / "corpus" / "attention_decoder" / "model.xml"
    it = inspect_model(path)
    out = stepnet("inspect", path, "--svg", tmp_path / "model.svg").out
    assert str(it).splitlines() == [line.rstrip() for line in out.splitlines()]
    assert it.to_svg() == (tmp_path / "model.svg").read_text(encoding="utf-8")
    assert it.to_dict() == json.loads(stepnet("inspect", path, "--json").out)


def chain(folder, layers: int):
    net = Net()
    at = net.parameter("x", "4")
    for i in range(layers):
        at = net.add("Exp" if i % 3 else "Negative", [at], name=f"layer {i}")
    net.result(at, name="y")
    return net.write(folder)


def test_many_layers_are_told_by_type(stepnet, tmp_path):
    path = chain(tmp_path, 300)
    out = stepnet("inspect", path).out
    assert [" ".join(line.split()) for line in out.splitlines() if line.startswith(("Exp", "Neg"))] == [
        "Exp 200 8.00 k", "Negative 100 400",
    ]  # fmt: skip
    assert "layer 7" not in out
    out = stepnet("inspect", path, "--all").out
    assert all(f"layer {i} " in out for i in range(300))


def test_odd_names(stepnet, odd, tmp_path):
    code, out, err = stepnet("inspect", odd, "--svg", tmp_path / "odd.svg")
    assert (code, err) == (0, "")
    shown = "a<b>&\"'[red]x[/] \\n\\x9b31mü/.."
    assert f"input    x{shown}   float32[2, 5, 3]" in out
    assert f"r{shown} -> {shown}" in out
    assert "\x9b" not in out
    ElementTree.parse(tmp_path / "odd.svg")
    assert json.loads(stepnet("inspect", odd, "--json").out)["inputs"][1]["name"] == "self"
