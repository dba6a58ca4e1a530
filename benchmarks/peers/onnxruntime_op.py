"""ONNX Runtime: inference by its LSTM and GRU operators, with lengths where the input is ragged."""

from __future__ import annotations

import torch

from benchmarks.harness import Contender
from benchmarks.onnx_cells import session_of
from benchmarks.work import Setting

from . import onnx_model


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    """`onnx runtime`; it does not train."""
    if training or setting.work.name not in onnx_model.GATES:
        return {}
    session = session_of(onnx_model.model(setting).SerializeToString())
    feeds = onnx_model.inputs(setting)
    return {
        "onnx runtime": Contender(
            lambda: session.run(["y"], feeds)[0],
            lambda y: setting.relative({"y": setting.to_rows(torch.from_numpy(y)[:, 0])}),
        )
    }
