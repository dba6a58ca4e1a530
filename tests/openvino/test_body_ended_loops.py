"""Loops of OpenVINO files that their bodies end: by blocks of generated C, as the plain loop runs them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import stepnet.openvino
from covering import few
from ir_files import Net, edge, sliced
from saved_modules import plain_loops
from stepnet.errors import IRError
from stepnet.openvino import load

F32 = np.float32
STEPS = ["the number", "picks by what it counts, rows backwards", "a last value"]


def looping(kind, folder):
    """while n < limit: h = tanh(h W + row) of a table of rows; all of them, the last, and their number."""
    net = Net()
    x, limit, table = (
        net.parameter("x", "2,3"), net.parameter("limit", "", "int64"), net.parameter("table", "?,3")
    )  # fmt: skip
    trips, go, zero = net.const(-1), net.const(True), net.const(0)
    body = net.body()
    number, h = body.parameter("number", "", "int64"), body.parameter("h", "2,3")
    n, most = body.parameter("n", "", "int64"), body.parameter("most", "", "int64")
    rows, axis = body.parameter("rows", "?,3"), body.const(0)
    more = body.add("Add", [n, body.const(1)], ["I64"])
    p = body.add("MatMul", [h, body.const(np.eye(3, dtype=F32) * F32(0.7))])
    if kind == "the number":
        p = body.add("Add", [p, body.add("Convert", [number], destination_type="f32")])
    elif "picks" in kind:
        p = body.add("Add", [p, body.add("Gather", [rows, n, axis], version="opset8")])
    new = body.add("Tanh", [p])
    row = body.add("Unsqueeze", [body.add("Sin", [new]), body.const([1])])
    goes = body.result(body.add("Less", [more, most], ["BOOL"]))
    last, counted, joined = (body.result(value) for value in (new, more, row))
    how = {"axis": 1, "start": -1, "end": 0, "stride": -1} if "backwards" in kind else {"axis": 1}
    ports = sliced("input", -1, number[0], purpose="current_iteration")
    for external, inside in ((2, h), (3, n), (4, most), (5, rows)):
        ports += sliced("input", external, inside[0])
    ports += sliced("output", -1, goes, purpose="execution_condition")
    ports += sliced("output", 6, last) + sliced("output", 7, counted)
    outputs = ["FP32", "I64"]
    if kind != "joins nothing":
        ports += sliced("output", 8, joined, **how)
        outputs.append("FP32")
    if kind == "a last value":
        ports += sliced("output", 9, joined)
        outputs.append("FP32")
    back = edge(last, h[0]) + edge(counted, n[0])
    given = [trips, go, x, zero, limit, table]
    loop, port = net.loop(body, given, ports, back, outputs, kind="Loop", version="opset5")
    for i in range(len(outputs)):
        net.result((loop, port + i))
    return load(net.write(folder))


def check(model, limit, rows):
    torch.manual_seed(limit)
    inputs = torch.randn(2, 3), torch.tensor(limit), torch.randn(rows, 3)
    with torch.no_grad():
        with plain_loops():
            expected = [*model(*inputs).tuple()]
        found = [*model(*inputs).tuple()]
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", few(STEPS, ["a last value"]))
def test_as_the_plain_loop(kind, tmp_path):
    model = looping(kind, tmp_path)
    for limit in (20, 20, 3, 19, 20, 75, 40):
        check(model, limit, limit)
    (report,) = model.loops
    assert report.compiled, report.reason
    check(copy.deepcopy(model), 50, 60)
    if "picks" in kind:
        with pytest.raises(IRError, match="Gather layer"):
            check(model, 40, 30)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", few(["joins nothing", "a last value"], ["joins nothing"]))
def test_written_as_onnx_and_back(kind, tmp_path):
    onnx = pytest.importorskip("stepnet.onnx")
    model, x, table = looping(kind, tmp_path).eval(), torch.randn(2, 3), torch.randn(5, 3)
    example = x, torch.tensor(4), table
    with plain_loops(), torch.no_grad():
        onnx.save(model, tmp_path / "new.onnx", example)
        written = onnx.load(tmp_path / "new.onnx").eval()
        stepnet.openvino.save(written, tmp_path / "again.xml", example)
        for limit in (1, 4, 30):
            inputs = x, torch.tensor(limit), table
            for again in (written, load(tmp_path / "again.xml")):
                for a, b in zip(again(*inputs).tuple(), model(*inputs).tuple(), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_steps(tmp_path):
    model, limit, table = looping("the number", tmp_path), torch.tensor(30), torch.zeros(1, 3)
    slopes = []
    for plain in (False, False, True):
        x = torch.ones(2, 3, requires_grad=True)
        if plain:
            with plain_loops():
                out = model(x, limit, table)
        else:
            out = model(x, limit, table)
        slopes.append(torch.autograd.grad(out[0].sum() + out[2].sum(), x)[0])
    torch.testing.assert_close(slopes[0], slopes[2])
    torch.testing.assert_close(slopes[1], slopes[2])
