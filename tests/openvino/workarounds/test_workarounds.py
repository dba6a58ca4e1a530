"""Forms that OpenVINO runs wrongly are written in others, which mean the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from covering import few
from ir_cases import case
from ir_files import Net, edge, sliced
from saved_modules import runners
from stepnet import BackEdge, InputPort, OutputPort, TensorIterator, nn, onnx
from stepnet.errors import IRError
from stepnet.openvino import convert, load, save
from stepnet.openvino.first_states import choices
from stepnet.openvino.writing.builder import In, NetBuilder, To
from stepnet.openvino.writing.xml_writer import write

F32 = torch.float32
PRODUCT = {"transpose_a": False, "transpose_b": False}
WIDTH = 3


class Body:
    """A body with a slice `x` [batch, 1, width], an invariant `whole` of the same shape, and states."""

    def __init__(self, states):
        self.net = NetBuilder("body")
        self.x, self.whole = (self.net.parameter(n, F32, (2, 1, WIDTH)) for n in ("x", "whole"))
        self.states = [self.net.parameter(f"s{k}", F32, (2, WIDTH)) for k in range(states)]
        self.axis = self.net.constant(torch.tensor([1]))

    def flat(self, value):
        return self.net.layer("Squeeze", [value, self.axis])

    def product(self, value):
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
        return self.net.layer("MatMul", [value, self.net.constant(weight)], PRODUCT)

    def part(self, value):
        return self.net.layer("Multiply", [value, self.net.constant(torch.tensor(0.9))])

    def __getattr__(self, name):
        return lambda *values: self.net.layer(name, values)


def shift(b):
    return [b.states[1], b.Add(b.states[0], b.flat(b.x))]


def shift_backwards(b):
    return [b.Add(b.states[1], b.flat(b.x)), b.states[0]]


def change_places(b):
    return [b.Tanh(b.Add(b.states[0], b.flat(b.x))), b.states[2], b.states[1]]


def only_count(b):
    return [b.Tanh(b.product(b.states[0]))]


def twins(b):
    whole = b.flat(b.whole)
    return [b.Tanh(b.Add(b.product(b.states[0]), b.flat(b.x))), b.Tanh(whole), b.Tanh(whole)]


def part_of_x(b):
    return [b.Add(b.states[2], b.Abs(b.states[1])), b.part(b.flat(b.x)), b.Sigmoid(b.flat(b.whole))]


BODIES = {
    "products": (1, lambda b: [b.Add(b.states[0], b.Multiply(b.flat(b.x), b.flat(b.whole)))]),
    "twins": (3, twins),
    "delay": (1, lambda b: [b.flat(b.x)]),
    "sum": (1, lambda b: [b.Add(b.flat(b.x), b.states[0])]),
    "elman": (1, lambda b: [b.Tanh(b.Add(b.flat(b.x), b.product(b.states[0])))]),
    "difference": (1, lambda b: [b.Subtract(b.flat(b.x), b.product(b.states[0]))]),
    "invariant": (1, lambda b: [b.Tanh(b.Add(b.flat(b.whole), b.product(b.Add(b.states[0], b.flat(b.x)))))]),
    "norm": (1, lambda b: [b.Add(b.Exp(b.flat(b.x)), b.product(b.states[0]))]),
    "shift": (2, shift),
    "shift backwards": (2, shift_backwards),
    "change places": (3, change_places),
    "keep": (2, lambda b: [b.Add(b.flat(b.x), b.states[0]), b.states[1]]),
    "only count": (1, only_count),
    "part of x": (3, part_of_x),
}


def written(name, path, reverse=False):
    count, make = BODIES[name]
    cut = {"start": -1, "end": 0, "stride": -1} if reverse else {}
    b, inner = NetBuilder("net"), Body(count)
    x, whole = b.parameter("x", F32, (2, 6, WIDTH)), b.parameter("whole", F32, (2, 1, WIDTH))
    states = [b.parameter(f"s{k}", F32, (2, WIDTH)) for k in range(count)]
    results = [inner.net.result(value) for value in make(inner)]
    ins = [In(x, inner.x, 1, **cut), In(whole, inner.whole)]
    ins += [In(value, state) for value, state in zip(states, inner.states, strict=True)]
    back = list(zip(results, inner.states, strict=True))
    joined = inner.net.result(inner.net.layer("Unsqueeze", [make(inner)[0], inner.axis]))
    outs = b.tensor_iterator(inner.net, ins, [To(joined, 1, **cut), *(To(r) for r in results)], back)
    for k, out in enumerate(outs):
        b.result(out, (f"y{k}",))
    net = b.net()
    write(net, path)
    return net


def given(count):
    return [
        torch.randn(2, 6, WIDTH),
        torch.randn(2, 1, WIDTH),
        *(torch.randn(2, WIDTH) for _ in range(count)),
    ]


def by_hand(name, values):
    """The loop of a body, in torch."""

    class Hand:
        def __init__(self, x, states):
            self.x, self.whole, self.states = x, values[1], states

        def flat(self, value):
            return value.squeeze(1)

        def product(self, value):
            return value @ torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))

        def part(self, value):
            return value * 0.9

        def __getattr__(self, op):
            return getattr(torch, op.lower())

    states, ys = list(values[2:]), []
    for t in range(6):
        states = BODIES[name][1](Hand(values[0][:, t : t + 1], states))
        ys.append(states[0])
    return [torch.stack(ys, 1), *states]


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", few(BODIES, [*BODIES][::3]))
def test_openvino_runs_bodies_right(name, reverse, tmp_path):
    openvino = pytest.importorskip("openvino")
    written(name, tmp_path / "m.xml", reverse)
    values = given(BODIES[name][0])
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "m.xml"), "CPU", options)
    found = compiled([value.numpy() for value in values])
    expected = by_hand(name, [values[0].flip(1), *values[1:]] if reverse else values)
    expected[0] = expected[0].flip(1) if reverse else expected[0]
    for k, (again, right) in enumerate(zip(load(tmp_path / "m.xml")(*values), expected, strict=True)):
        torch.testing.assert_close(torch.from_numpy(found[k]), right, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again, right)


def test_a_range_that_fits_few_lengths_is_read(tmp_path):
    loop = TensorIterator(
        lambda x, z, h: h + x + z,
        [InputPort("x", "x", axis=0, start=-4, end=3), InputPort("z", "z", axis=0, start=0, end=2),
         InputPort("h", "h"), OutputPort("y", 0)],
        [BackEdge(0, "h")],
    )  # fmt: skip
    x, z, h = torch.randn(4, 2, 3), torch.randn(5, 2, 3), torch.zeros(1, 2, 3)
    save(loop, tmp_path / "m.xml", (x, z, h))
    again = load(tmp_path / "m.xml")
    torch.testing.assert_close(again(x, z, h)[0], (x[1:3] + z[:2]).sum(0, keepdim=True))
    with pytest.raises(IRError, match="different numbers of steps"):
        again(torch.randn(12, 2, 3), z, h)


def layers(path, kind):
    return [layer for layer in load(path).graph.net.layers.values() if layer.type == kind]


@pytest.mark.parametrize("name", ["start1_end_minus2", "start_minus3_reverse", "positive_end_static_concat"])
def test_ranges_are_cut_in_front_of_the_loop(name, tmp_path):
    save(load(case(name) / "model.xml"), tmp_path / "m.xml")
    (loop,) = layers(tmp_path / "m.xml", "TensorIterator")
    for row in (*loop.maps[""].inputs, *loop.maps[""].outputs):
        if row.axis is not None:
            assert (row.start, row.end) == ((0, -1) if row.stride > 0 else (-1, 0))
    assert layers(tmp_path / "m.xml", "Slice")


def test_good_forms_stay_as_they_are(tmp_path):
    model = load(case("lstmcell_v4_reverse_time_major") / "model.xml")
    save(model, tmp_path / "m.xml")
    before, after = (
        {i: (x.type, x.sources) for i, x in m.graph.net.layers.items()}
        for m in (model, load(tmp_path / "m.xml"))
    )
    assert before == after


def test_each_row_has_a_port_of_its_own(tmp_path):
    b = NetBuilder("net")
    x, h = b.parameter("x", F32, (2, 6, 3)), b.parameter("h", F32, (2, 1, 3))
    body = b.body()
    ahead, back, state = (body.parameter(n, F32, (2, 1, 3)) for n in ("ahead", "back", "state"))
    total = body.result(body.layer("Add", [body.layer("Add", [state, ahead]), back]))
    ins = [In(x, ahead, 1), In(x, back, 1, start=-1, end=0, stride=-1), In(h, state)]
    (out,) = b.tensor_iterator(body, ins, [To(total)], [(total, state)])
    b.result(out, ("y",))
    net = b.net()
    loop = next(layer for layer in net.layers.values() if layer.bodies)
    rows = loop.maps[""]
    shared = replace(rows.inputs[1], external=0)
    loop.maps[""] = replace(rows, inputs=(rows.inputs[0], shared, rows.inputs[2]))
    loop.inputs, loop.sources = (loop.inputs[0], loop.inputs[2]), (loop.sources[0], loop.sources[2])
    write(net, tmp_path / "m.xml")
    (read,) = layers(tmp_path / "m.xml", "TensorIterator")
    assert sorted(row.external for row in read.maps[""].inputs) == [0, 1, 2]
    assert [row.external for row in loop.maps[""].inputs] == [0, 0, 2]  # what was given is as it was
    x_value, h_value = torch.randn(2, 6, 3), torch.randn(2, 1, 3)
    torch.testing.assert_close(
        load(tmp_path / "m.xml")(x_value, h_value)["y"], h_value + 2 * x_value.sum(1, keepdim=True)
    )


CUTS = [  # start, end, stride, axis along 9 elements
    (0, -1, 3, 1), (-1, 0, -3, 1), (2, -2, 1, 1), (-3, 1, -1, 1), (0, 6, 2, 1), (-1, 3, -2, 1), (7, 1, -2, 1),
    (-7, -1, 2, 1), (1, 5, 1, -2), (0, -3, 1, 1), (-1, 4, -1, -2),
    (-10, 9, 3, 1), (-8, 8, 2, 1), (7, -9, -2, 1),
]  # fmt: skip


OF_ANY = [(cut, dynamic) for cut in CUTS for dynamic in (False, True)]
IN_TURN = [(cut, k % 2 == 0) for k, cut in enumerate(CUTS)]


@pytest.mark.parametrize(("cut", "dynamic"), few(OF_ANY, IN_TURN[::5]))
def test_openvino_cuts_right(cut, dynamic, tmp_path):
    openvino = pytest.importorskip("openvino")
    start, end, stride, axis = cut
    low, high = (v + 10 if v < 0 else v for v in ((start, end) if stride > 0 else (end, start)))
    b, body = NetBuilder("net"), NetBuilder("body")
    x, h = b.parameter("x", F32, (2, -1 if dynamic else 9, 3)), b.parameter("h", F32, (2, 3))
    part, state = body.parameter("part", F32, (2, abs(stride), 3)), body.parameter("h", F32, (2, 3))
    half = body.layer("Multiply", [state, body.constant(torch.tensor(0.5))])
    one = body.constant(torch.tensor([1]))
    new = body.layer("Add", [half, body.layer("ReduceSum", [part, one], {"keep_dims": False})])
    last, each = body.result(new), body.result(body.layer("Unsqueeze", [new, one]))
    ins = [In(x, part, axis, start=start, end=end, stride=stride), In(h, state)]
    for k, out in enumerate(b.tensor_iterator(body, ins, [To(each, axis), To(last)], [(last, state)])):
        b.result(out, (f"y{k}",))
    write(b.net(), tmp_path / "m.xml")
    values = [torch.randn(2, 9, 3), torch.randn(2, 3)]
    carried, every = values[1], []
    parts = values[0][:, low:high].split(abs(stride), 1)
    for piece in parts if stride > 0 else parts[::-1]:
        carried = carried * 0.5 + piece.sum(1)
        every.append(carried)
    ours = load(tmp_path / "m.xml")(*values)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "m.xml"), "CPU", options)
    there = compiled([value.numpy() for value in values])
    for k, right in enumerate((torch.stack(every, 1), carried)):
        torch.testing.assert_close(ours[k], right)
        torch.testing.assert_close(torch.from_numpy(there[k]), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", [*CUTS, (-10, 6, 2, 1), (6, -10, -3, 1), (-10, 9, 9, 1), (3, 9, 3, 1)])
def test_counts_of_slices_that_nothing_reads(cut, tmp_path):
    start, end, stride, axis = cut
    b, body = NetBuilder("net"), NetBuilder("body")
    x, h = b.parameter("x", F32, (2, -1, 3)), b.parameter("h", F32, (3,))
    part, state = body.parameter("part", F32, (2, abs(stride), 3)), body.parameter("h", F32, (3,))
    new = body.result(body.layer("Add", [state, body.constant(torch.tensor(1.0))]))
    ins = [In(x, part, axis, start=start, end=end, stride=stride), In(h, state)]
    b.result(b.tensor_iterator(body, ins, [To(new)], [(new, state)])[0], ("y",))
    write(b.net(), tmp_path / "m.xml")
    assert layers(tmp_path / "m.xml", "Loop")
    first, last = (v + 10 if v < 0 else v for v in (start, end))
    steps = abs(last - first) // abs(stride)
    assert torch.equal(
        load(tmp_path / "m.xml")(torch.ones(2, 9, 3), torch.zeros(3))["y"], torch.ones(3) * steps
    )


@pytest.mark.parametrize(
    ("type", "version", "shape"),
    [
        ("SoftMax", "opset1", (2, 3, 4)),
        ("ShapeOf", "opset3", (2, 3)),
        ("DepthToSpace", "opset1", (1, 4, 2, 2)),
    ],
)
def test_attributes_left_out_are_written(type, version, shape, tmp_path):
    openvino = pytest.importorskip("openvino")
    b = NetBuilder("net")
    more = {"mode": "blocks_first"} if type == "DepthToSpace" else {}
    b.result(b.layer(type, [b.parameter("x", F32, shape)], more, version=version), ("y",))
    write(b.net(), tmp_path / "m.xml")
    x = torch.randn(shape)
    found = openvino.Core().compile_model(str(tmp_path / "m.xml"), "CPU")([x.numpy()])[0]
    right = {"SoftMax": x.softmax(1), "ShapeOf": torch.tensor(shape), "DepthToSpace": x}[type]
    torch.testing.assert_close(torch.from_numpy(found), right, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(load(tmp_path / "m.xml")(x)["y"], right)


def test_activations_left_out_are_written(tmp_path):
    net = Net()
    x, h = net.parameter("x", "2,3,4"), net.const(np.zeros((2, 1, 4), "f4"))
    weights = [net.const(np.full(shape, 0.1, "f4")) for shape in ((1, 4, 4), (1, 4, 4), (1, 4))]
    sources = [x, h, net.const(np.array([3, 2], "i4")), *weights]
    net.result(
        net.add("RNNSequence", sources, ["FP32", "FP32"], "opset5", hidden_size=4, direction="forward")
    )
    model = load(net.write(tmp_path))
    save(model, tmp_path / "again.xml")
    assert 'activations="tanh"' in (tmp_path / "again.xml").read_text()
    openvino = pytest.importorskip("openvino")
    x = torch.randn(2, 3, 4)
    found = openvino.Core().compile_model(str(tmp_path / "again.xml"), "CPU")([x.numpy()])[0]
    torch.testing.assert_close(torch.from_numpy(found), model(x)[0], rtol=2e-2, atol=2e-2)


def test_whole_sums_are_multiplied(tmp_path):
    """Also by -1, where one is subtracted from another."""
    openvino = pytest.importorskip("openvino")

    class Sums(torch.nn.Module):
        def forward(self, x, y):
            a, b = x[:, :, None] * torch.arange(3), x[:, :, None] * y[:, None]
            return a.sum(-1) - b.sum(-1), x - 3 * b.amax(-1), 1 - b.prod(-1)

    module, path = Sums(), tmp_path / "sums.xml"
    x, y = torch.randint(-4, 9, (5, 3)), torch.randint(-4, 9, (5, 3))
    save(module, path, (x, y))
    compiled = openvino.Core().compile_model(str(path), "CPU")
    found = [torch.as_tensor(v) for v in compiled([x.numpy(), y.numpy()]).values()]
    for got, read, want in zip(found, load(path)(x, y), module(x, y), strict=True):
        assert got.tolist() == read.tolist() == want.tolist()


@pytest.mark.parametrize("dynamic", [None, {"x": [], "z": []}], ids=["open", "fixed"])
def test_cells_that_read_one_table(tmp_path, dynamic):
    """As both directions of a layer do, of which one or both go on with a dimension of one, or attention to
    the table that a cell reads."""
    openvino = pytest.importorskip("openvino")

    class All(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = torch.nn.LSTM(4, 3), torch.nn.GRU(4, 3), torch.nn.RNN(4, 3)

        def forward(self, x, z):
            a, b = self.a(x)[0].unsqueeze(1), self.b(x)[0]
            c = self.c(z)[0]  # and no other loop reads z
            mixed = (c.transpose(0, 1) @ c.permute(1, 2, 0), z.transpose(0, 1) @ z.permute(1, 2, 0))
            return a, b, b.reshape(b.shape[0], 1, b.shape[1], 3) + 1, torch.cat([a, a], 1), *mixed

    module, inputs = All(), (torch.randn(5, 2, 4), torch.randn(5, 2, 4))
    save(module, tmp_path / "m.xml", inputs, dynamic=dynamic)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "m.xml"), "CPU", options)
    for got, want in zip(compiled([x.numpy() for x in inputs]).values(), module(*inputs), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
def test_cells_that_read_one_table_turned_there_and_back(tmp_path):
    pytest.importorskip("openvino")
    convert(case("onnx_rnn_bi_seq") / "model.xml", tmp_path / "m.xml")
    model = load(tmp_path / "m.xml")
    onnx.save(model, tmp_path / "m.onnx", torch.ones(5, 2, 3))
    again = onnx.load(tmp_path / "m.onnx")
    save(again, tmp_path / "again.xml", torch.ones(5, 2, 3))
    x = torch.randn(5, 2, 3)
    for got, want in zip(in_openvino(tmp_path / "again.xml", x), model(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
def test_last_states_of_no_steps(tmp_path):
    """Of cells that read one table, what they give going on with a dimension of one."""

    class All(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.LSTM(4, 3), nn.GRU(4, 3, bidirectional=True), nn.RNN(4, 3)

        def forward(self, x, h, c, both):
            y, (h, c) = self.a(x, (h, c))
            z, both = self.b(x, both)
            v, g = self.c(x, h)
            return (
                y.unsqueeze(1),
                z.reshape(z.shape[0], 1, z.shape[1], 6) + 1,
                v.transpose(0, 1),
                h,
                c,
                both,
                g,
            )

    def inputs(t, b):
        return torch.randn(t, b, 4), *(torch.randn(n, b, 3) for n in (1, 1, 2))

    module = All().eval()
    save(module, tmp_path / "m.xml", inputs(5, 2))
    save(load(tmp_path / "m.xml"), tmp_path / "again.xml")  # where nothing is chosen twice
    assert (tmp_path / "again.xml").read_text().count("Select") == (tmp_path / "m.xml").read_text().count(
        "Select"
    )
    runs = [*runners(tmp_path / "m.xml", load(tmp_path / "m.xml"))]
    for t, b in ((0, 2), (3, 2), (0, 3), (1, 1)):
        values = inputs(t, b)
        for run in runs:
            for got, want in zip(run(values), module(*values), strict=True):
                torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", few([-1, 0, 2], [-1]))
def test_last_states_of_sequences_of_no_steps(steps, tmp_path):
    b = NetBuilder("m")
    x, h = b.parameter("x", F32, (2, steps, 4)), b.parameter("h", F32, (2, 1, 3))
    lengths = b.layer("Broadcast", [b.constant(torch.tensor(max(steps, 0))), b.constant(torch.tensor([2]))])
    weights = [b.constant(torch.ones(shape) / 9) for shape in ((1, 3, 4), (1, 3, 3), (1, 3))]
    said = {"hidden_size": 3, "direction": "forward", "activations": "tanh"}
    y, last = b.layer("RNNSequence", [x, h, lengths, *weights], said, version="opset5", outputs=2)
    b.result(y, ("y",))
    b.result(last, ("last",))
    write(b.net(), tmp_path / "m.xml")
    assert ("Select" in (tmp_path / "m.xml").read_text()) == (steps < 0)
    values = torch.randn(2, max(steps, 0), 4), torch.randn(2, 1, 3)
    model = load(tmp_path / "m.xml")
    right = model(*values)["last"]
    if steps < 1:
        assert right.equal(values[1])
    for run in runners(tmp_path / "m.xml", model) if steps else ():  # OpenVINO takes no fixed time of 0
        torch.testing.assert_close(run(values)[1], right, rtol=1e-4, atol=1e-4)
    assert not {"Select", "Greater"} & {node.layer.type for node in model.graph.running}
    if steps < 0:
        layers, constants = model.graph.net.layers, model.graph._read_constants(model._weights)
        assert len(choices(layers, constants)) == 1
        chosen = next(layer for layer in layers.values() if layer.type == "Select")
        layers[chosen.sources[0][0]].sources = layers[chosen.sources[0][0]].sources[::-1]
        assert not choices(layers, constants)  # where there is no step


def carried(shape):
    """A net and its input, the body of a loop, its state, and its result: half of that."""
    net = Net()
    h = net.parameter("h", shape)
    body = net.body()
    state = body.parameter("state", shape)
    new = body.result(body.add("Multiply", [state, body.const(np.array(0.5, "f4"))]))
    return net, h, body, state, new


def in_openvino(path, *values):
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [torch.from_numpy(value) for value in compiled([v.numpy() for v in values]).values()]


def test_axes_are_counted_from_the_front_where_ranks_are_not_said(tmp_path):
    net, h, body, state, new = carried("2,3")
    x, part = net.parameter("x", "4,3"), body.parameter("part", "1,3")
    rows = sliced("input", 0, state[0]) + sliced("input", 1, part[0], axis=0)
    rows += sliced("output", 2, new, axis=-1, start=0, end=-1, stride=3, part_size=3)
    net.result(net.loop(body, [h, x], rows, edge(new, state[0])))
    model, values = load(net.write(tmp_path)), (torch.randn(2, 3), torch.ones(4, 3))
    save(model, tmp_path / "again.xml")
    (found,) = in_openvino(tmp_path / "again.xml", *values)
    torch.testing.assert_close(found, model(*values)[0])


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("trips", "goes"), [(0, True), (3, False)])
def test_loops_of_no_step(trips, goes, traced, tmp_path):
    net, h, body, state, new = carried("1,3")
    goes_on = body.result(body.const(np.array(True)))
    rows = sliced("input", 2, state[0]) + sliced("output", -1, goes_on, purpose="execution_condition")
    rows += sliced("output", 3, new) + sliced("output", 4, new, axis=0)
    sources = [net.const(np.array(trips)), net.const(np.array(goes)), h]
    last, port = net.loop(body, sources, rows, edge(new, state[0]), ["FP32"] * 2, "Loop", "opset5")
    for k in (0, 1):
        net.result((last, port + k))
    model, x = load(net.write(tmp_path)), torch.randn(1, 3)
    module = (torch.nn.Sequential(model), (x,)) if traced else (model,)
    save(module[0], tmp_path / "again.xml", *module[1:])
    found = in_openvino(tmp_path / "again.xml", x)
    assert torch.equal(found[0], x)
    assert found[1].shape == (0, 3)
    (given,) = load(tmp_path / "again.xml").inputs
    assert given.name == ("input" if traced else "h")
