"""Loops along an axis that is not the first: nodes bring it to the front, and back; read, they are gone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepnet
from saved_modules import plain_loops
from stepnet import cells

onnx = pytest.importorskip("onnx")
parser = pytest.importorskip("onnx.parser")
runtime = pytest.importorskip("onnxruntime")

import stepnet.onnx  # noqa: E402
from stepnet.file_model.joined_steps import JoinedStep  # noqa: E402

PLAIN = "float[B, 4] h, float[B, 4] s", "float[B, 4] h_new, float[B, 4] row", "s"
TURNED = "float[B, 4] h, float[4, B] s", "float[B, 4] h_new, float[4, B] row", "st"
SWAP = "Transpose<perm = [1, 0, 2]>"
SIZES = "size = Shape<end = 2>(x) to = Concat<axis = 0>(size, four) "
ROWS = (
    f"{SIZES} k = Reshape(x, flat) g = Gemm(k, w, b) s = Reshape(g, to) t = {SWAP}(s) last, r = SCAN(h0, t) "
)
CASES = {  # of x [B, T, 4]: what stands around the Scan, its body, and how many nodes are part of it
    "both": (f"s = MatMul(x, w) t = {SWAP}(s) last, r = SCAN(h0, t) y = {SWAP}(r) ys = Tanh(y)", PLAIN, 2),
    "read twice": (
        f"s = MatMul(x, w) t = {SWAP}(s) last, r = SCAN(h0, t) y = {SWAP}(r) u = {SWAP}(t) ys = Add(y, u)",
        PLAIN, 0,
    ),
    "rows read twice": (
        f"s = MatMul(x, w) t = {SWAP}(s) last, r = SCAN(h0, t) y = {SWAP}(r) k = {SWAP}(r) ys = Add(y, k)",
        PLAIN, 0,
    ),
    "moved on one side": (f"s = MatMul(x, w) t = {SWAP}(s) last, r = SCAN(h0, t) ys = Tanh(r)", PLAIN, 1),
    "slices turned, too": (
        "s = MatMul(x, w) t = Transpose<perm = [1, 2, 0]>(s) last, r = SCAN(h0, t) "
        "y = Transpose<perm = [2, 0, 1]>(r) ys = Tanh(y)", TURNED, 0,
    ),
    "all rows as one table": (f"{ROWS} y = {SWAP}(r) ys = Tanh(y)", PLAIN, 6),
    "after it, too": (
        f"{ROWS} y = {SWAP}(r) m = Reshape(y, flat) p = Tanh(m) q = Softmax(p) v = Reshape(x, flat) "
        "u = Add(q, v) ys = Reshape(u, to)", PLAIN, 11,
    ),
    "rows that others give": (
        f"{SIZES} k = Reshape(x, flat) c = Softmax<axis = 0>(k) g = Gemm(c, w, b) d = Relu(g) "
        f"s = Reshape(d, to) v = Relu(s) t = {SWAP}(v) last, r = SCAN(h0, t) y = {SWAP}(r) ys = Tanh(y)",
        PLAIN, 2,
    ),
    "rows that others read": (
        f"{SIZES} s = MatMul(x, w) t = {SWAP}(s) last, r = SCAN(h0, t) y = {SWAP}(r) z = Tanh(y) "
        "m = Reshape(z, flat) g = Gemm(m, w) c = Softmax<axis = 0>(g) ys = Reshape(c, to)", PLAIN, 2,
    ),
    "rows in another order": (
        f"{SIZES} u = {SWAP}(x) k = Reshape(u, flat) g = Gemm(k, w, b) s = Reshape(g, to) t = {SWAP}(s) "
        f"last, r = SCAN(h0, t) y = {SWAP}(r) ys = Tanh(y)", PLAIN, 1,
    ),
}  # fmt: skip


def joined(model):
    """How many nodes became part of a loop, in calls of the kind with most of them."""
    found = [step.run.body for steps in model.graph.joining.found.values() for step in steps or []
             if isinstance(step, JoinedStep)]  # fmt: skip
    return max((len(body.before) + len(body.after) for body in found), default=0)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_as_onnx_runtime(case, turned, tmp_path):
    nodes, (takes, gives, kind), count = CASES[case]
    sum_ = "sum = Add(h, s)" if kind == "s" else "k = Transpose<perm = [1, 0]>(s) sum = Add(h, k)"
    row = "row = Identity(h_new)" if kind == "s" else "row = Transpose<perm = [1, 0]>(h_new)"
    body = f"g ({takes}) => ({gives}) {{ {sum_} h_new = Tanh(sum) {row} }}"
    scan = f"Scan<num_scan_inputs = 1, scan_input_directions = [{turned}], "
    scan += f"scan_output_directions = [{turned}], body = {body}>"
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        m (float[B, T, 4] x, float[B, 4] h0) => (float[N, M, K] ys, float[B, 4] last)
        <int64[2] flat = {{-1, 4}}, int64[1] four = {{4}}>
        {{ {nodes.replace("SCAN", scan)} }}
    """)
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) / 3
    for name, numbers in (("w", weight), ("b", weight[0])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers.copy(), name))
    onnx.save(model, tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    kept = stepnet.onnx.load(tmp_path / "m.onnx")
    for steps, batch in [(4, 4), (7, 3), (5, 2), (2, 6), (1, 3), (6, 1)]:
        read = stepnet.onnx.load(tmp_path / "m.onnx")
        x, h0 = torch.randn(batch, steps, 4, requires_grad=True), torch.randn(batch, 4)
        expected = session.run(None, {"x": x.detach().numpy(), "h0": h0.numpy()})
        for one in (kept, kept, read, read, read):
            found = one(x, h0)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a.detach(), b, rtol=1e-4, atol=1e-5)
        if min(steps, batch) > 1 and steps != batch:  # else other sizes are as many
            assert joined(read) == count
        (gradient,) = torch.autograd.grad(found[0].square().sum() + found[1].sum(), x)
        with plain_loops():
            right = read(x, h0)
            (expected,) = torch.autograd.grad(right[0].square().sum() + right[1].sum(), x)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


MODULES = {
    "an own cell": lambda: stepnet.Recurrent(cells.MinGRU(3, 4), axis=1),
    "backwards": lambda: stepnet.Recurrent(cells.LayerNormLSTM(3, 4), axis=1, reverse=True),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_batch_of_none_in_onnx_runtime(name, tmp_path):
    """Where a Scan is cut along another axis, it ends the process."""
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    stepnet.onnx.save(module, tmp_path / "m.onnx", (torch.randn(2, 4, 3),))
    (scan,) = [node for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type == "Scan"]
    assert {"scan_input_axes", "scan_output_axes"}.isdisjoint(a.name for a in scan.attribute)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    (fed,) = session.get_inputs()
    for batch, steps in [(0, 3), (1, 1), (2, 1), (5, 7)]:
        x = torch.randn(batch, steps, 3)
        expected = session.run(None, {fed.name: x.numpy()})
        for found in (module(x), read(x)):
            leaves = torch.utils._pytree.tree_leaves(found)
            for a, b in zip(leaves, expected, strict=True):
                np.testing.assert_allclose(a.detach(), b, rtol=1e-4, atol=1e-5)
    assert joined(read)  # what stands around is part of the loop
    with pytest.raises(Exception, match="Scan"):
        session.run(None, {fed.name: np.zeros((2, 0, 3), np.float32)})
    assert torch.utils._pytree.tree_leaves(read(torch.zeros(2, 0, 3)))[0].shape == (2, 0, 4)
