"""Nodes around a Scan that treat steps alike are part of its loop; others stay where they are."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import stepnet
from covering import few
from saved_modules import plain_loops
from stepnet import cells

onnx = onnx = pytest.importorskip("onnx")
parser = pytest.importorskip("onnx.parser")
runtime = pytest.importorskip("onnxruntime")

import stepnet.onnx  # noqa: E402
from stepnet.file_model.joined_steps import JoinedStep  # noqa: E402

BODY = """
    g (float[B, 4] h, float[B, 4] s) => (float[B, 4] h_new, float[B, 4] row)
    { sum = Add(h, s) h_new = Tanh(sum) row = Identity(h_new) }
"""
NUMBERS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) / 3
CONSTANTS = """
    int64[2] flat = {-1, 4},
    int64[3] back = {0, -1, 4}, int64[1] zero = {0}, int64[1] first = {1}
"""


def model_of(nodes, out="ys", scan="", body=BODY):
    """Loads a file: what it gives are `out` and the last state."""
    text = f"""
        <ir_version: 9, opset_import: ["" : 18]>
        m (float[T, B, 4] x, float[B, 4] h0) => (float[N, M, K] {out}, float[B, 4] last)
        <{CONSTANTS}>
        {{ {nodes.replace("SCAN", f"Scan<num_scan_inputs = 1, body = {body} {scan}>")} }}
    """
    model = parser.parse_model(text)
    for name, numbers in (("w", NUMBERS[:4, :4]), ("v", NUMBERS[4:, 4:]), ("b", NUMBERS[0, :4])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers.copy(), name))
    return model


def joined(model):
    """The operators that became part of a loop, at the last call."""
    steps = list(model.graph.joining.found.values())[-1]
    loops = [step.run.body for step in steps or [] if isinstance(step, JoinedStep)]
    return [[step.info.node.op_type for step in (*b.before, *b.after)] for b in loops]


PLAIN = "s = MatMul(x, w) last, ys = SCAN(h0, s)"
CASES = {
    "a product before": (PLAIN, [["MatMul"]]),
    "after": ("last, y = SCAN(h0, x) p = MatMul(y, w) ys = Relu(p)", [["MatMul", "Relu"]]),
    "all rows as one table": (
        """r = Reshape(x, flat) g = Gemm<transB = 1>(r, w, b) size = Shape<end = 2>(x) n = Shape<start = 1>(b)
        k = Shape(b) to = Concat<axis = 0>(size, k) s = Reshape(g, to) last, ys = SCAN(h0, s)""",
        [["Reshape", "Gemm", "Shape", "Shape", "Concat", "Reshape"]],
    ),
    "norms and parts": (
        """n = LayerNormalization(x, b) p, q = Split<axis = -1, num_outputs = 2>(n) c = Concat<axis = 2>(q, p)
        s = Softmax(c) last, ys = SCAN(h0, s)""",
        [["LayerNormalization", "Split", "Concat", "Softmax"]],
    ),
    "its input again, after it": ("last, y = SCAN(h0, x) ys = Add(y, x)", [["Add"]]),
    "one value before is read after, too": (
        "s = MatMul(x, w) last, y = SCAN(h0, s) ys = Mul(y, s)", [["Mul"]],
    ),
    "two": (
        "s = MatMul(x, w) l, y = SCAN(h0, s) t = MatMul(y, v) last, z = SCAN(h0, t) ys = Tanh(z)",
        [["MatMul"], ["MatMul", "Tanh"]],
    ),
    "sums over steps": ("c = CumSum(x, zero) last, ys = SCAN(h0, c)", []),
    "the largest of all steps": (
        "most = ReduceMax<keepdims = 1>(x, zero) s = Sub(x, most) last, ys = SCAN(h0, s)", None,
    ),  # holds the batch, and no row for each of it
    "a mean over steps after": (
        "last, y = SCAN(h0, x) mean = ReduceMean<keepdims = 1>(y, zero) ys = Sub(y, mean)", [],
    ),
    "rows turned over": (
        """size = Shape(x) p = Gather(size, first) q = Gather(size, zero) four = Shape(b)
        to = Concat<axis = 0>(p, q, four) r = Reshape(x, to) n = Softmax<axis = 1>(r) s = Reshape(n, size)
        last, ys = SCAN(h0, s)""",
        [],
    ),
    "steps weigh steps": (
        """a = Transpose<perm = [1, 0, 2]>(x) k = Transpose<perm = [1, 2, 0]>(x) p = MatMul(a, k)
        q = MatMul(p, a) s = Transpose<perm = [1, 0, 2]>(q) last, ys = SCAN(h0, s)""",
        [],
    ),
}  # fmt: skip
SIZES = [(7, 3), (6, 3), (3, 1), (4, 8), (4, 4), (1, 3), (5, 2)]


@pytest.mark.parametrize("case", few(CASES, [*CASES][::4]))
def test_as_onnx_runtime(case, tmp_path):
    nodes, wanted = CASES[case]
    onnx.save(model_of(nodes), tmp_path / "m.onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    for steps, batch in SIZES:
        x, h0 = torch.randn(steps, batch, 4), torch.randn(batch, 4)
        expected = session.run(None, {"x": x.numpy(), "h0": h0.numpy()})
        for _ in range(2):
            for found, right in zip(model(x, h0), expected, strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
        anew = stepnet.onnx.load(tmp_path / "m.onnx")
        for found, right in zip(anew(x, h0), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
        if steps != 4 and wanted is not None:  # at 4, other sizes are as many
            assert joined(anew) == (wanted if steps > 1 else [])
        assert all(report.compiled for report in model.loops)


def test_gradients_backwards_and_a_copy(tmp_path):
    nodes = "s = MatMul(x, w) last, y = SCAN(h0, s) ys = MatMul(y, v)"
    turned = ", scan_input_directions = [1], scan_output_directions = [1]"
    onnx.save(model_of(nodes, scan=turned), tmp_path / "m.onnx")
    model = stepnet.onnx.load(tmp_path / "m.onnx", trainable=True)
    x, h0 = torch.randn(5, 3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)

    def gradients(one):
        ys, last = one(x, h0)
        return torch.autograd.grad(ys.square().sum() + last.sum(), [x, h0, *list(one.parameters())[:2]])

    found = gradients(model)
    assert joined(model) == [["MatMul", "MatMul"]]
    with plain_loops():
        expected = gradients(model)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        next(twin.parameters()).mul_(0.5)
    changed = gradients(twin)
    with plain_loops():
        expected = gradients(twin)
    for a, b in zip(changed, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(model), found)


def test_what_we_write_is_one_loop(tmp_path):
    """Nothing of the size of all steps is left around it but views."""
    stepnet.onnx.save(stepnet.Recurrent(cells.SLSTM(3, 4)), tmp_path / "m.onnx", (torch.randn(4, 2, 3),))
    model, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.randn(5, 3, 3)
    with torch.no_grad():
        model(x)
    before = ["Reshape", "Gemm", "Shape", "Concat", "Reshape", "Unsqueeze"]
    assert joined(model) == [[*before, "Identity"]]


def test_an_axis_that_is_not_there_is_told(tmp_path):
    onnx.save(model_of(PLAIN, scan=", scan_input_axes = [7]"), tmp_path / "m.onnx")
    with pytest.raises(stepnet.errors.IRError, match="Scan"):
        stepnet.onnx.load(tmp_path / "m.onnx")(torch.ones(3, 2, 4), torch.ones(2, 4))


ONE = {
    "products around it": "p = MatMul(x, w) last, y = SCAN(h0, p) ys = Relu(y)",
    "two of them": "last, y = SCAN(h0, x) l, ys = SCAN(last, y)",
}
KEPT = """
    g (float[B, 4] h, float[B, 4] s) => (float[B, 4] h_new, float[B, 4] row)
    { h_new = Identity(h) row = Identity(s) }
"""


@pytest.mark.parametrize("nodes", ONE.values(), ids=ONE)
@pytest.mark.parametrize("body", [BODY, KEPT], ids=["state", "kept"])
def test_one_step_is_part_of_the_function(nodes, body, tmp_path, monkeypatch):
    """No loop is called, and nothing that comes out is what went in."""
    onnx.save(model_of(nodes, body=body), tmp_path / "m.onnx")
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        for call in range(12):
            x, h = torch.randn(1, 2, 4), torch.randn(2, 4)
            found = model(x, h)
            if call == 2:  # noted
                monkeypatch.setattr("stepnet.onnx.reading.control.ScanRunner.__call__", None)
                monkeypatch.setattr("stepnet.iterator.replay.Replay.run", None)
            for a, b in zip(found, session.run(None, {"x": x.numpy(), "h0": h.numpy()}), strict=True):
                torch.testing.assert_close(a, torch.from_numpy(b))
            memories = {t.untyped_storage().data_ptr() for t in (x, h, *found)}
            assert len(memories) == 4
