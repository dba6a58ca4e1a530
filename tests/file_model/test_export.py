"""Models from files as programs of torch.export."""

from __future__ import annotations

import pytest
import torch

import stepnet
from covering import few
from stepnet.graph import CAN_CAPTURE

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


@pytest.mark.skipif(not CAN_CAPTURE, reason="this torch takes each step of a loop")
@pytest.mark.parametrize("name", few(["m.onnx", "m.xml"], ["m.onnx"]))
def test_its_loop_is_one_operator_of_any_number_of_steps_and_rows(tmp_path, name):
    write, read = {
        "m.onnx": (stepnet.onnx.save, stepnet.onnx.load),
        "m.xml": (stepnet.openvino.save, stepnet.openvino.load),
    }[name]
    torch.manual_seed(0)
    write(Attending(), tmp_path / name, (torch.randn(4, 2, 4),))
    model = read(tmp_path / name)
    sizes = (({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},),)
    program = torch.export.export(model, (torch.randn(5, 3, 4),), dynamic_shapes=sizes, strict=False)
    torch.export.save(program, tmp_path / "program.pt2")
    found = torch.export.load(tmp_path / "program.pt2").module()
    assert sum("stepnet.run" in str(node.target) for node in program.graph.nodes) == 1
    for steps, rows in ((7, 2), (1, 1), (0, 4)):
        x = torch.randn(steps, rows, 4)
        out = found(x)
        assert [*out.keys()] == ["y", "h"]
        for a, b in zip(out, model(x), strict=True):
            torch.testing.assert_close(a, b)


def test_the_number_of_steps_of_a_plain_loop_is_not_left_open(tmp_path):
    stepnet.openvino.save(Attending(), tmp_path / "m.xml", (torch.randn(4, 2, 4),))
    model, x = stepnet.openvino.load(tmp_path / "m.xml"), torch.randn(5, 3, 4)
    steps_open = (({0: torch.export.Dim.AUTO},),)
    stepnet.set_backend("naive")
    with pytest.raises(stepnet.errors.IRError, match="number cannot be left open"):
        torch.export.export(model, (x,), dynamic_shapes=steps_open, strict=False)
    assert len(model(torch.randn(7, 3, 4))["y"]) == 7
