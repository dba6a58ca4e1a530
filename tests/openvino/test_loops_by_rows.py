"""Which loops of files are compiled: blocks, both ways to have a batch along axis 0, and counted Loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from covering import every
from ir_files import Net, edge, sliced
from stepnet import Recurrent, explain, recurrent
from stepnet.cells import MinGRU
from stepnet.errors import IRError
from stepnet.executors.setting import set_backend
from stepnet.file_model.joined_steps import JoinedStep
from stepnet.openvino import load, save
from stepnet.report import ModelExplanation

BACKEND = "auto"
W = np.linspace(-0.5, 0.5, 9, dtype=np.float32).reshape(3, 3)


def check(model, *given, compiled=True, reason=None):
    """The plain loop and what the compiler makes of it give the same; says whether it was compiled."""
    set_backend("naive")
    expected = model(*given)
    set_backend("auto")
    found = model(*given)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    (report,) = model.loops
    assert report.compiled == compiled, model.explain()
    if reason is not None:
        assert reason in str(report.reason)
    return found


def recurrence(folder, x_shape, h_shape, slice_shape, cut, joined, squeeze):
    """h = tanh(h W + sum of x_t over the axis `squeeze`); h, or x_t h, joined, and h at last."""
    net = Net()
    x, h = net.parameter("X", x_shape), net.parameter("H", h_shape)
    body = net.body()
    xi, hi = body.parameter("xi", slice_shape), body.parameter("hi", h_shape)
    new = body.add("MatMul", [hi, body.const(W)])
    if squeeze is None:
        wide = new = body.add("Tanh", [body.add("Add", [new, xi])])
    else:
        along = body.const([squeeze])
        new = body.add("Add", [new, body.add("ReduceSum", [xi, along], keep_dims="false")])
        new = body.add("Tanh", [new])
        wide = body.add("Multiply", [xi, body.add("Unsqueeze", [new, along])])
    out = body.result(new)
    y = body.result(wide)
    rows = sliced("input", 0, xi[0], **cut) + sliced("input", 1, hi[0])
    rows += sliced("output", 2, y, **joined) + sliced("output", 3, out)
    loop, port = net.loop(body, [x, h], rows, edge(out, hi[0]), ["FP32"] * 2)
    net.result((loop, port))
    net.result((loop, port + 1))
    return load(net.write(folder))


def blocks(axis, part, **more):
    return {"axis": axis, "stride": part, "part_size": part} | more


BACK = {"start": -1, "end": 0}
FORMS = [
    ("blocks along axis 1", (2, 6, 3), (2, 3), "?,2,3", blocks(1, 2), blocks(1, 2), 1),
    ("blocks backwards", (2, 6, 3), (2, 3), "?,3,3", blocks(1, 3, stride=-3, **BACK), blocks(1, 3), 1),
    ("blocks along axis 0", (6, 2, 3), (2, 3), "2,?,3", blocks(0, 2), blocks(0, 2, stride=-2, **BACK), 0),
    ("blocks along the last axis", (2, 3, 6), (2, 3), "?,3,2", blocks(2, 2), blocks(2, 2), 2),
    ("single elements along axis 0", (6, 2, 3), (2, 3), "1,?,3", blocks(0, 1), blocks(0, 1), 0),
    ("a part of them", (2, 9, 3), (2, 3), "?,2,3", blocks(1, 2, start=2, end=-2), blocks(1, 2), 1),
    ("blocks are the batch", (8, 3), (2, 3), "2,3", blocks(0, 2), blocks(0, 2), None),
    ("a batch of one along axis 0", (5, 3), (1, 3), "1,3", blocks(0, 1), blocks(0, 1), None),
    ("blocks are the batch, backwards", (8, 3), (4, 3), "4,3", blocks(0, 4, stride=-4, **BACK), blocks(0, 4),
     None),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=[f[0] for f in FORMS])
def test_forms_that_are_compiled(tmp_path, form):
    _, x, h, inner, cut, joined, squeeze = form
    dynamic = ",".join("?" for _ in x)
    model = recurrence(tmp_path, dynamic, "?,3", inner, cut, joined, squeeze)
    check(model, torch.randn(x), torch.randn(h))


def test_a_batch_axis_that_fits_nothing_is_the_reason(tmp_path):
    model = recurrence(tmp_path, "?,?,?", "?,3", "?,2,3", blocks(1, 2), blocks(1, 2), 1)
    check(model, torch.randn(1, 6, 3), torch.randn(2, 3), compiled=False, reason="'hi' does not have one row")


def counted(folder, *, trip=None, x=False, number="Add", condition="const", shape="?,3", rank=""):
    """Loop-5: s = s + i (or as `number` says) [+ x_t], joined along axis 1 and last."""
    net = Net()
    inputs = [net.parameter("n", "", "int64") if trip is None else net.const(trip), net.const(True)]
    inputs.append(net.parameter("s", shape))
    body = net.body()
    i, s = body.parameter("i", rank, "int64"), body.parameter("si", shape)
    total = body.add("Tanh", [body.add("MatMul", [s, body.const(W)])])
    as_float = body.add("Convert", [i], destination_type="f32")
    if number == "Gather":
        table = body.const(np.arange(24, dtype=np.float32).reshape(8, 3))
        total = body.add("Add", [total, body.add("Gather", [table, i, body.const(0)], version="opset8")])
    elif number is not None:
        total = body.add(number, [total, as_float])
    rows = sliced("input", -1, i[0], purpose="current_iteration") + sliced("input", 2, s[0])
    if x:
        inputs.append(net.parameter("X", "?,?,3"))
        xi = body.parameter("xi", "?,1,3")
        total = body.add("Add", [total, body.add("Squeeze", [xi, body.const([1])])])
        rows += sliced("input", 3, xi[0], axis=1)
    out, wide = body.result(total), body.result(body.add("Unsqueeze", [total, body.const([1])]))
    edges = edge(out, s[0])
    if condition == "const":
        go = body.result(body.const(True))
    elif condition == "handed on":
        inputs.append(net.const(np.array([True])))
        kept = body.parameter("go", "1", "bool")
        rows += sliced("input", len(inputs) - 1, kept[0])
        go = body.result(kept)
        edges += edge(go, kept[0])
    else:
        go = body.result(body.add("Less", [as_float, body.const(condition, "float32")]))
    rows += sliced("output", -1, go, purpose="execution_condition")
    n = len(inputs)
    rows += sliced("output", n, wide, axis=1) + sliced("output", n + 1, out)
    loop, port = net.loop(body, inputs, rows, edges, ["FP32"] * 2, "Loop", "opset5")
    net.result((loop, port))
    net.result((loop, port + 1))
    return load(net.write(folder))


@pytest.mark.covering(2)
@pytest.mark.parametrize("rank", ["", "1"])
@pytest.mark.parametrize("condition", ["const", "handed on"])
@pytest.mark.parametrize("number", [None, "Add", "Gather"])
def test_a_counted_loop_is_compiled(tmp_path, number, condition, rank):
    if (number, rank) == ("Gather", "1"):
        rank = ""
    model = counted(tmp_path, number=number, condition=condition, rank=rank)
    for trips in (1, 2, 5):
        whole, last = check(model, torch.tensor(trips), torch.randn(4, 3))
        assert whole.shape == (4, trips, 3)
        assert torch.equal(whole[:, -1], last)
    check(model, torch.tensor(0), torch.randn(4, 3), compiled=False, reason="it has no steps")


def test_a_counted_loop_by_hand(tmp_path):
    start = torch.randn(2, 3)
    _, last = check(counted(tmp_path), torch.tensor(4), start)
    state = start
    for i in range(4):
        state = torch.tanh(state @ torch.from_numpy(W)) + i
    torch.testing.assert_close(last, state)


def test_a_counted_loop_takes_the_first_slices(tmp_path):
    model, x = counted(tmp_path, x=True), torch.randn(2, 6, 3)
    for trips in (1, 4, 6, -1):
        whole, _ = check(model, torch.tensor(trips), torch.randn(2, 3), x)
        assert whole.shape[1] == (6 if trips < 0 else trips)


def picking(folder, rank, axis, also=False):
    """Loop-5: s = tanh(s W + (2 X)[i] [+ i]), as loops in ONNX and in scripts read what they are given."""
    net = Net()
    inputs = [net.parameter("n", "", "int64"), net.const(True), net.parameter("s", "?,3")]
    inputs.append(net.parameter("X", "?,?,?"))
    body = net.body()
    i, s, x = body.parameter("i", rank, "int64"), body.parameter("si", "?,3"), body.parameter("xi", "?,?,?")
    twice = body.add("Multiply", [x, body.const(2.0, "float32")])
    row = body.add("Gather", [twice, i, body.const(axis)], version="opset8")
    if rank == "1":
        row = body.add("Squeeze", [row, body.const([axis])])
    total = body.add("Add", [body.add("MatMul", [s, body.const(W)]), row])
    if also:
        total = body.add("Add", [total, body.add("Convert", [i], destination_type="f32")])
    new = body.add("Tanh", [total])
    out, wide = body.result(new), body.result(body.add("Unsqueeze", [new, body.const([axis])]))
    rows = sliced("input", -1, i[0], purpose="current_iteration") + sliced("input", 2, s[0])
    rows += sliced("input", 3, x[0])
    rows += sliced("output", -1, body.result(body.const(True)), purpose="execution_condition")
    rows += sliced("output", 4, wide, axis=axis) + sliced("output", 5, out)
    loop, port = net.loop(body, inputs, rows, edge(out, s[0]), ["FP32"] * 2, "Loop", "opset5")
    net.result((loop, port))
    net.result((loop, port + 1))
    return load(net.write(folder))


@pytest.mark.covering(2)
@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rank", ["", "1"])
def test_what_is_picked_by_the_number_of_the_iteration_is_a_slice(tmp_path, rank, axis, also):
    model = picking(tmp_path, rank, axis, also)
    for steps, trips in ((5, 5), (5, 3), (2, 1)):
        x = torch.randn((steps, 2, 3) if axis == 0 else (2, steps, 3))
        state = start = torch.randn(2, 3)
        _, last = check(model, torch.tensor(trips), start, x)
        for i in range(trips):
            state = torch.tanh(state @ torch.from_numpy(W) + 2 * x.select(axis, i) + (i if also else 0))
        torch.testing.assert_close(last, state)
    x = torch.randn(2, 2, 3)
    with pytest.raises(IRError, match="Gather"):
        model(torch.tensor(3), torch.zeros(2, 3), x)


def test_a_loop_that_computes_its_condition_is_not(tmp_path):
    model = counted(tmp_path, condition=2.0)
    check(model, torch.tensor(9), torch.randn(2, 3), compiled=False, reason="computes the condition")
    assert model.explain().endswith(
        "plain loop: its body computes the condition to go on, and no call before had 16 steps"
    )


def test_explain_shows_the_regions_of_compiled_loops(tmp_path):
    model = recurrence(tmp_path, "?,?,?", "?,3", "?,3,2", blocks(2, 2), blocks(2, 2), 2)
    told = explain(model, {"X": torch.randn(2, 3, 6), "H": torch.randn(2, 3)})
    assert isinstance(told, ModelExplanation)
    (it,) = told.recurrences
    assert (it.executor, it.steps, it.sequences) == ("c", 3, 2)
    assert [region.kind for region in it.regions] == ["scan"]
    assert it.find("matmul", kind="scan")
    (it,) = explain(model, (torch.randn(1, 3, 6), torch.randn(2, 3))).recurrences
    assert (it.executor, it.steps) == ("naive", 3)
    assert "does not have one row" in it.refusals[0].reason


@pytest.mark.parametrize("steps", [4, 0])
def test_explain_shows_sequence_layers_a_direction_each(tmp_path, steps):
    net = Net()
    x, h, n = net.parameter("X", "?,?,3"), net.parameter("H", "?,2,3"), net.parameter("n", "?", "int32")
    weights = [net.const(np.stack([W, W.T])), net.const(np.stack([W, W])), net.const(np.zeros((2, 3), "f4"))]
    layer, port = net.add("RNNSequence", [x, h, n, *weights], ["FP32"] * 2, "opset5", hidden_size=3,
                          direction="bidirectional")  # fmt: skip
    net.result((layer, port))
    model = load(net.write(tmp_path))
    lengths = torch.tensor([steps, steps // 2], dtype=torch.int32)
    told = explain(model, (torch.randn(2, steps, 3), torch.randn(2, 2, 3), lengths))
    assert isinstance(told, ModelExplanation)
    assert [it.reverse for it in told.recurrences] == [False, True]
    assert [(it.steps, it.rows) for it in told.recurrences] == [(steps, steps + steps // 2)] * 2
    if steps:
        assert {it.executor for it in told.recurrences} == {"c"}


def test_a_constant_of_equal_rows_may_be_changed(tmp_path):
    """One row stands for all of them only as long as they are equal."""
    net = Net()
    x, h = net.parameter("X", "?,?,3"), net.parameter("H", "2,3")
    body = net.body()
    xi, hi = body.parameter("xi", "?,1,3"), body.parameter("hi", "2,3")
    total = body.add("Add", [body.add("Add", [hi, body.add("Squeeze", [xi, body.const([1])])]),
                             body.const(np.full((2, 3), 0.25, np.float32))])  # fmt: skip
    out = body.result(total)
    rows = sliced("input", 0, xi[0], axis=1) + sliced("input", 1, hi[0]) + sliced("output", 2, out)
    net.result(net.loop(body, [x, h], rows, edge(out, hi[0])))
    path = net.write(tmp_path)
    given = torch.randn(2, 4, 3), torch.randn(2, 3)
    model = load(path)
    (last,) = check(model, *given)
    torch.testing.assert_close(last, given[1] + given[0].sum(1) + 1)
    constant = next(b for b in model.buffers() if b.shape == (2, 3))
    with torch.no_grad():
        constant.data = torch.tensor([[0.25], [0.5]]).expand(2, 3).clone()
    (last,) = check(model, *given, compiled=False, reason="another number of rows")
    torch.testing.assert_close(last, given[1] + given[0].sum(1) + torch.tensor([[1.0], [2.0]]))
    check(load(path, trainable=True), *given, compiled=False, reason="another number of rows")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_state_behind_an_axis_of_one_element_has_rows(tmp_path, batch):
    """As we write it of time first: the sequences are the rows of the loop, not numbers of one row."""
    step = Recurrent(MinGRU(3, 4))
    save(step, tmp_path / "m.xml", (torch.randn(5, 2, 3),))
    model, x = load(tmp_path / "m.xml"), torch.randn(6, batch, 3)
    for _ in range(2):
        for a, b in zip(model(x), step(x), strict=True):
            torch.testing.assert_close(a, b)
    (it,) = explain(model, {model.inputs[0].name: x}).recurrences
    assert (it.executor, it.steps, it.sequences) == ("c", 6, batch)


@pytest.mark.parametrize("axis", every(2, [0, 1]))
def test_layers_around_are_part_of_the_loop(tmp_path, axis):
    """The product before it and what is done to each row after it, as when the cell was written."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = MinGRU(4, 4)

        def forward(self, x, h):
            return recurrent(self.step, x, h, axis=axis, reverse=True)[0].relu() * x

    whole, sizes = Model(), ((6, 3), (1, 2))
    save(whole, tmp_path / "m.xml", (torch.randn(5, 5, 4), torch.randn(5, 4)))
    model = load(tmp_path / "m.xml", trainable=True)
    for steps, batch in sizes:
        x = torch.randn((steps, batch, 4) if axis == 0 else (batch, steps, 4), requires_grad=True)
        h = torch.randn(batch, 4)
        for _ in range(2):
            found, wanted = model(x, h)[0], whole(x, h)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            grads = (torch.autograd.grad(out.square().sum(), x) for out in (found, wanted))
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
        joined = [*model.graph.joining.found.values()][-1]
        assert any(isinstance(step, JoinedStep) for step in joined or []) == (steps > 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    x = torch.randn((6, 3, 4) if axis == 0 else (3, 6, 4))
    check(model, x, torch.randn(3, 4))


def test_layers_that_move_the_axis_of_steps_are_none(tmp_path):
    """A batch in front, moved behind the steps for the loop and back."""
    net = Net()
    x, h, body, swap = (
        net.parameter("x", "?,?,3"),
        net.parameter("h", "?,3"),
        net.body(),
        net.const([1, 0, 2]),
    )
    xi, hi, zero = body.parameter("xi", "1,?,3"), body.parameter("hi", "?,3"), body.const([0])
    new = body.add("Tanh", [body.add("Add", [hi, body.add("Squeeze", [xi, zero])])])
    row = body.result(body.add("Unsqueeze", [new, zero]))
    new = body.result(new)
    ports = [sliced("input", 0, 0, axis=0), sliced("input", 1, 1), sliced("output", 2, row, axis=0)]
    product = net.add("MatMul", [x, net.const(W)])
    it = net.loop(body, [net.add("Transpose", [product, swap]), h], "".join(ports), edge(new, 1))
    net.result(net.add("Relu", [net.add("Transpose", [it, swap])]))
    model = load(net.write(tmp_path))
    for batch, steps in ((3, 6), (5, 2)):
        check(model, torch.randn(batch, steps, 3), torch.randn(batch, 3))
    found = [step for steps in model.graph.joining.found.values() for step in steps or []]
    (loop,) = [step.run.body for step in found if isinstance(step, JoinedStep)]
    assert (len(loop.before), len(loop.after)) == (1, 1)


def test_sizes_that_a_body_computes(tmp_path):
    """As padding in a step is written."""
    net = Net()
    x, h, body = net.parameter("x", "?,?,3"), net.parameter("h", "?,3"), net.body()
    xi, hi = body.parameter("xi", "?,1,3"), body.parameter("hi", "?,3")
    zero, one, three = (body.const([n]) for n in (0, 1, 3))
    shape = body.add("ShapeOf", [hi], ["I64"], "opset3")
    rows = body.add("Slice", [shape, zero, one, one, zero], ["I64"], "opset8")
    size = body.add("Concat", [rows, one], ["I64"], axis=0)
    column = body.add("Broadcast", [body.const(0.0, "float32"), size], version="opset3", mode="numpy")
    moved = body.add("Concat", [column, hi], axis=1)
    cut = body.add("Slice", [moved, zero, three, one, one], version="opset8")
    new = body.result(body.add("Tanh", [body.add("Add", [cut, body.add("Squeeze", [xi, one])])]))
    ports = [sliced("input", 0, 0, axis=1), sliced("input", 1, 1), sliced("output", 2, new)]
    net.result(net.loop(body, [x, h], "".join(ports), edge(new, 1)))
    x, h = torch.randn(2, 5, 3), torch.randn(2, 3)
    found = check(load(net.write(tmp_path)), x, h)[0]
    for t in range(5):
        h = torch.tanh(torch.nn.functional.pad(h, (1, -1)) + x[:, t])
    torch.testing.assert_close(found, h)
