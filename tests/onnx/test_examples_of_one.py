"""Models that were read, written again by examples of one step or one sequence: what their file leaves open
stays open."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnx_ir")
import onnx
import onnx.parser

import stepnet.onnx
import stepnet.openvino
from torch_since import torch_since

since = torch_since("2.13", "its export fixes sizes that are computed with")

SCAN = """<ir_version: 9, opset_import: ["": 18]> g (float[T,B,3] x, float[B,3] h) => (float[T,B,3] y) {
    s, y = Scan(h, x) <num_scan_inputs = 1, body = b (float[B,3] a, float[B,3] row)
    => (float[B,3] new, float[B,3] out) { u = Add(a, row)  new = Tanh(u)  out = Neg(new) }> }"""
ALONE = """<ir_version: 9, opset_import: ["": 18]> g (float[T,B,3] x, float[K,3] h) => (float[T,B,3] y) {
    z = Constant<value = int64[1] {0}>()  n = Squeeze(h, z)  y = Add(x, n) }"""


@since
@pytest.mark.parametrize(("steps", "sequences"), [(1, 2), (3, 1), (1, 1)])
def test_what_the_file_leaves_open(steps, sequences, tmp_path):
    onnx.save(onnx.parser.parse_model(SCAN), tmp_path / "m.onnx")
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    example = torch.randn(steps, sequences, 3), torch.randn(sequences, 3)
    stepnet.openvino.save(read, tmp_path / "m.xml", example)
    stepnet.onnx.save(stepnet.openvino.load(tmp_path / "m.xml"), tmp_path / "again.onnx", example)
    for twin in (stepnet.openvino.load(tmp_path / "m.xml"), stepnet.onnx.load(tmp_path / "again.onnx")):
        assert twin.open_sizes == {"x": [0, 1], "h": [0]}
        given = torch.randn(4, 5, 3), torch.randn(5, 3)
        torch.testing.assert_close(twin(*given)[0], read(*given)[0])


@since
def test_what_takes_one_alone(tmp_path):
    """A size that the file leaves open and the model takes as one only is one in what is written."""
    onnx.save(onnx.parser.parse_model(ALONE), tmp_path / "m.onnx")
    read, given = stepnet.onnx.load(tmp_path / "m.onnx"), (torch.randn(2, 2, 3), torch.randn(1, 3))
    stepnet.onnx.save(read, tmp_path / "again.onnx", given)
    twin = stepnet.onnx.load(tmp_path / "again.onnx")
    assert twin.open_sizes == {"x": [0, 1], "h": []}
    torch.testing.assert_close(twin(*given)[0], read(*given)[0])
