"""What ONNX Runtime's quantisation makes of models: read, and equal to ONNX Runtime."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>\n'
OPS = {
    "sum": "y = com.microsoft.QLinearAdd(x, s, z, w, t, u, r, q)",
    "product": "y = com.microsoft.QLinearMul(x, s, z, w, t, u, r, q)",
    "sigmoid": "y = com.microsoft.QLinearSigmoid(x, s, z, p, q)",
    "leaky": "y = com.microsoft.QLinearLeakyRelu <alpha = 0.3> (x, s, z, r, q)",
    "softmax": "y = com.microsoft.QLinearSoftmax <axis = 1, opset = 17> (x, s, z, p, q)",
    "gemm": "o = Concat <axis = 0> (i, i)  y = com.microsoft.QGemm(x, s, z, m, t, u, o, r, q)",
    "gemm, turned": "y = com.microsoft.QGemm <transB = 1, alpha = 0.5> (x, s, z, w, t, u, , r, q)",
    "mean": """a = Constant <value = int64[2] {0, 3}>()  b = Unsqueeze(x, a)
        c = com.microsoft.QLinearGlobalAveragePool(b, s, z, r, q)  y = Squeeze(c, a)""",
    "concat": "y = com.microsoft.QLinearConcat <axis = 1> (r, q, x, s, z, w, t, u)",
    "matrix": "y = com.microsoft.MatMulIntegerToFloat(x, m, s, t, z, u)",
    "quantising": "f = DequantizeLinear(x, s, z)  y = com.microsoft.DynamicQuantizeMatMul(f, m, t, u)",
}


def check(path, feed, tolerance, expected=None):
    if expected is None:
        expected = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)
    model = stepnet.onnx.load(path)
    for _ in range(3):  # as nodes, noted, and as one function
        for a, b in zip(model(**feed), expected, strict=True):
            assert a.numpy().dtype == b.dtype
            np.testing.assert_allclose(a.numpy().astype(float), b.astype(float), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", OPS)
def test_operators(name, tmp_path):
    fraction = "MatMul" in OPS[name]
    text = f"""g (uint8[2, 3] x, uint8[2, 3] w) => ({"float" if fraction else "uint8"}[N, M] y)
    <float s = {{0.02}}, float t = {{0.03}}, float r = {{0.05}}, float p = {{0.004}}, uint8 z = {{120}},
     uint8 u = {{100}}, uint8 q = {{90}}, int32[1] i = {{300}},
     uint8[3, 2] m = {{1, 200, 90, 255, 0, 7}}> {{ {OPS[name]} }}"""
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    draw = np.random.default_rng(0)
    feed = {n: draw.integers(0, 256, (2, 3), np.uint8) for n in "xw"}
    check(tmp_path / "m.onnx", feed, 1e-4 if fraction else 1.0)  # which way halves go


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_products_of_bytes(kinds, tmp_path, monkeypatch):
    """Exact, whatever stands for zero, and multiplied as bytes: without VNNI, ONNX Runtime saturates."""
    a, b = kinds
    zero = {"uint8": 200, "int8": -100}
    text = f"""g ({a}[T, B, 300] x) => (int32[T, B, 5] y, int32[T, B, 5] z, int32[T, B, 5] p)
    <{a} s = {{{zero[a]}}}, {b} t = {{{zero[b]}}}, {b} o = {{0}}>
    {{ y = MatMulInteger(x, w, s, t)  z = MatMulInteger(x, w, s, o)  p = MatMulInteger(x, w) }}"""
    model = onnx.parser.parse_model(HEAD + text)
    draw = np.random.default_rng(0)
    ends = {"uint8": (0, 256), "int8": (-128, 128)}
    w, x = (draw.integers(*ends[k], shape, k) for k, shape in ((b, (300, 5)), (a, (3, 2, 300))))
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    calls, multiply = [], torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda *given: calls.append(None) or multiply(*given))
    long, wide = x.astype(np.int64), w.astype(np.int64)
    zeros = (zero[a], zero[b]), (zero[a], 0), (0, 0)
    exact = [((long - s) @ (wide - t)).astype(np.int32) for s, t in zeros]
    check(tmp_path / "m.onnx", {"x": x}, 0, exact)
    assert calls


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_lstm(direction, per_channel, tmp_path):
    from onnxruntime.quantization import quantize_dynamic

    count = 2 if direction == "bidirectional" else 1
    draw = np.random.default_rng(1)
    shapes = {"w": (count, 32, 6), "r": (count, 32, 8), "b": (count, 64)}
    constants = [
        numpy_helper.from_array(draw.normal(size=shape).astype(np.float32) / 3, name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h"], hidden_size=8, direction=direction)
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in
            (("x", ("T", "B", 6)), ("y", ("T", count, "B", 8)), ("h", (count, "B", 8)))]  # fmt: skip
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    # Weights of seven bits: with eight, ONNX Runtime's sums saturate on a CPU without VNNI.
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", per_channel=per_channel, reduce_range=True)
    assert [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node] == ["DynamicQuantizeLSTM"]
    x = draw.normal(size=(7, 3, 6)).astype(np.float32)
    check(tmp_path / "q.onnx", {"x": x[:, :1]}, 1e-5)
    check(tmp_path / "q.onnx", {"x": x}, 5e-3)  # it quantises the states of a step together, we each


@pytest.mark.parametrize(("kind", "low"), [("INT4", -8), ("UINT4", 0)])
def test_weights_of_four_bits(kind, low, tmp_path):
    number, numbers = getattr(onnx.TensorProto, kind), [*range(low, low + 16)]
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (float[N, 3] x) => (float[N, 5] y)
        <float[5] s = {0.1, 0.2, 0.3, 0.4, 0.5}> {
        d = DequantizeLinear <axis = 1> (w, s, z)  c = Cast <to = 1> (z)  p = MatMul(x, d)  y = Add(p, c) }"""
    )
    made.graph.initializer.append(helper.make_tensor("w", number, [3, 5], numbers[:15]))
    made.graph.initializer.append(helper.make_tensor("z", number, [5], numbers[-5:]))
    onnx.save(made, tmp_path / "m.onnx")
    check(tmp_path / "m.onnx", {"x": np.ones((2, 3), np.float32)}, 1e-5)
    made.graph.node[1].op_type = "Abs"
    del made.graph.node[1].attribute[:]
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(
        IRError, match=rf"constant 'z': {kind} is read by more than DequantizeLinear and Cast"
    ):
        stepnet.onnx.load(tmp_path / "m.onnx")


