"""ONNX files read as torch modules: against ONNX Runtime, and against what was written."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import stepnet
from covering import every, few
from saved_modules import plain_loops
from stepnet import cells

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402
from stepnet.report.inspect import inspect_model  # noqa: E402

F, H = 3, 4
CELLS = {
    "LSTM": lambda: cells.LSTM(F, H),
    "GRU": lambda: cells.GRU(F, H),
    "MinGRU": lambda: cells.MinGRU(F, H),
}
KNOWN = ("LSTM", "GRU", "RNN")


def in_runtime(path, *inputs):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return [torch.from_numpy(out) for out in session.run(None, dict(zip(names, inputs, strict=True)))]


def check(path, *inputs, tolerance=1e-5):
    """What is read is what ONNX Runtime runs, by generated code and by the plain loop."""
    model = stepnet.onnx.load(path)
    expected = in_runtime(path, *inputs)
    for found in (model(*inputs), _plainly(model, inputs)):
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    return model


def _plainly(model, inputs):
    with plain_loops():
        return model(*inputs)


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("name", few(CELLS, ["GRU", "MinGRU"]))
def test_written_and_read(name, reverse, tmp_path):
    """The same values at any size, and the same gradients."""
    module = stepnet.Recurrent(CELLS[name](), reverse=reverse)
    stepnet.onnx.save(module, tmp_path / "m.onnx", (torch.randn(4, 2, F),))
    model = stepnet.onnx.load(tmp_path / "m.onnx", trainable=True)
    for steps, batch in ((5, 3), (1, 1), (7, 1)):
        x = torch.randn(steps, batch, F, requires_grad=True)
        y, state = module(x)
        expected = [y, *(state if isinstance(state, tuple) else [state])]
        found = list(model(x))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(sum(v.square().sum() for v in out), x)[0] for out in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    assert [report.compiled for report in model.loops] == [True] * (name not in KNOWN)
    model(torch.randn(4, 2, F))[0].sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_cell_follows_its_weights_between_calls_without_gradients(tmp_path):
    stepnet.onnx.save(stepnet.Recurrent(cells.LSTM(F, H)), tmp_path / "m.onnx", (torch.randn(4, 2, F),))
    model, x = stepnet.onnx.load(tmp_path / "m.onnx", trainable=True), torch.randn(5, 2, F)

    def check_now():
        fresh = stepnet.onnx.load(tmp_path / "m.onnx", trainable=True)
        fresh.load_state_dict(model.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(model(x)[0], fresh(x)[0])

    check_now()
    check_now()
    model(x)[0].sum().backward()
    torch.optim.SGD(model.parameters(), 0.5).step()
    check_now()
    for parameter in model.parameters():  # as `to` and `double` do
        parameter.data = parameter.data * 0.5
    check_now()
    twice = {name: 2 * value.detach() for name, value in model.named_parameters()}

    def total(weights):
        return torch.func.functional_call(model, weights, (x,))[0].sum()

    gradients = torch.func.grad(total)(twice)
    assert all(value.abs().sum() > 0 for value in gradients.values())
    model.load_state_dict(twice, strict=False)
    check_now()
    torch.testing.assert_close(total(twice), model(x)[0].sum())


@pytest.mark.parametrize("name", few(CELLS, ["LSTM"]))
def test_lengths(name, tmp_path):
    from stepnet import LoDTensor

    module = stepnet.Recurrent(CELLS[name]())
    x = LoDTensor.from_lengths(torch.randn(9, F), [[4, 2, 3]])
    stepnet.onnx.save(module, tmp_path / "m.onnx", (x,))
    padded = x.to_padded()[0].numpy()
    check(tmp_path / "m.onnx", padded, np.array([4, 2, 3]))
    check(tmp_path / "m.onnx", padded[:1, :2], np.array([2]))


@pytest.mark.exhaustive  # a command does: tests/commands
@pytest.mark.parametrize("name", few(CELLS, ["MinGRU"]))
def test_to_openvino_and_to_onnx_again(name, tmp_path):
    module = stepnet.Recurrent(CELLS[name]())
    example = torch.randn(4, 2, F)
    stepnet.onnx.save(module, tmp_path / "m.onnx", (example,))
    read = stepnet.onnx.load(tmp_path / "m.onnx").eval()
    stepnet.openvino.save(read, tmp_path / "m.xml", (example,))
    stepnet.onnx.save(read, tmp_path / "again.onnx", (example,))
    kinds = [
        [n.op_type for n in onnx.load(tmp_path / file).graph.node if n.op_type in (*KNOWN, "Scan", "Loop")]
        for file in ("m.onnx", "again.onnx")
    ]
    assert kinds[0] == kinds[1]
    x = torch.randn(6, 3, F)
    expected = list(read(x))
    others = (stepnet.openvino.load(tmp_path / "m.xml")(x), in_runtime(tmp_path / "again.onnx", x.numpy()))
    for found in others:
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def node_model(path, kind, inputs, outputs, opset=20, **attributes):
    """A model of one node; `None` is an input that is not connected."""
    names = [f"i{k}" if value is not None else "" for k, value in enumerate(inputs)]
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in zip(names, inputs, strict=True)
        if v is not None
    ]
    outs = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(kind, names, outs, name="the node", **attributes)
    made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outs]
    graph = helper.make_graph([node], "g", values, made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return [value for value in inputs if value is not None]


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ASKED = {
    "plain": {},
    "reverse": {"direction": "reverse"},
    "both": {"direction": "bidirectional"},
    "lengths": {"lengths": True},
    "both with lengths": {"direction": "bidirectional", "lengths": True},
    "clip": {"clip": 0.3},
    "no bias": {"bias": False},
    "first states": {"first": True, "direction": "bidirectional"},
}
ONLY = {
    "LSTM": {
        "peepholes": {"peepholes": True, "direction": "bidirectional", "first": True},
        "coupled": {"input_forget": 1},
        "activations of LSTM": {"activations": ["HardSigmoid", "Relu", "Softsign"], "activation_alpha": [0.3],
                        "activation_beta": [0.4]},
    },
    "GRU": {
        "before reset": {"linear_before_reset": 1, "lengths": True},
        "activations of GRU": {"activations": ["Sigmoid", "ScaledTanh"], "activation_alpha": [1.5],
                        "activation_beta": [0.5]},
    },
    "RNN": {"activations of RNN": {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}},
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("kind", "asked"), [(kind, name) for kind in GATES for name in {**ASKED, **ONLY[kind]}]
)
def test_a_cell_of_any_make(kind, asked, tmp_path):
    asked = dict({**ASKED, **ONLY[kind]}[asked])
    d = 2 if asked.get("direction") == "bidirectional" else 1
    lengths, bias = asked.pop("lengths", False), asked.pop("bias", True)
    first, peepholes = asked.pop("first", False), asked.pop("peepholes", False)

    def draw(*shape):
        return np.random.default_rng(3).standard_normal(shape).astype(np.float32) / 2

    steps, batch, gates = 5, 3, GATES[kind] * H
    states = [draw(d, batch, H) if first else None] * (2 if kind == "LSTM" else 1)
    inputs = [
        draw(steps, batch, F), draw(d, gates, F), draw(d, gates, H), draw(d, 2 * gates) if bias else None,
        np.array([5, 1, 3], np.int32) if lengths else None, *states,
        *([draw(d, 3 * H) if peepholes else None] if kind == "LSTM" else []),
    ]  # fmt: skip
    path = tmp_path / "m.onnx"
    given = node_model(path, kind, inputs, 1 + len(states), hidden_size=H, **asked)
    check(path, *given)


def scan_file(path, body_nodes, outputs, constants=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "b", 4])
    h = helper.make_tensor_value_info("h", TensorProto.FLOAT, ["b", 4])
    body = helper.make_graph(
        body_nodes, "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 4]) for n in ("h_in", "x_in")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 4]) for n in ("h_out", "y_out")],
    )  # fmt: skip
    node = helper.make_node("Scan", ["h", "x"], outputs, name="s", body=body, num_scan_inputs=1,
                            scan_input_directions=[1], scan_output_directions=[0])  # fmt: skip
    made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    graph = helper.make_graph(
        [node], "g", [h, x], made, [numpy_helper.from_array(v, n) for n, v in constants]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


STEP = [
    helper.make_node("MatMul", ["h_in", "w"], ["hw"]),
    helper.make_node("Add", ["hw", "x_in"], ["sum"]),
    helper.make_node("Tanh", ["sum"], ["h_out"]),
    helper.make_node("Mul", ["h_out", "two"], ["y_out"]),
]
OUTER = (("w", np.eye(4, dtype=np.float32) / 2), ("two", np.array(2, np.float32)))


def test_a_scan_reads_what_stands_around_it(tmp_path):
    scan_file(tmp_path / "m.onnx", STEP, ["last", "y"], OUTER)
    model = check(tmp_path / "m.onnx", *(np.random.rand(*s).astype(np.float32) for s in ((3, 4), (6, 3, 4))))
    assert [report.compiled for report in model.loops] == [False]  # the plain loop was the last to run
    model(torch.zeros(3, 4), torch.zeros(6, 3, 4))
    assert [report.compiled for report in model.loops] == [True]
    none = model(torch.ones(3, 4), torch.zeros(0, 3, 4))
    assert none[0].tolist() == [[1.0] * 4] * 3


def test_the_batch_stands_behind_an_axis_of_one(tmp_path):
    """As in the Scans that are written here: its rows are the rows of the compiled loop."""
    from stepnet.watchers import watched

    stepnet.onnx.save(stepnet.Recurrent(cells.SLSTM(F, H)), tmp_path / "m.onnx", (torch.randn(4, 2, F),))
    model, seen = stepnet.onnx.load(tmp_path / "m.onnx"), []
    with watched(lambda loop, feeds, **_: seen.append([feeds[p.source].shape[0] for p in loop.merged])):
        model(torch.randn(5, 3, F))
    assert seen == [[3, 3, 3, 3]]


def test_trained_and_changed(tmp_path):
    """A constant that is trained is read anew at each call; a copy has its own."""
    scan_file(tmp_path / "m.onnx", STEP, ["last", "y"], OUTER)
    model = stepnet.onnx.load(tmp_path / "m.onnx", trainable=True)
    h, x = torch.ones(2, 4), torch.randn(5, 2, 4)
    twin, before = copy.deepcopy(model), model(h, x)[1]
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model(h, x)[1].square().sum().backward()
    optimizer.step()
    assert not torch.allclose(model(h, x)[1], before)
    torch.testing.assert_close(twin(h, x)[1], before)
    with plain_loops():
        torch.testing.assert_close(model(h, x)[1], model(h, x)[1])
    other = stepnet.onnx.load(tmp_path / "m.onnx", trainable=True)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(h, x)[1], model(h, x)[1])
    wide = other.double()(h.double(), x.double())[1]
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), model(h, x)[1], rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive  # the commands convert one
def test_a_model_of_torchs_own(tmp_path):
    """Two layers, two directions, and what stands around them, as torch.nn has it."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = stepnet.nn.LSTM(F, H, num_layers=2, bidirectional=True)
            self.head = nn.Sequential(nn.Linear(2 * H, 5), nn.LayerNorm(5), nn.GELU())

        def forward(self, x):
            y, (h, _) = self.rnn(x)
            return torch.log_softmax(self.head(y), -1), h

    stepnet.onnx.save(Tagger().eval(), tmp_path / "m.onnx", (torch.randn(4, 2, F),))
    for steps, batch in ((5, 3), (1, 1)):
        check(tmp_path / "m.onnx", np.random.rand(steps, batch, F).astype(np.float32))


