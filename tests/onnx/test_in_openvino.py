"""Written files in OpenVINO, which keeps their states from call to call."""

from __future__ import annotations

import json

import pytest
import torch

import stepnet
from stepnet import cells

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402


class Carried(torch.nn.Module):
    """A cell whose state comes and goes."""

    def __init__(self):
        super().__init__()
        self.cell = cells.MinGRU(5, 32)

    def forward(self, x, h):
        return stepnet.recurrent(self.cell, x, h)


def test_states_that_openvino_keeps(tmp_path):
    """Sizes are fixed: what is added to a state must stand behind it, or OpenVINO reads something else."""
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("openvino.passes")
    torch.manual_seed(0)
    module, path = Carried().eval(), tmp_path / "m.onnx"
    stepnet.onnx.save(module, path, (torch.randn(4, 2, 5), torch.zeros(2, 32)))
    said = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({"x": [2, 3, 5], "h": [3, 32]})
    passes = openvino.passes.Manager()
    passes.register_pass(openvino.passes.MakeStateful(json.loads(said["stepnet.states"])))
    passes.run_passes(model)
    request = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    x = torch.randn(6, 3, 5)
    found = [torch.from_numpy(request.infer([piece.numpy()])[0].copy()) for piece in x.split(2)]
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(found), module(x, torch.zeros(3, 32))[0])
