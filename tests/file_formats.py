"""The formats of models: what writes and reads one, what else runs it, and the name of a file."""

from __future__ import annotations

import pytest

from stepnet import onnx, openvino


def run_onnx(path, arrays):
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def run_openvino(path, arrays):
    ov = pytest.importorskip("openvino")
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(arrays)
    return [found[output] for output in compiled.outputs]


FORMATS = {"onnx": (onnx, run_onnx, "m.onnx"), "openvino": (openvino, run_openvino, "m.xml")}
