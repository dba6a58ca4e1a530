"""Loops whose outputs or states nobody reads: OpenVINO drops them, and what only they need."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ir_files import Net, edge, sliced
from stepnet.errors import IRError
from stepnet.openvino import load, save


def same_in_openvino(net, inputs, folder):
    openvino = pytest.importorskip("openvino")
    again = folder / "again.xml"
    save(load(net.write(folder)), again)
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(str(again), "CPU", how)
    for given in inputs:
        for file in ("model.xml", "again.xml"):
            wanted = load(folder / file)(*given).tuple()
            found = compiled([value.numpy() for value in given])
            for k, value in enumerate(wanted):
                assert np.allclose(found[k], value.numpy(), atol=1e-6)


def counted(net, x, state, *, part=1, way=1, axis=0, beside=None):
    """A TensorIterator that joins what does not need its slices, beside a state that does."""
    body = net.body()
    cut, inner, invariant = (
        body.parameter(name, shape) for name, shape in (("cut", f"{part},?,3"), ("s", "?,3"), ("p", "?,3"))
    )
    new = body.result(body.add("Tanh", [body.add("ReduceMean", [cut, body.const([0])], keep_dims="false")]))
    rows = [body.add("Unsqueeze", [body.add(kind, [invariant]), body.const([axis])])
            for kind in ("Sin", "Cos", "Abs")[:part]]  # fmt: skip
    whole = body.result(body.add("Concat", rows, axis=axis) if part > 1 else rows[0])
    first, last = (0, -1) if way > 0 else (-1, 0)
    how = {"start": first, "end": last, "stride": way * part, "part_size": part}
    maps = sliced("input", 0, cut[0], axis=0, stride=part, part_size=part, start=0, end=-1)
    maps += sliced("input", 1, inner[0]) + sliced("input", 2, invariant[0])
    maps += sliced("output", 3, new) + sliced("output", 4, whole, axis=axis, **how)
    dims = [(-1, 3), [(-1, -1, 3), (-1, -1, 3), (-1, 3, -1)][axis]]
    return net.loop(body, [x, state, state], maps, edge(new, inner[0]), ["FP32"] * 2, dims=dims)


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize(("part", "axis"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 2)])
def test_what_is_joined_needs_no_slice(part, axis, way, tmp_path):
    net = Net()
    x, h = net.parameter("x", "?,?,3"), net.parameter("h", "?,3")
    layer, port = counted(net, x, h, part=part, way=way, axis=axis)
    net.result((layer, port + 1))
    inputs = [(torch.randn(t * part, b, 3), torch.randn(b, 3)) for t, b in ((2, 2), (5, 1), (1, 4))]
    same_in_openvino(net, inputs, tmp_path)


@pytest.mark.parametrize("moves", [False, True])
def test_a_state_goes_to_a_loop_that_does_not_need_it(moves, tmp_path):
    net = Net()
    x, h = net.parameter("x", "?,?,3"), net.parameter("h", "?,3")
    first, port = counted(net, x, h)
    body = net.body()
    cut, unused, inner = (body.parameter(n, s) for n, s in (("cut", "1,?,3"), ("u", "?,3"), ("s", "?,3")))
    new = body.result(body.add("Add", [inner, body.add("Squeeze", [cut, body.const([0])])]))
    maps = sliced("input", 0, cut[0], axis=0, start=0, end=-1, stride=1, part_size=1)
    maps += sliced("input", 1, unused[0]) + sliced("input", 2, inner[0]) + sliced("output", 3, new)
    edges, count = edge(new, inner[0]), 1
    if moves:
        other = body.result(body.add("Negative", [unused]))
        maps, edges, count = maps + sliced("output", 4, other), edges + edge(other, unused[0]), 2
    given = [(first, port + 1), (first, port), h]
    made = net.loop(body, given, maps, edges, ["FP32"] * count, dims=[(-1, 3)] * count)
    net.result(made)
    inputs = [(torch.randn(t, b, 3), torch.randn(b, 3)) for t, b in ((2, 2), (5, 1), (1, 4))]
    same_in_openvino(net, inputs, tmp_path)


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("open_at", ["count", "flag"])
def test_a_state_that_its_body_does_not_use(open_at, numbered, tmp_path):
    net = Net()
    h, g = net.parameter("h", "?,3"), net.parameter("g", "?,3")
    count = net.parameter("count", "", "int64") if open_at == "count" else net.const(3, "int64")
    flag = net.parameter("flag", "", "bool") if open_at == "flag" else net.const(True, "bool")
    body = net.body()
    state, invariant = body.parameter("s", "?,3"), body.parameter("p", "?,3")
    value = body.add("Tanh", [invariant])
    maps = ""
    if numbered:
        number = body.parameter("number", "", "int64")
        value = body.add("Add", [value, body.add("Convert", [number], destination_type="f32")])
        maps = sliced("input", -1, number[0], purpose="current_iteration")
    new, goes = body.result(value), body.result(body.const(True, "bool"))
    maps += sliced("input", 2, state[0]) + sliced("input", 3, invariant[0]) + sliced("output", 4, new)
    maps += sliced("output", -1, goes, purpose="execution_condition")
    given = [count, flag, h, g]
    net.result(
        net.loop(body, given, maps, edge(new, state[0]), kind="Loop", version="opset5", dims=[(-1, 3)])
    )
    ends = [torch.tensor(v) for v in ((2, 0, 1) if open_at == "count" else (True, False))]
    same_in_openvino(net, [(torch.randn(2, 3), torch.randn(2, 3), end) for end in ends], tmp_path)


@pytest.mark.parametrize("trips", [-1, 4, 9])
def test_a_slice_that_ends_a_loop_is_kept_though_its_body_does_not_need_it(trips, tmp_path):
    net = Net()
    x, h, body = net.parameter("x", "?,?,3"), net.parameter("h", "?,3"), net.body()
    inner = [body.parameter("cut", "1,?,3"), body.parameter("s", "?,3")]
    new = body.result(body.add("Add", [inner[1], body.const(np.float32(1))]))
    maps = (
        sliced("input", 2, inner[0][0], axis=0) + sliced("input", 3, inner[1][0]) + sliced("output", 4, new)
    )
    maps += sliced("output", -1, body.result(body.const(True)), purpose="execution_condition")
    given = [net.const(trips), net.const(True), x, h]
    net.result(net.loop(body, given, maps, edge(new, inner[1][0]), kind="Loop", version="opset5"))
    save(load(net.write(tmp_path)), tmp_path / "again.xml")
    for file in ("model.xml", "again.xml"):
        model, inputs = load(tmp_path / file), (torch.zeros(4, 2, 3), torch.zeros(2, 3))
        if trips > 4:
            with pytest.raises(IRError, match="fewer slices than the trip count"):
                model(*inputs)
        else:
            assert model(*inputs)[0].tolist() == [[4] * 3] * 2
