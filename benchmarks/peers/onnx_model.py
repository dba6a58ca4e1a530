"""LSTM and GRU as one ONNX operator, made by hand: what runtimes run fastest."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from benchmarks.work import Setting

# The gates of torch.nn in the order of the operator: LSTM i f g o -> i o f c, GRU r z n -> z r h.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
OPERATOR = {"lstm": "LSTM", "gru": "GRU"}


def model(setting: Setting) -> onnx.ModelProto:
    """Input x [T, B, H], and lengths [B] where the setting is ragged; output y [T, 1, B, H]."""
    T, (_, B, H) = setting.steps, setting.size
    work = setting.work.name
    weights = {name: _ordered(weight.detach(), GATES[work]) for name, weight in setting.weights.items()}
    bias = torch.cat([weights["bias_ih"], weights["bias_hh"]])
    constants = {"W": weights["weight_ih"], "R": weights["weight_hh"], "B": bias}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [T, B, H])
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, [B])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [T, 1, B, H])
    extra = {"linear_before_reset": 1} if work == "gru" else {}
    node = helper.make_node(
        OPERATOR[work],
        ["x", "W", "R", "B", *(["lengths"] if setting.ragged else [])],
        ["y"],
        hidden_size=H,
        **extra,
    )
    graph = helper.make_graph(
        [node],
        work,
        [x, lengths] if setting.ragged else [x],
        [y],
        [numpy_helper.from_array(value[None].numpy(), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def inputs(setting: Setting) -> dict[str, np.ndarray]:
    """What the model is run on."""
    found = {"x": setting.x.numpy()}
    return found | {"lengths": setting.lengths.int().numpy()} if setting.ragged else found


def _ordered(weight: Tensor, gates: tuple[int, ...]) -> Tensor:
    blocks = weight.chunk(len(gates))
    return torch.cat([blocks[gate] for gate in gates])
