"""A model from a file in `torch.utils.checkpoint`: its first call and the second run save alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402

BACKEND = "eager"
GRAPH = """<ir_version: 9, opset_import: ["": 17]>
    g (float[T, 2, 4] x, float[2, 4] h) => (float[T, 2, 4] y, float[2, 4] l) {
      l, y = Scan <num_scan_inputs = 1, body = b (float[2, 4] s, float[2, 4] i) =>
        (float[2, 4] n, float[2, 4] o) {
          p = MatMul(i, w)  r = Add(p, s)  n = Tanh(r)  o = Sin(n) }> (h, x) }"""


@pytest.mark.parametrize(("steps", "before"), [(1, 0), (1, 1), (3, 0)])  # before: calls outside of it
def test_the_second_run_saves_what_the_first_did(steps, before, tmp_path):
    made = onnx.parser.parse_model(GRAPH)
    made.graph.initializer.append(onnx.numpy_helper.from_array(torch.eye(4).numpy(), "w"))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    x = torch.linspace(-1, 1, steps * 8).reshape(steps, 2, 4).requires_grad_()
    h = torch.ones(2, 4, requires_grad=True)

    def loss(x: Tensor, h: Tensor) -> Tensor:
        out = model(x, h)
        return out["y"].square().sum() + out["l"].sum()

    for _ in range(before):
        loss(x, h)
    found = [
        torch.autograd.grad(checkpoint(loss, x, h, use_reentrant=False), [x, h])  # pyright: ignore
        for _ in range(3)
    ]
    expected = torch.autograd.grad(loss(x, h), [x, h])
    for each in found:
        torch.testing.assert_close(each, expected)
