"""Loops built by hand: what the document says, in forms that files seldom hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ir_files import Net, edge, sliced
from stepnet.errors import IRError
from stepnet.executors.setting import set_backend
from stepnet.openvino import load


@pytest.fixture(params=["naive", "auto"], autouse=True)
def _backend(request):
    set_backend(request.param)


def running_sum(folder, shape="?,?,3", state="?,1,3", cut=None, joined=None, back=True, last=True):
    """s = s + x_t over a cut of X, joined and last."""
    cut, joined = cut or {"axis": 1}, joined or {"axis": 1}
    net = Net()
    x, s = net.parameter("X", shape), net.parameter("s", state)
    body = net.body()
    xi, si = body.parameter("xi", "?,1,3"), body.parameter("si", "?,1,3")
    out = body.result(body.add("Add", [xi, si]))
    rows = sliced("input", 0, xi[0], **cut) + sliced("input", 1, si[0]) + sliced("output", 2, out, **joined)
    outputs = ["FP32"]
    if last:
        rows += sliced("output", 3, out)
        outputs.append("FP32")
    loop, port = net.loop(body, [x, s], rows, edge(out, si[0]) if back else "", outputs)
    for i in range(len(outputs)):
        net.result((loop, port + i))
    return load(net.write(folder))


CUTS = [
    ({}, {}, range(6), 1, False),
    ({"start": -1, "end": 0, "stride": -1}, {}, range(5, -1, -1), 1, False),
    ({}, {"start": -1, "end": 0, "stride": -1}, range(6), 1, True),
    ({"start": 1, "end": -2}, {}, range(1, 5), 1, False),
    ({"start": -4, "end": -2}, {}, range(3, 5), 1, False),
    ({"start": -2, "end": 2, "stride": -1}, {"start": -1, "end": 0, "stride": -1}, range(4, 1, -1), 1, True),
    ({"start": 2, "end": 2}, {}, range(0), 1, False),
]


@pytest.mark.parametrize(("cut", "joined", "order", "part", "backwards"), CUTS, ids=str)
def test_slices(tmp_path, cut, joined, order, part, backwards):
    model = running_sum(tmp_path, cut={"axis": 1, **cut}, joined={"axis": 1, **joined})
    x, s = torch.randn(2, 6, 3), torch.randn(2, 1, 3)
    whole, last = model(x, s)
    state, kept = s, []
    for t in order:
        state = state + x[:, t : t + 1]
        kept.append(state)
    expected = torch.cat(kept[::-1] if backwards else kept, 1) if kept else torch.empty(2, 0, 3)
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(last, state)


@pytest.mark.parametrize("stride", [2, -2, 3, -3])
def test_blocks_keep_the_order_of_their_rows(tmp_path, stride):
    net, part = Net(), abs(stride)
    x = net.parameter("X", "2,6,3")
    body = net.body()
    xi = body.parameter("xi", f"2,{part},3")
    out = body.result(body.add("CumSum", [xi, body.const(1)], version="opset3"))
    ends = {"start": -1, "end": 0} if stride < 0 else {}
    how = {"axis": 1, "stride": stride, "part_size": part, **ends}
    rows = sliced("input", 0, xi[0], **how) + sliced("output", 1, out, axis=1, stride=part, part_size=part)
    net.result(net.loop(body, [x], rows))
    given = torch.randn(2, 6, 3)
    blocks = [b.cumsum(1) for b in given.split(part, 1)]
    (found,) = load(net.write(tmp_path))(given)
    torch.testing.assert_close(found, torch.cat(blocks[::-1] if stride < 0 else blocks, 1))


def test_no_steps_keep_the_state(tmp_path):
    whole, last = running_sum(tmp_path)(torch.randn(2, 0, 3), state := torch.randn(2, 1, 3))
    assert whole.shape == (2, 0, 3)
    torch.testing.assert_close(last, state)


def test_no_steps_of_a_body_that_needs_rows(tmp_path):
    net = Net()
    x, s = net.parameter("X", "?,?,3"), net.parameter("s", "?,3")
    size = net.add("Gather", [net.add("ShapeOf", [x], ["I64"], "opset3", output_type="i64"), net.const(0),
                              net.const(0)], ["I64"], "opset8")  # fmt: skip
    body = net.body()
    i, rows, si = body.parameter("i", "", "int64"), body.parameter("x", "?,?,3"), body.parameter("si", "?,3")
    total = body.add("Add", [si, body.add("Gather", [rows, i, body.const(0)], version="opset8")])
    one = body.add("Unsqueeze", [total, body.const([0])])
    out, all_ = body.result(total), body.add("Result", [one], [], given=[(1, -1, 3)])[0]
    ports = sliced("input", -1, i[0], purpose="current_iteration")
    ports += sliced("input", 2, rows[0]) + sliced("input", 3, si[0]) + sliced("output", 4, all_, axis=0)
    ports += sliced("output", -1, body.result(body.const(True)), purpose="execution_condition")
    ports += sliced("output", 5, out)
    loop, port = net.loop(body, [size, net.const(True), x, s], ports, edge(out, si[0]), ["FP32"] * 2, "Loop",
                          "opset5")  # fmt: skip
    net.result((loop, port))
    net.result((loop, port + 1))
    model, state = load(net.write(tmp_path)), torch.randn(2, 3)
    whole, last = model(torch.randn(0, 2, 3), state)
    assert whole.shape == (0, 0, 3)  # of the batch the file says nothing
    torch.testing.assert_close(last, state)
    whole, last = model(torch.ones(2, 2, 3), state)
    torch.testing.assert_close(whole, torch.stack([state + 1, state + 2]))


def test_parameters_of_bodies_are_checked(tmp_path):
    running_sum(tmp_path)
    path = tmp_path / "model.xml"
    before, inside = path.read_text().split("<body>")
    path.write_text(f"{before}<body>{inside.replace('f32', 'f33', 1)}")
    with pytest.raises(IRError, match=r"body of .*: Parameter layer 0 'xi': element_type f33 is unknown"):
        load(path)


def test_no_batch(tmp_path):
    whole, last = running_sum(tmp_path)(torch.randn(0, 4, 3), torch.randn(0, 1, 3))
    assert whole.shape == (0, 4, 3)
    assert last.shape == (0, 1, 3)


def test_last_value_without_a_back_edge(tmp_path):
    x, s = torch.randn(2, 4, 3), torch.randn(2, 1, 3)
    whole, last = running_sum(tmp_path, back=False)(x, s)
    torch.testing.assert_close(whole, x + s)
    torch.testing.assert_close(last, x[:, 3:] + s)


def test_back_edges_act_at_once(tmp_path):
    """A pure swap: a, b = b, a."""
    net = Net()
    x, a, b = net.parameter("X", "?,?,1"), net.parameter("a", "?,1"), net.parameter("b", "?,1")
    body = net.body()
    xi, ai, bi = body.parameter("xi", "?,1,1"), body.parameter("ai", "?,1"), body.parameter("bi", "?,1")
    ra, rb, rx = body.result(ai), body.result(bi), body.result(xi)
    rows = sliced("input", 0, xi[0], axis=1) + sliced("input", 1, ai[0]) + sliced("input", 2, bi[0])
    rows += sliced("output", 3, ra) + sliced("output", 4, rb) + sliced("output", 5, rx, axis=1)
    loop, port = net.loop(body, [x, a, b], rows, edge(ra, bi[0]) + edge(rb, ai[0]), ["FP32"] * 3)
    for i in range(3):
        net.result((loop, port + i))
    model = load(net.write(tmp_path))
    one, two = torch.full((2, 1), 1.0), torch.full((2, 1), 2.0)
    for steps in (1, 2, 3, 4):
        first, second, _ = model(torch.zeros(2, steps, 1), one, two)
        # the results of the last step are the parameters it was given
        assert torch.equal(first, one if steps % 2 else two)
        assert torch.equal(second, two if steps % 2 else one)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_growing_state(tmp_path, steps):
    net = Net()
    x, s = net.parameter("X", "?,3"), net.parameter("s", "?,3")
    body = net.body()
    xi, si = body.parameter("xi", "1,3"), body.parameter("si", "?,3")
    out = body.result(body.add("Concat", [si, xi], axis="0"))
    rows = sliced("input", 0, xi[0], axis=0) + sliced("input", 1, si[0]) + sliced("output", 2, out)
    net.result(net.loop(body, [x, s], rows, edge(out, si[0])))
    given, start = torch.randn(steps, 3), torch.randn(2, 3)
    (found,) = load(net.write(tmp_path))(given, start)
    torch.testing.assert_close(found, torch.cat([start, given]))


def counting(folder, trip, start=True, limit=None, xs=False):
    """Loop-5: s = s + i (and + x_i) for i below trip, while s < limit."""
    net = Net()
    inputs = [net.const(trip), net.const(start), net.parameter("s", "1")]
    body = net.body()
    i, s = body.parameter("i", "", "int64"), body.parameter("si", "1")
    total = body.add("Add", [s, body.add("Convert", [i], destination_type="f32")])
    rows = sliced("input", -1, i[0], purpose="current_iteration") + sliced("input", 2, s[0])
    if xs:
        inputs.append(net.parameter("X", "?"))
        x = body.parameter("x", "1")
        total = body.add("Add", [total, x])
        rows += sliced("input", 3, x[0], axis=0)
    out = body.result(total)
    go = body.const(True) if limit is None else body.add("Less", [total, body.const([limit], "float32")])
    rows += sliced("output", -1, body.result(go), purpose="execution_condition")
    n = len(inputs)
    rows += sliced("output", n, out, axis=0) + sliced("output", n + 1, out)
    loop, port = net.loop(body, inputs, rows, edge(out, s[0]), ["FP32"] * 2, "Loop", "opset5")
    net.result((loop, port))
    net.result((loop, port + 1))
    return load(net.write(folder))


LOOPS = [
    ("trips", {"trip": 4}, [0, 1, 3, 6]),
    ("none", {"trip": 0}, []),
    ("not at all", {"trip": 4, "start": False}, []),
    ("until", {"trip": -1, "limit": 5.0}, [0, 1, 3, 6]),
    ("both", {"trip": 2, "limit": 5.0}, [0, 1]),
]


@pytest.mark.parametrize(("how", "expected"), [p[1:] for p in LOOPS], ids=[p[0] for p in LOOPS])
def test_loop(tmp_path, how, expected):
    whole, last = counting(tmp_path, **how)(torch.zeros(1))
    assert whole.tolist() == expected
    assert last.tolist() == (expected[-1:] or [0.0])


def test_loop_over_slices(tmp_path):
    model = counting(tmp_path, 3, xs=True)
    whole, _ = model(torch.zeros(1), torch.tensor([10.0, 20.0, 30.0]))
    assert whole.tolist() == [10, 31, 63]
    with pytest.raises(IRError, match="fewer slices than the trip count"):
        model(torch.zeros(1), torch.tensor([10.0]))


def test_a_loop_that_never_ends_is_refused(tmp_path):
    with pytest.raises(IRError, match=r"Loop layer 3 'Loop_3': never ends"):
        counting(tmp_path, -1)


def test_if(tmp_path):
    net = Net()
    c, x = net.parameter("c", "", "bool"), net.parameter("x", "?")
    inner = ""
    for branch, kind in (("then_", "Exp"), ("else_", "Negative")):
        body = net.body()
        p = body.parameter("p", "?")
        out = body.result(body.add(kind, [p]))
        rows = sliced("input", 1, p[0]) + sliced("output", 2, out)
        inner += f"<{branch}port_map>{rows}</{branch}port_map><{branch}body>{body.content()}</{branch}body>"
    net.result(net.add("If", [c, x], version="opset8", inner=inner))
    model = load(net.write(tmp_path))
    given = torch.randn(3)
    torch.testing.assert_close(model(torch.tensor(True), given)[0], given.exp())
    torch.testing.assert_close(model(torch.tensor(False), given)[0], -given)


def test_a_tensor_iterator_in_a_tensor_iterator(tmp_path):
    """Sums along the last axis, one row after another."""
    net = Net()
    x = net.parameter("X", "?,?,?")
    outer = net.body()
    row = outer.parameter("row", "?,1,?")
    inner = outer.body()
    xi, si = inner.parameter("xi", "?,1,1"), inner.parameter("si", "?,1,1")
    total = inner.result(inner.add("Add", [xi, si]))
    zero = outer.const(np.zeros((1, 1, 1), np.float32))
    first = outer.add("Add", [outer.add("ReduceSum", [outer.add("Multiply", [row, zero]), outer.const([2])],
                                        keep_dims="true"), zero])  # fmt: skip
    rows = sliced("input", 0, xi[0], axis=2) + sliced("input", 1, si[0]) + sliced("output", 2, total, axis=2)
    result = outer.result(outer.loop(inner, [row, first], rows, edge(total, si[0])))
    rows = sliced("input", 0, row[0], axis=1) + sliced("output", 1, result, axis=1)
    net.result(net.loop(outer, [x], rows))
    given = torch.randn(2, 3, 4)
    model = load(net.write(tmp_path))
    torch.testing.assert_close(model(given)[0], given.cumsum(2))
    assert len(model.loops) == 2
    assert "holds a loop" in str(model.loops[0].reason) or model.loops[0].reason == "the backend is 'naive'"


SEQUENCES = {"LSTM": (4, torch.nn.LSTM), "RNN": (1, torch.nn.RNN)}


@pytest.mark.covering(2)
@pytest.mark.parametrize("lengths", [[5, 5, 5], [2, 5, 0], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_sequences_with_lengths(tmp_path, kind, direction, lengths):
    gates, module = SEQUENCES[kind]
    ways, hidden, features = 2 if direction == "bidirectional" else 1, 4, 3
    rng = np.random.default_rng(1)
    w, r, b = (
        rng.standard_normal((ways, gates * hidden, *tail)).astype(np.float32)
        for tail in ((features,), (hidden,), ())
    )
    net = Net()
    x = net.parameter("X", f"?,?,{features}")
    states = [net.parameter(f"s{i}", f"?,{ways},{hidden}") for i in range(2 if kind == "LSTM" else 1)]
    n = net.parameter("n", "?", "int32")
    inputs = [x, *states, n, net.const(w), net.const(r), net.const(b)]
    layer, port = net.add(
        f"{kind}Sequence",
        inputs,
        ["FP32"] * (1 + len(states)),
        "opset5",
        hidden_size=hidden,
        direction=direction,
    )
    for i in range(1 + len(states)):
        net.result((layer, port + i))
    given = torch.randn(3, 5, features)
    boot = [torch.randn(3, ways, hidden) for _ in states]
    found = load(net.write(tmp_path))(given, *boot, torch.tensor(lengths, dtype=torch.int32))

    order = [1, 0, 2, 3] if kind == "LSTM" else [0]  # f, i, c, o here; i, f, g, o in torch
    expected = [torch.zeros(3, ways, 5, hidden), *(s.clone() for s in boot)]
    for way in range(ways):
        backwards = direction == "reverse" or way == 1
        cell = module(features, hidden, batch_first=True)
        with torch.no_grad():
            for name, value in (("weight_ih_l0", w), ("weight_hh_l0", r), ("bias_ih_l0", b)):
                blocks = np.split(value[way], gates)
                getattr(cell, name).copy_(torch.from_numpy(np.concatenate([blocks[k] for k in order])))
            cell.bias_hh_l0.zero_()
            for row, length in enumerate(lengths):
                if length == 0:
                    continue
                sequence = given[row : row + 1, :length]
                start = [s[row : row + 1, way : way + 1].contiguous() for s in boot]
                y, end = cell(
                    sequence.flip(1) if backwards else sequence, tuple(start) if kind == "LSTM" else start[0]
                )
                expected[0][row, way, :length] = (y.flip(1) if backwards else y)[0]
                for k, value in enumerate(end if kind == "LSTM" else (end,)):
                    expected[1 + k][row, way] = value[0, 0]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
