"""Constants of ONNX files of the types that numpy does not have."""

from __future__ import annotations

import pytest
import torch

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402
from tables import holds  # noqa: E402

NUMBERS = [1.0, 2.0, 4.0, 0.5]  # each type has them


def model(path, kind):
    """`x` plus such numbers, as floats."""
    c = helper.make_tensor("c", kind, [4], NUMBERS)
    nodes = [helper.make_node("Cast", ["c"], ["d"], to=1), helper.make_node("Add", ["x", "d"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [c])
    opset = 24 if kind == TensorProto.FLOAT8E8M0 else 23
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    path.write_bytes(made.SerializeToString())
    return path


READ = ["FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
READ += ["FLOAT8E8M0"] if hasattr(torch, "float8_e8m0fnu") else []


def test_types_that_torch_has(tmp_path):
    def read(name):
        loaded = stepnet.onnx.load(model(tmp_path / "m.onnx", getattr(TensorProto, name)))
        x = torch.zeros(2, 4)
        assert loaded(x)[0].tolist() == [NUMBERS] * 2
        stepnet.onnx.save(loaded, tmp_path / "again.onnx", x)
        assert stepnet.onnx.load(tmp_path / "again.onnx")(x)[0].tolist() == [NUMBERS] * 2

    holds(read, {name: (name,) for name in READ})


def test_types_that_it_does_not_have(tmp_path):
    said = r"constant 'c': is of a type that torch does not have\n.*float4_e2m1fn\n.*a type of numbers"
    with pytest.raises(IRError, match=said):
        stepnet.onnx.load(model(tmp_path / "m.onnx", TensorProto.FLOAT4E2M1))
