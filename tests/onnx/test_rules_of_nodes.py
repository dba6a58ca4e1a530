"""Nodes that break a rule of their operator, which would run all the same: an error that names the node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
from onnx import numpy_helper, parser  # noqa: E402

import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 20]> g (float[2,3] x%s) => (float y) '
SIZES = "a = Shape(x)  z = Constant<value = int64[1] {0}>()  o = Constant<value = int64[1] {1}>()"
NODES = {
    "a yes or no": (
        "y = ReduceSum<keepdims = -7>(x)",
        r"\(ReduceSum\): attribute 'keepdims' says yes or no\n.*-7\n.*0 or 1",
    ),
    "outputs of a split": (
        "y, z = Split<num_outputs = 3>(x)",
        r"\(Split\): num_outputs is not how many outputs there are\n.*3\n.*2",
    ),
    "a constant made of something": (
        "y = Constant<value = float {1.0}>(x)",
        r"\(Constant\): a constant has no inputs\n.*1",
    ),
    "an axis of sizes": (
        f"{SIZES}  b = Slice(a, z, o)  y = Concat<axis = -7>(b, b)",
        r"\(Concat\): axis -7 lies outside",
    ),
    "no such axis of sizes": (
        f"{SIZES}  t = Constant<value = int64[1] {{3}}>()  y = Slice(a, z, o, t)",
        r"\(Slice\): axis 3 lies outside",
    ),
    "an axis of one size": (
        f"{SIZES}  t = Constant<value = int64[1] {{4}}>()  b = Slice(a, z, o)  y = Squeeze(b, t)",
        r"\(Squeeze\): axes: 4 lies outside",
    ),
    "no axes for a slice": (
        f"{SIZES}  t = Constant<value = int64[0] {{}}>()  y = Slice(x, z, o, t)",
        r"\(Slice\): start, stop, step and axes have different lengths",
    ),
    "an axis of parts": (
        "s = SplitToSequence<axis = 9>(x)  y = ConcatFromSequence<axis = 0>(s)",
        r"\(SplitToSequence\): axis 9 lies outside a tensor of 2 dimensions\n.*9\n.*-2 to 1",
    ),
    "a bound for each": ("y = Clip(x, x)", r"\(Clip\): a bound must be one number\n.*\[2, 3\]"),
    "a scale that is wider": (
        "c = Constant<value = float[3] {1.0, 2.0, 3.0}>()  y = LayerNormalization(c, x)",
        r"\(LayerNormalization\): a part is wider than what it is spread over\n.*\[2, 3\]\n.*\[3\]",
    ),
    "an axis of scales": (
        "c = Constant<value = float[1,3] {1.0, 2.0, 3.0}>()  y = QuantizeLinear<axis = 1>(x, c)",
        r"\(QuantizeLinear\): scales, or zero points, must be in one row\n.*\[1, 3\]",
    ),
}
CONSTANTS = {
    "of another type than its input": (
        np.ones(2, np.int64),
        ", float[2] s",
        "constant 's' is of another type than the input of its name\n.*INT64\n.*FLOAT",
    ),
    "of texts": (
        np.array(["a"], object),
        "",
        "constant 's': is of a type that torch does not have\n.*\n.*\n.*types that are read",
    ),
}
LOOP = """t = Constant<value = int64 {2}>()
    y = Loop(t, , x) <body = b (%s) => (%s) { d = Identity(c)  s = Neg(h) }>"""
SCAN = """h0 = Constant<value = float[3] {1.0, 2.0, 3.0}>()
    y = Scan<num_scan_inputs = 1, body = b (%s) => (%s) { s = Add(h, a) }>(h0, x)"""
BODIES = {  # what a body takes and gives, and what is said
    "a state": ("Loop", "int64 i, bool c, int32[2,3] h", "bool d, int32[2,3] s", "'h' .*INT32.*FLOAT"),
    "the number": ("Loop", "float i, bool c, float[2,3] h", "bool d, float[2,3] s", "'i' .*FLOAT.*INT64"),
    "the condition": ("Loop", "int64 i, float c, float[2,3] h", "float d, float[2,3] s", "'c' .*FLOAT.*BOOL"),
    "a condition made": (
        "Loop",
        "int64 i, bool c, float[2,3] h",
        "int64 d, float[2,3] s",
        "'d' .*INT64.*BOOL",
    ),
    "steps": ("Scan", "float[3] h, double[3] a", "float[3] s", "'a' .*DOUBLE.*FLOAT"),
}


@pytest.mark.parametrize("name", BODIES)
def test_types_that_a_body_declares(name, tmp_path):
    kind, takes, gives, says = BODIES[name]
    text = {"Loop": LOOP, "Scan": SCAN}[kind] % (takes, gives)
    with pytest.raises(IRError, match=rf"(?s)node 1 '' \({kind}\): its body declares {says}"):
        load(text, tmp_path)


def load(text, tmp_path, constant=None, declared=""):
    model = parser.parse_model(f"{HEAD % declared} {{ {text} }}")
    if constant is not None:
        model.graph.initializer.append(numpy_helper.from_array(constant, "s"))
    onnx.save(model, tmp_path / "m.onnx")
    return stepnet.onnx.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("name", NODES)
def test_a_node(name, tmp_path):
    text, message = NODES[name]
    with pytest.raises(IRError, match=rf"m\.onnx: node \d '' {message}"):
        load(text, tmp_path)(torch.randn(2, 3))


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant(name, tmp_path):
    constant, declared, message = CONSTANTS[name]
    with pytest.raises(IRError, match=rf"m\.onnx: {message}"):
        load("y = Relu(x)", tmp_path, constant, declared)
