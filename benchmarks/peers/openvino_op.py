"""OpenVINO: inference by its LSTM and GRU operators, with lengths where the input is ragged."""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks.harness import Contender
from benchmarks.work import Setting

from . import onnx_model

# At its import OpenVINO reports to its makers if it can, from a process forked in the middle of a run.
sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]

import openvino  # noqa: E402


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    """`openvino`; it does not train."""
    if training or setting.work.name not in onnx_model.GATES:
        return {}
    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = core.read_model(onnx_model.model(setting).SerializeToString(), b"")
    compiled = core.compile_model(model, "CPU", options)
    feeds = onnx_model.inputs(setting)
    request = compiled.create_infer_request()

    def run() -> Any:
        return request.infer(feeds, share_inputs=True, share_outputs=True)

    def values(done: Any) -> Any:
        return setting.relative({"y": setting.to_rows(torch.from_numpy(done["y"].copy())[:, 0])})

    return {"openvino": Contender(run, values)}