def test_inputs_that_do_not_fit(tmp_path):
    scan_file(tmp_path / "m.onnx", STEP, ["last", "y"], OUTER)
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    h, x = torch.zeros(3, 4), torch.zeros(6, 3, 4)
    for args, kwargs, text in (
        ((h,), {}, "is not given input 'x'"),
        ((h, x, x), {}, "has 2 inputs"),
        ((h,), {"z": x}, "has no input 'z'"),
        ((h,), {"h": x}, "is given input 'h' twice"),
        ((h, x.double()), {}, "input 'x' does not fit"),
        ((h, x[0]), {}, "input 'x' does not fit"),
        ((h, [1]), {}, "input 'x' must be a tensor"),
        ((h, torch.zeros(6, 2, 4)), {}, r"\(Scan\)"),
    ):
        with pytest.raises(IRError, match=text):
            model(*args, **kwargs)
    assert torch.equal(model(x=x, h=h)["y"], model(h, x)[1])


def test_a_body_that_cuts_the_sizes_that_it_reads(tmp_path):
    """As padding in a step is written: it is compiled, and can be written again."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[T, B, 3] x, float[B, 3] h0) => (float[T, B, 3] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, float nothing = {0}>
        { last, y = Scan<num_scan_inputs = 1, body = b (float[B, 3] h, float[B, 3] r)
            => (float[B, 3] n, float[B, 3] o) {
            shape = Shape(h) rows = Slice(shape, zero, one, zero, one) size = Concat<axis = 0>(rows, one)
            column = Expand(nothing, size) moved = Concat<axis = 1>(column, h)
            cut = Slice(moved, zero, three, one, one) sum = Add(cut, r) n = Tanh(sum) o = Identity(n)
        }>(h0, x) }""")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    given = np.random.default_rng(0).standard_normal((2, 5, 4, 3)).astype(np.float32)
    read = check(tmp_path / "m.onnx", given[0], given[1][0])
    read(given[0], given[1][0])
    assert all(report.compiled for report in read.loops), read.loops
    stepnet.onnx.save(read, tmp_path / "again.onnx", (torch.ones(2, 3, 3), torch.ones(3, 3)))


