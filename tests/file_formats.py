"""The formats of models: what writes and reads one, what else runs it, and the name of a file."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from covering import few
from stepnet import onnx, openvino
from stepnet.export.module import _Trace


@functools.lru_cache(maxsize=1)
def _session(path, written):
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # others spin while they wait
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@functools.lru_cache(maxsize=1)
def _compiled(path, written):
    ov = pytest.importorskip("openvino")
    return ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def run_onnx(path, arrays):
    session = _session(path, path.stat().st_mtime_ns)
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def run_openvino(path, arrays):
    compiled = _compiled(path, path.stat().st_mtime_ns)
    found = compiled(arrays)
    return [found[output] for output in compiled.outputs]


FORMATS = {"onnx": (onnx, run_onnx, "m.onnx"), "openvino": (openvino, run_openvino, "m.xml")}


# Of a table of calls, each of which is traced: a quarter in each format, all by `--exhaustive`.
PARTS = 4
IN_PARTS = few([(name, part) for part in range(PARTS) for name in FORMATS], [("onnx", 0), ("openvino", 1)])


def in_part(calls, part):
    """What the calls of a part give, by their names."""
    return {name: call() for k, (name, call) in enumerate(calls.items()) if k % PARTS == part}


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def share_traces(monkeypatch, programs):
    """Of one module without recurrences, what is written does not depend on the format until it is written:
    all formats share the trace, which is kept in `programs`."""
    traced = _Trace._traced

    def shared(self, dynamic):
        key = f"{dynamic} {getattr(self.module, 'part', None)}"
        if key not in programs:
            programs[key] = traced(self, dynamic)
        return programs[key]

    monkeypatch.setattr(_Trace, "_traced", shared)
