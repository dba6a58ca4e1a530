"""Layers that OpenVINO's faults are written around by leaving them out: what else there is stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ir_files import Net, edge, sliced
from stepnet import onnx
from stepnet.openvino import load, save


def loop_of_no_step(net, first, kind="Tanh"):
    body = net.body()
    state = body.parameter("state", "2,3")
    new, goes = body.result(body.add(kind, [state])), body.result(body.const(True))
    rows = sliced("input", 2, state[0]) + sliced("output", 3, new)
    rows += sliced("output", -1, goes, purpose="execution_condition")
    given = [net.const(0), net.const(True), first]
    return net.loop(body, given, rows, edge(new, state[0]), kind="Loop", version="opset5", dims=[(2, 3)])


def in_openvino(path):
    openvino = pytest.importorskip("openvino")
    return openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


@pytest.mark.parametrize("version", ["opset3", "opset6"])
def test_a_variable_beside_a_loop_of_no_step_is_still_assigned(version, tmp_path):
    net = Net()
    x = net.parameter("x", "2,3")
    how = {"variable_id": "v"}
    if version == "opset6":
        how |= {"variable_type": "f32", "variable_shape": "2,3"}
    read = net.add("ReadValue", [x], version=version, dims=[(2, 3)], **how)
    net.add("Assign", [net.add("Add", [read, x])], version=version, dims=[(2, 3)], **how)
    net.result(loop_of_no_step(net, read))
    save(load(net.write(tmp_path)), tmp_path / "again.xml")
    request, ones = in_openvino(tmp_path / "again.xml").create_infer_request(), np.ones((2, 3), "f4")
    assert [float(request.infer([ones])[0][0, 0]) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("count", [2, 3])
def test_loops_of_no_step_behind_one_another(count, tmp_path):
    net = Net()
    value = net.parameter("x", "2,3")
    for _ in range(count):
        value = loop_of_no_step(net, value)
    net.result(net.add("Abs", [value]))
    model, x = load(net.write(tmp_path)), torch.randn(2, 3)
    save(model, tmp_path / "again.xml")
    assert not load(tmp_path / "again.xml").loops
    assert torch.equal(load(tmp_path / "again.xml")(x)[0], x.abs())
    assert np.array_equal(in_openvino(tmp_path / "again.xml")([x.numpy()])[0], x.abs())


def test_slices_that_are_only_counted_where_no_rank_is_said(tmp_path):
    net = Net()
    x, h = net.parameter("x", "?,?,3"), net.parameter("h", "?,3")
    body = net.body()
    part, state = body.parameter("part", "1,?,3"), body.parameter("state", "?,3")
    new = body.result(body.add("Add", [state, body.const(np.float32(1))]))
    rows = sliced("input", 0, part[0], axis=0) + sliced("input", 1, state[0]) + sliced("output", 2, new)
    net.result(net.loop(body, [net.add("Tanh", [x]), h], rows, edge(new, state[0]), dims=[(-1, 3)]))
    save(load(net.write(tmp_path)), tmp_path / "again.xml")
    for steps in (4, 0):
        x, h = torch.randn(steps, 2, 3), torch.randn(2, 3)
        assert torch.equal(load(tmp_path / "again.xml")(x, h)[0], load(tmp_path / "model.xml")(x, h)[0])


def test_a_loop_of_its_own_end_inside_of_another_is_written(tmp_path):
    """What a loop works out of its ports as it runs is no change of it; nor need it run by a plan."""
    net = Net()
    x, h = net.parameter("x", "?,?,3"), net.parameter("h", "?,3")
    body = net.body()
    part, state = body.parameter("part", "1,?,3"), body.parameter("state", "?,3")
    own = body.body()
    value = own.parameter("value", "?,3")
    more = own.add("Multiply", [value, own.const(np.float32(1.05))])
    total = own.add("ReduceSum", [own.add("Abs", [more]), own.const(np.array([0, 1]))], keep_dims="false")
    goes = own.result(own.add("Less", [total, own.const(np.float32(1000))], ["BOOL"]))
    new = own.result(more)
    rows = sliced("input", 2, value[0]) + sliced("output", 3, new)
    rows += sliced("output", -1, goes, purpose="execution_condition")
    flat = body.add("Squeeze", [part, body.const(np.array([0]))])
    given = [body.const(9), body.const(True), body.add("Add", [state, flat])]
    last = body.loop(own, given, rows, edge(new, value[0]), kind="Loop", version="opset5", dims=[(-1, 3)])
    out = body.result(body.add("Sin", [last]))
    rows = sliced("input", 0, part[0], axis=0) + sliced("input", 1, state[0]) + sliced("output", 2, out)
    net.result(net.loop(body, [x, h], rows, edge(out, state[0]), dims=[(-1, 3)]))
    model, example = load(net.write(tmp_path)), (torch.randn(4, 2, 3), torch.randn(2, 3))
    onnx.save(model, tmp_path / "m.onnx", example)
    torch.testing.assert_close(onnx.load(tmp_path / "m.onnx")(*example)[0], model(*example)[0])


@pytest.mark.parametrize("read", [False, True])
def test_steps_are_counted_where_nobody_reads_what_is_made_of_the_slices(read, tmp_path):
    net = Net()
    x, h = net.parameter("x", "?,?,3"), net.parameter("h", "?,3")
    body = net.body()
    part, state = body.parameter("part", "1,?,3"), body.parameter("state", "?,3")
    new = body.result(body.add("Add", [state, body.const(np.float32(1))]))
    every = [body.result(body.add(kind, [part])) for kind in ("Tanh", "Exp")]
    rows = sliced("input", 0, part[0], axis=0) + sliced("input", 1, state[0])
    rows += sliced("output", 2, every[0], axis=0) + sliced("output", 3, new)
    rows += sliced("output", 4, every[1], axis=0)
    dims = [(-1, -1, 3), (-1, 3), (-1, -1, 3)]
    last, port = net.loop(body, [x, h], rows, edge(new, state[0]), ["FP32"] * 3, dims=dims)
    net.result((last, port + 1))
    if read:
        net.result((last, port + 2))
    save(load(net.write(tmp_path)), tmp_path / "again.xml")
    compiled = in_openvino(tmp_path / "again.xml")
    for steps in (4, 1):
        x, h = torch.randn(steps, 2, 3), torch.randn(2, 3)
        for model in (
            lambda *given: [*load(tmp_path / "again.xml")(*given).tuple()],
            lambda *given: [torch.from_numpy(v) for v in compiled([g.numpy() for g in given]).values()],
        ):
            torch.testing.assert_close(model(x, h), [h + steps, x.exp()][: 1 + read])