@pytest.mark.parametrize(("kind", "suffix"), every(2, [("onnx", "m.onnx"), ("openvino", "m.xml")]))
def test_a_read_model_as_the_step_of_a_recurrence_is_compiled_and_follows_its_weights(kind, suffix, tmp_path):
    """Its code is not walked: that ended at `sys.modules`, after half a second in each call."""
    cell = nn.GRUCell(3, 4).eval()
    files = pytest.importorskip(f"stepnet.{kind}")
    files.save(cell, path := tmp_path / suffix, (torch.randn(2, 3), torch.randn(2, 4)))
    model = files.load(path, trainable=True)
    x, h = torch.randn(5, 2, 3), torch.zeros(2, 4)

    def step(row, h):
        (h,) = model(row, h)
        return h, h

    def both():
        found = [stepnet.recurrent(step, x, h, backend=backend)[0] for backend in ("eager", "naive")]
        torch.testing.assert_close(*found)

    both()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    both()
    hook = model.register_forward_hook(lambda module, given, out: [out[0] * 2])
    both()
    hook.remove()
    both()


def test_what_is_made_as_often_as_a_size_that_is_open_leaves_it_open(tmp_path):
    """As torch's exporter writes `pack_padded_sequence`."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (int64[N] x) => (int64[M] y) {
        n = Shape(x) z = ConstantOfShape <value: tensor = int64[1] {0}> (n) y = Add(x, z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    stepnet.onnx.save(stepnet.onnx.load(tmp_path / "m.onnx"), tmp_path / "n.onnx", torch.arange(2))
    assert stepnet.onnx.load(tmp_path / "n.onnx").inputs[0].shape == (-1,)


def test_no_whole_numbers_have_the_sizes_that_were_asked_for(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (int64[N,4] y) {
        n = Shape(x) y = ConstantOfShape <value: tensor = int64[1] {1}> (n) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert stepnet.onnx.load(tmp_path / "m.onnx")(torch.ones(0, 4))[0].shape == (0, 4)


DEFAULTS = """<ir_version: 9, opset_import: ["": 18]>
    g (float[T,4] x, float[4] w, int64[2] s, int64 n) => (float[N,M] y) {
    c = Constant<value = int64 {1}>()  t = Cast<to = 9>(c)
    l = Loop(n, t, x) <body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] z)
    { z = Mul(a, w)  on = Identity(go) }>  y = Reshape(l, s) }"""


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "INT8", "BOOL"])
def test_a_constant_begins_a_line_of_the_cache(kind, tmp_path):
    names = [f"w{k}" for k in range(8)]  # numpy's memory begins anywhere: few of eight would by chance
    values = np.arange(3 * 700).reshape(3, 700) % 2
    kind, path = getattr(TensorProto, kind), tmp_path / "m.onnx"
    weights = [helper.make_tensor(name, kind, values.shape, values.ravel()) for name in names]
    made = [helper.make_tensor_value_info(f"{name}_out", kind, values.shape) for name in names]
    nodes = [helper.make_node("Identity", [name], [out.name]) for name, out in zip(names, made, strict=True)]
    graph = helper.make_graph(nodes, "g", [], made, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    found = list(stepnet.onnx.load(path).state_dict().values())
    assert len(found) == 8
    for each in found:
        assert each.data_ptr() % 64 == 0
        assert torch.equal(each.long(), torch.from_numpy(values))


@pytest.mark.parametrize("version", [3, 9])
@plain_loops()
def test_constants_that_are_inputs_are_defaults(version, tmp_path):
    """As in ONNX Runtime: since version 4 of the format a call may give others, by name."""
    proto = parser.parse_model(DEFAULTS)
    own = {"w": np.array([1, 2, 3, 4], np.float32), "s": np.array([2, -1]), "n": np.array(2)}
    proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in own.items())
    proto.ir_version = version
    onnx.save(proto, tmp_path / "m.onnx")
    model, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.randn(6, 4)
    assert [s.name for s in model.inputs] == ["x"]
    assert [s.name for s in model.defaults] == ([*own] if version > 3 else [])
    if version > 3:
        shown = inspect_model(tmp_path / "m.onnx")
        assert [(s.name, s.value.shape) for s in shown.defaults] == [("w", (4,)), ("s", (2,)), ("n", ())]
        assert re.search(r"default +w +float32\[4\]", str(shown))
    torch.testing.assert_close(model(x)[0], (x * torch.tensor(own["w"]) ** 2).reshape(2, -1))
    if version == 3:
        with pytest.raises(IRError, match="no input 'w'"):
            model(x, w=torch.ones(4))
        return
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    given = {"w": torch.randn(4, requires_grad=True), "s": torch.tensor([-1, 8]), "n": torch.tensor(3)}
    for names in ("w", "s", "n", "wsn", ""):
        others = {name: given[name] for name in names}
        fed = {name: value.detach().numpy() for name, value in {"x": x, **others}.items()}
        for again in (model, copy.deepcopy(model)):
            torch.testing.assert_close(
                again(x, **others)[0].detach(), torch.tensor(session.run(None, fed)[0])
            )
    model(x, **given)[0].sum().backward()
    torch.testing.assert_close(given["w"].grad, 3 * given["w"].detach() ** 2 * x.sum(0))
    with pytest.raises(IRError, match="input 'w' does not fit"):
        model(x, w=torch.ones(5))
