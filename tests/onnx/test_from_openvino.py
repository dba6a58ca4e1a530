"""Models of OpenVINO IR as ONNX: equal in ONNX Runtime, at other sizes where the file leaves them open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from covering import few
from saved_modules import plain_loops
from stepnet.errors import IRError
from stepnet.report.sizes import fitting

pytest.importorskip("onnx_ir")
import stepnet.onnx
import stepnet.openvino

CORPUS = Path(__file__).parent.parent / "openvino" / "cases" / "corpus"
OPEN = ["torch_lstm_bi2_sequence", "torch_lstm_dyn_ti", "dynamic_batch_time", "onnx_gru_bi_split_2layer_ti"]
FIXED = ["attention_decoder", "part2_rev", "lstm_projection"]


LIKE_OTHERS = {"torch_lstm_dyn_ti", "part2_rev"}


@pytest.mark.parametrize("name", few(OPEN + FIXED, {*OPEN, *FIXED} - LIKE_OTHERS))
def test_the_same_numbers(name, tmp_path, opened):
    model = stepnet.openvino.load(CORPUS / name / "model.xml").eval()

    def inputs(size):
        shapes = fitting(model, {}, size)
        return {i.name: torch.randn(shapes[i.name]).to(i.dtype) for i in model.inputs}

    with plain_loops():
        stepnet.onnx.save(model, tmp_path / "m.onnx", inputs(8))
    written = opened(tmp_path / "m.onnx")
    for size in (8, 5):
        values = inputs(size)
        with torch.no_grad(), plain_loops():
            expected = model(**values)
        for a, b in zip(written(*values.values()), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    open_sizes = [[d for d in sizes if d < 2] for sizes in model.open_sizes.values()]
    assert [[d for d in sizes if d < 2] for sizes in written.read.open_sizes.values()] == open_sizes
    assert any(open_sizes) == (name in OPEN)


def test_a_loop_that_its_condition_ends(tmp_path):
    model = stepnet.openvino.load(CORPUS / "loop_while" / "model.xml").eval()
    values = {i.name: torch.zeros(i.shape, dtype=i.dtype) for i in model.inputs}
    with pytest.raises(IRError, match=r"Loop .*joins values, and that its condition .* is not written"):
        stepnet.onnx.save(model, tmp_path / "m.onnx", values)
