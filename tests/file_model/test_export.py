"""Models from files as programs of torch.export."""

from __future__ import annotations

import pytest
import torch

import stepnet
from covering import few

pytest.importorskip("onnx_ir")
import stepnet.onnx
import stepnet.openvino


class Attending(torch.nn.Module):
    """A recurrence, and shapes that are computed with."""

    def __init__(self):
        super().__init__()
        self.rnn = stepnet.Recurrent(stepnet.cells.MinGRU(4, 4))

    def forward(self, x):
        y, h = self.rnn(x)
        return {"y": torch.softmax(y @ y.transpose(1, 2), -1) / x.shape[0], "h": h}


@pytest.mark.exhaustive  # as tests/graph: a program of what is called
@pytest.mark.parametrize("name", few(["m.onnx", "m.xml"], ["m.onnx"]))
def test_exported(tmp_path, name):
    write, read = {
        "m.onnx": (stepnet.onnx.save, stepnet.onnx.load),
        "m.xml": (stepnet.openvino.save, stepnet.openvino.load),
    }[name]
    torch.manual_seed(0)
    write(Attending(), tmp_path / name, (torch.randn(4, 2, 4),))
    model, x = read(tmp_path / name), torch.randn(5, 3, 4)
    program = torch.export.export(model, (x,), strict=False)
    torch.export.save(program, tmp_path / "program.pt2")
    found = torch.export.load(tmp_path / "program.pt2").module()(x)
    assert [*found.keys()] == ["y", "h"]
    for a, b in zip(found, model(x), strict=True):
        torch.testing.assert_close(a, b)


def test_the_number_of_steps_is_not_left_open(tmp_path):
    stepnet.openvino.save(Attending(), tmp_path / "m.xml", (torch.randn(4, 2, 4),))
    model, x = stepnet.openvino.load(tmp_path / "m.xml"), torch.randn(5, 3, 4)
    steps_open = (({0: torch.export.Dim.AUTO},),)
    with pytest.raises(stepnet.errors.IRError, match="number cannot be left open"):
        torch.export.export(model, (x,), dynamic_shapes=steps_open, strict=False)
    assert len(model(torch.randn(7, 3, 4))["y"]) == 7