def test_nodes_in_another_order_are_told_with_the_remedy(tmp_path):
    """As converters to float16 leave them."""
    made = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Neg(a)  a = Abs(x) }")
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(IRError, match=re.escape("(Neg): reads 'a', which nothing before it makes")) as told:
        stepnet.onnx.load(tmp_path / "m.onnx")
    assert "TopologicalSortPass" in str(told.value)


def test_lists_of_arrays_and_states_of_another_type(tmp_path):
    """Which calls and files hold: tensors, or an error that names the place."""
    text = (
        "g (seq(float[2]) x) => (seq(float[2]) y) { y = SequenceMap(x) <body = b (float[2] a) => (float[2] c)"
    )
    onnx.save(onnx.parser.parse_model(f"{HEAD}{text} {{ c = Neg(a) }}> }}"), tmp_path / "m.onnx")
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    (found,) = model([np.ones(2, np.float32), torch.ones(2)])
    assert [part.tolist() for part in found] == [[-1.0, -1.0]] * 2
    with pytest.raises(
        IRError, match=r"'x' holds something else than tensors and arrays, at 1\n  got:      str"
    ):
        model([torch.ones(2), "b"])
    text = """g (float[2, 1, 3] x, int64[1, 1, 2] h) => (float[a, b, c, d] y)
    <float[1, 6, 3] w = {1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0},
     float[1, 6, 2] r = {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}> { i = Identity(h)  y = GRU(x, w, r, , , i) }"""
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"\(GRU\): .*\n  got: .*\n  expected: .*\n  remedy: "):
        stepnet.onnx.load(tmp_path / "m.onnx")(torch.ones(2, 1, 3), torch.ones(1, 1, 2, dtype=torch.long))


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("y = MatMulInteger(x, w, k)", "a zero point is of another type\n.*int8\n.*uint8"),
        ("y, s, t = DynamicQuantizeLinear(x)", "of another type\n.*uint8\n.*float32"),
    ],
)
def test_types_that_do_not_fit(op, says, tmp_path):
    text = f"g (uint8[2, 3] x, uint8[3, 2] w, int8 k) => (int32[N, M] y) {{ {op} }}"
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    given = {"x": torch.ones(2, 3), "w": torch.ones(3, 2), "k": torch.zeros(())}
    with pytest.raises(IRError, match=rf"node 0 .*: {says}"):
        stepnet.onnx.load(tmp_path / "m.onnx")(
            **{n: t.to(torch.int8 if n == "k" else torch.uint8) for n, t in given.items()}
        )
