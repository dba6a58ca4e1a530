"""Models that are converted more than once: from IR to ONNX, to IR, and to ONNX again."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("onnx_ir")
import stepnet.onnx
import stepnet.openvino
from ir_files import Net, edge, sliced
from saved_modules import plain_loops
from torch_since import torch_since

since = torch_since("2.13", "its export fixes sizes that are computed with")

OF_A_BLOCK = {
    "the largest": lambda body, x, axis: body.add("ReduceMax", [x, body.const([axis])]),
    "the smallest": lambda body, x, axis: body.add("ReduceMin", [x, body.const([axis])]),
    "the mean": lambda body, x, axis: body.add("ReduceMean", [x, body.const([axis])]),
    "the last": lambda body, x, axis: body.add(
        "Gather", [x, body.const(-1), body.const(axis)], version="opset8"
    ),
}


def blocks(folder, kind, axis, width, back):
    """h = tanh(h + one row of each block)."""
    net = Net()
    sizes = ["2", "3"]
    sizes.insert(axis, "?")
    x, h = net.parameter("x", ",".join(sizes)), net.parameter("h", "2,3")
    sizes[axis] = str(width)
    body = net.body()
    xi, hi = body.parameter("xi", ",".join(sizes)), body.parameter("hi", "2,3")
    new = body.add("Tanh", [body.add("Add", [hi, OF_A_BLOCK[kind](body, xi, axis)])])
    out = body.result(new)
    wide = body.result(body.add("Unsqueeze", [new, body.const([0])]))
    way = {"start": -1, "end": 0, "stride": -width} if back else {"stride": width}
    ports = sliced("input", 0, xi[0], axis=axis, part_size=width, **way) + sliced("input", 1, hi[0])
    ports += sliced("output", 2, wide, axis=0)
    net.result(net.loop(body, [x, h], ports, edge(out, hi[0])))
    return net.write(folder)


def given(axis, steps):
    shape = [2, 3]
    shape.insert(axis, steps)
    return torch.randn(shape), torch.randn(2, 3)


@since
@pytest.mark.parametrize("kind", OF_A_BLOCK)
@pytest.mark.parametrize(
    ("axis", "width", "back"), [(0, 2, False), (1, 3, False), (1, 2, True)], ids=["first", "second", "back"]
)
def test_blocks_of_several_rows(kind, axis, width, back, tmp_path, opened):
    """A block is as wide in each file as the first one says: a Reshape by numbers, and nothing cut."""
    first = stepnet.openvino.load(blocks(tmp_path, kind, axis, width, back))
    example = given(axis, 3 * width)
    with plain_loops():
        stepnet.onnx.save(first, tmp_path / "a.onnx", example)
        stepnet.openvino.save(stepnet.onnx.load(tmp_path / "a.onnx"), tmp_path / "b.xml", example)
        stepnet.onnx.save(stepnet.openvino.load(tmp_path / "b.xml"), tmp_path / "c.onnx", example)
    layers = re.findall(r'type="(\w+)"', (tmp_path / "b.xml").read_text().partition("<body>")[0])
    assert not {"Divide", "FloorMod", "Slice"} & {*layers}
    for steps in (width, 4 * width):
        x, h = given(axis, steps)
        with plain_loops():
            want = first(x, h)[0]
        torch.testing.assert_close(opened(tmp_path / "c.onnx")(x, h)[0], want)


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_extremes_over_a_size_that_nothing_says(kind, tmp_path, opened):
    """What is reduced has as many numbers as values that are not 0: torch does not know that it has one."""
    op = {"amax": "ReduceMax", "amin": "ReduceMin"}[kind]
    net = Net()
    x = net.parameter("x", "?")
    places = net.add("NonZero", [x], ["I64"], "opset3", output_type="i64")
    rows = net.add("Gather", [x, places, net.const(0)], version="opset8")
    net.result(net.add(op, [rows, net.const([1])], keep_dims="false"))
    model = stepnet.openvino.load(net.write(tmp_path))
    stepnet.onnx.save(model, tmp_path / "m.onnx", torch.tensor([0.0, 2.0, -1.0, 3.0]))
    for row in ([1.0, 0.0], [-3.0, -2.0, 0.0, -5.0]):
        x = torch.tensor(row)
        torch.testing.assert_close(opened(tmp_path / "m.onnx")(x)[0], getattr(x[x != 0], kind)().reshape(1))
