"""Models of OpenVINO IR as ONNX: equal in ONNX Runtime, at other sizes where the file leaves them open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from covering import few
from saved_modules import plain_loops
from stepnet.report.sizes import fitting

pytest.importorskip("onnx_ir")
import stepnet.onnx
import stepnet.openvino

CORPUS = Path(__file__).parent.parent / "openvino" / "cases" / "corpus"
OPEN = ["torch_lstm_bi2_sequence", "torch_lstm_dyn_ti", "dynamic_batch_time", "onnx_gru_bi_split_2layer_ti"]
FIXED = ["attention_decoder", "part2_rev", "lstm_projection"]


LIKE_OTHERS = {"torch_lstm_dyn_ti", "part2_rev", "onnx_gru_bi_split_2layer_ti"}


@pytest.mark.parametrize("name", few(OPEN + FIXED, ["dynamic_batch_time", "lstm_projection"]))
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


LOOPS = [
    "corpus/loop_while", "corpus/onnx_loop_for", "corpus/torch_script_for_loop", "corpus/ti_in_loop",
    "disputed/lstmsequence_seqlens_dynamic",
]  # fmt: skip


def arrays(path):
    with np.load(path) as held:
        return [torch.from_numpy(held[name]) for name in held.files]


@pytest.mark.parametrize("name", few(LOOPS, LOOPS[-1:]))
def test_ends_that_are_told(name, tmp_path, opened):
    """Loops of a condition or a count, whatever they join and carry; sequences of their own lengths."""
    folder, written = CORPUS.parent / name, None
    model = stepnet.openvino.load(folder / "model.xml").eval()
    for path in sorted(folder.glob("inputs*.npz")):
        values, wanted = (arrays(folder / path.name.replace("inputs", k)) for k in ("inputs", "outputs"))
        if written is None:
            with plain_loops():
                stepnet.onnx.save(model, tmp_path / "m.onnx", tuple(values))
            written = opened(tmp_path / "m.onnx")
        for a, b in zip(written(*values), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
