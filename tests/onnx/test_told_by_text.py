"""Broken ONNX files that are told by a text each: what was given, what is expected, the remedy."""

from __future__ import annotations

import re

import pytest
import torch

onnx = pytest.importorskip("onnx")
from onnx.parser import parse_model  # noqa: E402

import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 17]> '
BRANCHES = """g (float[3] x, bool c) => (float[3] y) { y = If(c) <
    then_branch = t () => (THEN) { a = Neg(x)  b = Abs(x) },
    else_branch = e () => (float[3] u, ELSE) { u = Exp(x)  v = Cast<to = 7>(x) }> }"""
CELL = "g (float[2,1,3] x, float[1,H,3] w, float[1,H,2] r) => (float[A,B,C,D] y) { y = OP(x, w, r) }"
SCALED = """g (uint8[2,3] x, float[2] s, uint8[2] z) => (float[2,3] y)
    { y = DequantizeLinear<axis = AXIS>(x, s, z) }"""
ONE, TWO = "float[3] a", "float[3] u, ELSE"
TEXTS = {
    "results of a branch": (
        BRANCHES.replace("THEN", ONE).replace("ELSE", "int64[3] v"),
        r"\(If\): the graph 'else_branch' gives another number of values\n  got: +2\n.* 1\n",
    ),
    "types of branches": (
        BRANCHES.replace("THEN", ONE).replace(TWO, "int64[3] v"),
        r"\(If\): its graphs give values of different types\n  got: +FLOAT and INT64 for output 0",
    ),
    "half on": (
        CELL.replace("OP", "GRU<hidden_size = 2, linear_before_reset = 5>"),
        r"linear_before_reset is neither on nor off\n  got: +5\n  expected: 0 or 1",
    ),
    "no hidden size": (
        CELL.replace("OP", "RNN<hidden_size = 0>"),
        r"hidden_size must be at least 1\n  got: +0",
    ),
    "a scale too few": (
        SCALED.replace("AXIS", "1"),
        r"one scale, or zero point, for each of axis 1\n  got: +\[2\]",
    ),
    "an axis of scales": (SCALED.replace("AXIS", "5"), r"axis 5 lies outside a tensor of 2 dimensions"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_told_by_text(name, tmp_path):
    text, message = TEXTS[name]
    onnx.save(parse_model(HEAD + text), tmp_path / "m.onnx")

    def read_and_run():
        model = stepnet.onnx.load(tmp_path / "m.onnx")
        model(torch.ones(2, 3, dtype=torch.uint8), torch.ones(2), torch.zeros(2, dtype=torch.uint8))

    with pytest.raises(IRError, match=message) as told:
        read_and_run()
    assert re.search(r"\n  got: .*\n  expected: .*\n  remedy: ", str(told.value))


@pytest.mark.parametrize("version", [0, 99])
def test_of_another_form(version, tmp_path):
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float x) => (float y) { y = Neg(x) }'
    )
    made.ir_version = version
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(
        IRError, match=rf"m.onnx: of a version .*\n  got: +ir_version {version}\n  expected: 1 to"
    ):
        stepnet.onnx.load(tmp_path / "m.onnx")


def test_names_of_graphs_are_told_on_one_line(tmp_path):
    made = parse_model(HEAD + TEXTS["types of branches"][0])
    made.graph.node[0].attribute[1].name = "el\ne"
    made.graph.node[0].attribute[1].g.output[0].name = "gone"
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(IRError, match=r"\(If\), el\\ne: nothing makes the output 'gone'\n"):
        stepnet.onnx.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("rate", [True, False])
def test_branches_of_two_ranks(rate, tmp_path):
    """With types that only the graph outside declares."""
    text = """g (float[2,3] x, bool c) => (float y) { y = If(c) <
        then_branch = t () => (a) { z = Constant<value = int64[1] {0}>()  a = ReduceSum<keepdims = 0>(x, z) },
        else_branch = e () => (b) { b = Neg(x) }> }"""
    made = parse_model(HEAD + text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(made, tmp_path / "m.onnx")
    model, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.randn(2, 3)
    for _ in range(3):
        assert torch.equal(model(x, torch.tensor(rate))[0], x.sum(0) if rate else -x)
