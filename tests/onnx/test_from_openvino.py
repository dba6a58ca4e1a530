"""Models of OpenVINO IR as ONNX: equal in ONNX Runtime, at other sizes where the file leaves them open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from covering import few
from ir_files import Net, edge, sliced
from saved_modules import plain_loops
from stepnet.compiler.reads.reach import reach
from stepnet.report.sizes import fitting

pytest.importorskip("onnx_ir")
import stepnet.onnx
import stepnet.openvino

CORPUS = Path(__file__).parent.parent / "openvino" / "cases" / "corpus"
OPEN = [
    "torch_lstm_bi2_sequence", "torch_lstm_dyn_ti", "dynamic_batch_time", "onnx_gru_bi_split_2layer_ti",
    "shapeof_in_body",
]  # fmt: skip
FIXED = ["attention_decoder", "part2_rev", "lstm_projection"]


LIKE_OTHERS = {"torch_lstm_dyn_ti", "part2_rev", "onnx_gru_bi_split_2layer_ti"}


@pytest.mark.parametrize("name", few(OPEN + FIXED, ["dynamic_batch_time", "shapeof_in_body"]))
def test_the_same_numbers(name, tmp_path, opened):
    model = stepnet.openvino.load(CORPUS / name / "model.xml").eval()

    def inputs(size):
        shapes = fitting(model, {}, size)
        return {i.name: torch.randn(shapes[i.name]).to(i.dtype) for i in model.inputs}

    with plain_loops():
        stepnet.onnx.save(model, tmp_path / "m.onnx", inputs(8))
    written = opened(tmp_path / "m.onnx")
    for size in (8, 5):
        values = inputs(size)
        with torch.no_grad(), plain_loops():
            expected = model(**values)
        for a, b in zip(written(*values.values()), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    open_sizes = [[d for d in sizes if d < 2] for sizes in model.open_sizes.values()]
    assert [[d for d in sizes if d < 2] for sizes in written.read.open_sizes.values()] == open_sizes
    assert any(open_sizes) == (name in OPEN)


@pytest.mark.parametrize("name", ["shapeof_in_body", "ops_shape", "ti_in_loop"])
def test_runs_leave_a_read_model_as_it_was(name):
    """A loop in it is saved if what it refers to is as it was."""
    model = stepnet.openvino.load(CORPUS / name / "model.xml").eval()
    inputs = [torch.randn(fitting(model, {}, 8)[i.name]).to(i.dtype) for i in model.inputs]
    calls = [lambda x, part=part: part(x) for part in model.modules()]
    model(*inputs)
    before = [reach(call).key for call in calls]
    for _ in range(3):
        model(*inputs)
    assert [reach(call).key for call in calls] == before


@pytest.mark.exhaustive
def test_a_branch_in_a_loop(tmp_path, opened):
    """Sums of what is above zero, and half of the sum so far where it is not."""
    net = Net()
    x, s = net.parameter("x", "?,2"), net.parameter("s", "1,2")
    body = net.body()
    xi, si = body.parameter("xi", "1,2"), body.parameter("si", "1,2")
    total = body.add("ReduceSum", [xi, body.const([0, 1])], keep_dims="false")
    above = body.add("Greater", [total, body.const(np.float32(0))], ["BOOL"])
    inner = ""
    for branch, kind in (("then_", "Add"), ("else_", "Multiply")):
        way = body.body()
        a, b = way.parameter("a", "1,2"), way.parameter("b", "1,2")
        made = way.result(way.add(kind, [a, b if kind == "Add" else way.const(np.float32([[0.5]]))]))
        rows = sliced("input", 1, a[0]) + sliced("input", 2, b[0]) + sliced("output", 3, made)
        inner += f"<{branch}port_map>{rows}</{branch}port_map><{branch}body>{way.content()}</{branch}body>"
    new = body.result(body.add("If", [above, si, xi], version="opset8", inner=inner))
    rows = sliced("input", 0, xi[0], axis=0) + sliced("input", 1, si[0]) + sliced("output", 2, new, axis=0)
    net.result(net.loop(body, [x, s], rows, edge(new, si[0])))
    model = stepnet.openvino.load(net.write(tmp_path))
    given, first = torch.tensor([[1.0, 2], [-1, 0], [3, 0]]), torch.zeros(1, 2)
    expected = torch.tensor([[1.0, 2], [0.5, 1], [3.5, 1]])
    torch.testing.assert_close(model(given, first)[0], expected)
    with plain_loops():
        stepnet.onnx.save(model, tmp_path / "m.onnx", (given[:2], first))
        torch.testing.assert_close(opened(tmp_path / "m.onnx")(given, first)[0], expected)


def test_sizes_as_converters_compute_them(tmp_path, opened):
    """`chunk`: the length of a part of a known size; `expand`: a size of -1 is the one that is there."""
    net = Net()
    x, one, three = net.parameter("x", "?,?,7"), net.const([1]), net.const(3)
    shape = net.add("ShapeOf", [x], ["I64"], "opset3")
    size = net.add("Gather", [shape, net.const(2), net.const(0)], ["I64"], "opset8")
    rest = net.add("Greater", [net.add("Mod", [size, three], ["I64"]), net.const(0)], ["BOOL"])
    more = net.add("Convert", [rest], ["I64"], destination_type="i64")
    part = net.add("Add", [net.add("Divide", [size, three], ["I64"]), more], ["I64"])
    parts = [net.add("Broadcast", [part, net.const([2])], ["I64"], "opset3", mode="numpy"), net.const([-1])]
    lengths = net.add("Concat", parts, ["I64"], axis=0)
    at, port = net.add("VariadicSplit", [x, net.const(-1), lengths], ["FP32"] * 3)
    kept = net.add("Select", [net.add("Equal", [shape, net.const([-1])], ["BOOL"]), one, shape], ["I64"])
    table = net.const(np.arange(7.0)[None, None], "float32")
    wide = net.add("Broadcast", [table, kept], ["FP32"], "opset3", mode="bidirectional")
    for source in [*((at, port + k) for k in range(3)), net.add("Add", [wide, x])]:
        net.result(source)
    model = stepnet.openvino.load(net.write(tmp_path))
    stepnet.onnx.save(model, tmp_path / "m.onnx", torch.randn(2, 4, 7))
    given = torch.randn(3, 1, 7)
    for found in (opened(tmp_path / "m.onnx")(given), model(given)):
        for a, b in zip(found, [*given.chunk(3, -1), given + torch.arange(7.0)], strict=True):
            torch.testing.assert_close(a, b)


def test_a_softmax_over_several_axes_as_its_converter_writes_it(tmp_path, opened):
    """Of rows as long as the product of some sizes, which are cut out of the shape."""
    net = Net()
    x, zero, masks = net.parameter("x", "?,?,5"), net.const([0]), {"end_mask": "0", "shrink_axis_mask": "0"}
    shape = net.add("ShapeOf", [x], ["I64"], "opset3")
    lengths = []
    for begin, end, open_begin in ((0, 1, "1"), (1, 3, "0")):
        ends = [net.const([begin]), net.const([end]), net.const([1])]
        part = net.add("StridedSlice", [shape, *ends], ["I64"], begin_mask=open_begin, **masks)
        lengths.append(net.add("ReduceProd", [part, zero], ["I64"], keep_dims="true"))
    flat = net.add("Concat", lengths, ["I64"], axis=0)
    rows = net.add("Reshape", [x, flat], special_zero="false")
    after = net.add("SoftMax", [rows], axis=1)
    net.result(net.add("Reshape", [after, shape], special_zero="false"))
    model = stepnet.openvino.load(net.write(tmp_path))
    stepnet.onnx.save(model, tmp_path / "m.onnx", torch.randn(2, 4, 5))
    given = torch.randn(3, 2, 5)
    for (found,) in (opened(tmp_path / "m.onnx")(given), model(given)):
        torch.testing.assert_close(found, given.flatten(1).softmax(1).reshape(3, 2, 5))


def test_features_that_the_file_leaves_open_are_those_of_the_weights(tmp_path, opened, capfd):
    net = Net()
    x, h = net.parameter("x", "?,?,?,?"), net.parameter("h", "?,1,4")
    rows = net.add("Reshape", [x, net.const([0, 0, -1])], special_zero="true")
    shape = net.add("ShapeOf", [rows], ["I64"], "opset3")
    batch = net.add("Gather", [shape, net.const([0]), net.const(0)], ["I64"], "opset8")
    time = net.add("Gather", [shape, net.const([1]), net.const(0)], ["I64"], "opset8")
    lengths = net.add("Broadcast", [time, batch], ["I64"], "opset3")
    weights = [net.const(np.full(of, 0.1, "float32")) for of in ((1, 12, 6), (1, 12, 4), (1, 12))]
    attributes = {"hidden_size": 4, "direction": "forward"}
    net.result(net.add("GRUSequence", [rows, h, lengths, *weights], ["FP32"] * 2, "opset5", **attributes))
    model = stepnet.openvino.load(net.write(tmp_path))
    stepnet.onnx.save(model, tmp_path / "m.onnx", (torch.randn(2, 5, 2, 3), torch.zeros(2, 1, 4)))
    x, h = torch.randn(3, 4, 2, 3), torch.randn(3, 1, 4)
    torch.testing.assert_close(opened(tmp_path / "m.onnx")(x, h)[0], model(x, h)[0])
    assert "fake_tensor" not in capfd.readouterr().err  # torch says that shapes do not fit


def test_rows_of_a_loop_of_as_many_steps_as_an_input_has(tmp_path, opened):
    """They meet that input, whose number of steps is open, too: both are one number."""
    net = Net()
    x, s = net.parameter("x", "?,?,3"), net.parameter("s", "?,3")
    shape = net.add("ShapeOf", [x], ["I64"], "opset3")
    trips = net.add("Gather", [shape, net.const(0), net.const(0)], ["I64"], "opset8")
    body = net.body()
    i, si, xi = body.parameter("i", "", "int64"), body.parameter("si", "?,3"), body.parameter("xi", "?,?,3")
    row = body.add("Gather", [xi, i, body.const(0)], version="opset8")
    new = body.add("Tanh", [body.add("Add", [si, row])])
    out, wide = body.result(new), body.result(body.add("Unsqueeze", [new, body.const([0])]))
    rows = sliced("input", -1, i[0], purpose="current_iteration") + sliced("input", 2, si[0])
    rows += sliced("input", 3, xi[0]) + sliced("output", 4, wide, axis=0)
    rows += sliced("output", -1, body.result(body.const(True)), purpose="execution_condition")
    loop = net.loop(body, [trips, net.const(True), s, x], rows, edge(out, si[0]), ["FP32"], "Loop", "opset5")
    net.result(net.add("Concat", [loop, x], axis=2))
    model = stepnet.openvino.load(net.write(tmp_path))
    stepnet.onnx.save(model, tmp_path / "m.onnx", (torch.randn(4, 2, 3), torch.randn(2, 3)))
    given = torch.randn(6, 1, 3), torch.randn(1, 3)
    torch.testing.assert_close(opened(tmp_path / "m.onnx")(*given)[0], model(*given)[0])


LOOPS = [
    "corpus/loop_while", "corpus/onnx_loop_for", "corpus/torch_script_for_loop", "corpus/ti_in_loop",
    "disputed/lstmsequence_seqlens_dynamic",
]  # fmt: skip


def arrays(path):
    with np.load(path) as held:
        return [torch.from_numpy(held[name]) for name in held.files]


@pytest.mark.parametrize("name", few(LOOPS, LOOPS[-1:]))
def test_ends_that_are_told(name, tmp_path, opened):
    """Loops of a condition or a count, whatever they join and carry; sequences of their own lengths."""
    folder, written = CORPUS.parent / name, None
    model = stepnet.openvino.load(folder / "model.xml").eval()
    for path in sorted(folder.glob("inputs*.npz")):
        values, wanted = (arrays(folder / path.name.replace("inputs", k)) for k in ("inputs", "outputs"))
        if written is None:
            with plain_loops():
                stepnet.onnx.save(model, tmp_path / "m.onnx", tuple(values))
            written = opened(tmp_path / "m.onnx")
        for a, b in zip(written(*values), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_branch_that_reads_a_size(tmp_path):
    """The size is of the graph around it, and open."""
    net = Net()
    c, x = net.parameter("c", "", "bool"), net.parameter("x", "?")
    size, inner = net.add("ShapeOf", [x], output_type="i64"), ""
    for branch, number in (("then_", 2.0), ("else_", -1.0)):
        body = net.body()
        s = body.parameter("s", "1", "int64")
        out = body.result(body.add("Broadcast", [body.const(np.float32(number)), s], mode="numpy"))
        rows = sliced("input", 1, s[0]) + sliced("output", 2, out)
        inner += f"<{branch}port_map>{rows}</{branch}port_map><{branch}body>{body.content()}</{branch}body>"
    net.result(net.add("Add", [net.add("If", [c, size], version="opset8", inner=inner), x]))
    model = stepnet.openvino.load(net.write(tmp_path))
    stepnet.onnx.save(model, tmp_path / "b.onnx", (torch.tensor(True), torch.ones(3)))
    again, x = stepnet.onnx.load(tmp_path / "b.onnx"), torch.randn(5)
    torch.testing.assert_close(again(torch.tensor(False), x)[0], x - 1)
    torch.testing.assert_close(again(torch.tensor(True), x)[0], x + 2)


def test_a_loop_of_no_step_leaves_open_how_many_slices_it_has(tmp_path, opened):
    net = Net()
    x, h, body = net.parameter("x", "?,?,3"), net.parameter("h", "?,3"), net.body()
    part, state = body.parameter("part", "1,?,3"), body.parameter("s", "?,3")
    new = body.result(body.add("Add", [state, body.add("Squeeze", [part, body.const([0])])]))
    maps = sliced("input", 2, part[0], axis=0, start=-1, end=0, stride=-1) + sliced("input", 3, state[0])
    maps += sliced("output", 4, new) + sliced("output", 5, body.result(part), axis=0)
    maps += sliced("output", -1, body.result(body.const(True)), purpose="execution_condition")
    given = [net.const(-1), net.const(False), x, h]
    layer, port = net.loop(body, given, maps, edge(new, state[0]), ["FP32"] * 2, "Loop", "opset5")
    for k in range(2):
        net.result((layer, port + k))
    stepnet.onnx.save(
        stepnet.openvino.load(net.write(tmp_path)),
        tmp_path / "m.onnx",
        (torch.ones(5, 2, 3), torch.ones(2, 3)),
    )
    written = opened(tmp_path / "m.onnx")
    last, joined = written(torch.ones(7, 3, 3), torch.full((3, 3), 4.0))
    assert last.tolist() == [[4] * 3] * 3
    assert joined.shape == (0, 3, 3)
