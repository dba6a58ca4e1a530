"""ONNX Runtime: inference by its LSTM and GRU operators, with lengths where the input is ragged."""

from __future__ import annotations

import onnxruntime
import torch

from benchmarks.harness import Contender
from benchmarks.work import Setting

from . import onnx_model


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    """`onnx runtime`; it does not train."""
    if training or setting.work.name not in onnx_model.GATES:
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    # Else its threads go on waiting busily for the next run, and take a core from whoever is next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        onnx_model.model(setting).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = onnx_model.inputs(setting)
    return {
        "onnx runtime": Contender(
            lambda: session.run(["y"], feeds)[0],
            lambda y: setting.relative({"y": setting.to_rows(torch.from_numpy(y)[:, 0])}),
        )
    }
