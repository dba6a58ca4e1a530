"""Layers that OpenVINO computes otherwise than its specification says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from covering import every
from ir_files import Net
from stepnet.openvino import load, save


def lrn(net):
    axes = net.const(np.array([1]))
    given = {"alpha": 0.5, "beta": 0.75, "bias": 0.5, "size": 3}
    return net.add("LRN", [net.parameter("x", "-1,4,1,1"), axes], **given), [torch.randn(3, 4, 1, 1)]


def lrn_between(net):
    """The product that takes the bias's place is read by all who read the layer."""
    axes = net.const(np.array([2, 3]))
    x = net.add("Abs", [net.parameter("x", "-1,2,3,4")])
    y = net.add("LRN", [x, axes], alpha=1e-4, beta=1.5, bias=1.75, size=5)
    return net.add("Add", [y, net.add("Tanh", [y])]), [torch.randn(1, 2, 3, 4)]


def divide(net):
    x, y = net.parameter("x", "-1", "int32"), net.parameter("y", "-1", "int32")
    return net.add("Divide", [x, y], ["I32"]), [
        torch.tensor(v, dtype=torch.int32) for v in ([-1, -7, 7, -8, 5, 0], [4, 2, -2, 3, 5, -3])
    ]


def divide_between_casts(net):
    x = net.add("Convert", [net.parameter("x", "-1,2")], ["I32"], destination_type="i32")
    four = net.const(np.array([4, -3], "i4"))
    y = net.add("Divide", [x, four], ["I32"], m_pythondiv="true")
    return net.add("Convert", [y], destination_type="f32"), [torch.tensor([[-1.0, 7.0], [-8.0, -9.0]])]


def quantised(low, high):
    def build(net):
        ranges = [net.const(np.array(v, "f4")) for v in (-1, [[1, 1.5, 2, 0.5]], low, high)]
        return net.add("FakeQuantize", [net.parameter("x", "-1,4"), *ranges], levels=16), [torch.randn(5, 4)]

    return build


def picked_from_slice(precision, dtype, told):
    """By the places of fewer rows: of the slice as many, of what it is cut from too few."""

    def build(net):
        x, places = net.parameter("x", "-1,3", dtype), net.parameter("k", "-1,2", "int64")
        ends = [net.const(np.array([n])) for n in (0, 2, 1, 0)]
        part = net.add("Slice", [x, *ends], [precision], "opset8")
        picked = net.add("GatherElements", [part, places], [precision], "opset6", axis=1)
        return picked, [told(torch.randn(4, 3)), torch.tensor([[2, 0], [1, 1]])]

    return build


BUILT = {
    "picked from a slice": picked_from_slice("FP32", "float32", torch.Tensor.clone),
    "truths picked from a slice": picked_from_slice("BOOL", "bool", lambda x: x > 0),
    "lrn": lrn, "lrn_between": lrn_between, "divide": divide, "divide_between_casts": divide_between_casts,
    "quantised_low": quantised([[-1, -2, -3, -4]], 2.0), "quantised_high": quantised(-2.0, [1, 2, 3, 4]),
}  # fmt: skip


@pytest.mark.parametrize("build", every(2, BUILT.values()), ids=BUILT)
def test_openvino_gives_what_the_specification_says(build, tmp_path):
    openvino = pytest.importorskip("openvino")
    torch.manual_seed(0)
    net = Net()
    result, values = build(net)
    net.result(result)
    model = load(net.write(tmp_path))
    save(model, tmp_path / "again.xml")
    right = model(*values)[0]
    torch.testing.assert_close(load(tmp_path / "again.xml")(*values)[0], right)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "again.xml"), "CPU", options)
    found = torch.from_numpy(compiled([value.numpy() for value in values])[0])
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
