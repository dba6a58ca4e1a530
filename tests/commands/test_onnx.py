"""ONNX models on the command line: run, and converted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from covering import few
from stepnet import Recurrent, cells

pytest.importorskip("onnx_ir")

BACKEND = "auto"


@pytest.fixture
def model(tmp_path):
    import stepnet.onnx

    path = tmp_path / "m.onnx"
    stepnet.onnx.save(Recurrent(cells.MinGRU(3, 4)), path, (torch.randn(4, 2, 3),))
    return path


def test_run(stepnet, model, tmp_path):
    import stepnet as package

    x = torch.randn(5, 2, 3)
    np.save(tmp_path / "x.npy", x.numpy())
    code, out, err = stepnet(
        "run", model, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "y.npz"
    )
    assert (code, err) == (0, "")
    assert "float32[5, 2, 4]" in out
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_array_equal(found[found.files[0]], package.onnx.load(model)(x)[0].numpy())
    code, out, _ = stepnet("run", model, "--random")
    assert (code, "float32[8, 8, 4]" in out) == (0, True)


@pytest.mark.exhaustive  # there and back: above
@pytest.mark.parametrize("new", few(["new.xml", "new.onnx"], ["new.onnx"]))
def test_convert(stepnet, model, tmp_path, new):
    import stepnet as package

    code, out, err = stepnet("convert", model, tmp_path / new)
    assert (code, err) == (0, "")
    assert out.startswith(f"written: {tmp_path / new}")
    read = package.openvino.load if new.endswith("xml") else package.onnx.load
    x = torch.randn(3, 5, 3)
    expected, found = package.onnx.load(model)(x), read(tmp_path / new)(x=x)
    torch.testing.assert_close(found, expected)


def test_there_and_back(stepnet, model, tmp_path):
    """ONNX to OpenVINO IR, that to ONNX: the same numbers, sizes and names."""
    import stepnet as package

    for old, new in ((model, "a.xml"), (tmp_path / "a.xml", "b.onnx")):
        assert stepnet("convert", old, tmp_path / new)[0] == 0
    first, last = (package.onnx.load(path) for path in (model, tmp_path / "b.onnx"))
    assert [str(i) for i in last.inputs] == [str(i) for i in first.inputs]
    x = torch.randn(3, 5, 3)
    for a, b in zip(last(x), first(x), strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit(stepnet, model, tmp_path):
    for arguments, text in (
        (("convert", model, tmp_path / "n.xml", "--unfuse"), "--unfuse is for OpenVINO IR"),
        (("convert", model, tmp_path / "n.xml", "--shape", "z=1"), "has no such input"),
        (("run", model, "--bin", "w.bin"), "is for OpenVINO IR"),
        (("run", model), "input 'x' is not given"),
        (("convert", "m.xml", tmp_path / "n.onnx"), "m.xml: cannot be read"),
        (("convert", "m.xml", tmp_path / "n.xml", "--shape", "x=1"), "--shape is for a model that is ONNX"),
        (("run", tmp_path / "none.onnx"), "cannot be read"),
        (("inspect", model, "--shape", f"x={10**17},{10**3},3"), "input 'x' cannot be made: it is too large"),
        (("inspect", model, "--shape", f"x={10**9},{10**7},3"), "input 'x' cannot be made: it is too large"),
    ):
        code, out, err = stepnet(*arguments)
        assert (code, out) == (2, "")
        assert text in " ".join(err.split())


def test_compare(stepnet, model):
    pytest.importorskip("onnxruntime")
    code, out, err = stepnet("compare", model, "--rounds", 2, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["agree"] is True
    assert found["loops"][0]["compiled"] is True
    assert {"stepnet", "onnxruntime"} <= set(found)
    assert "ONNX Runtime (2 runs each" in stepnet("compare", model, "--rounds", 2).out


def test_inspect(stepnet, model, tmp_path):
    code, out, err = stepnet("inspect", model, "--shape", "x=5,2,3", "--svg", tmp_path / "m.svg")
    assert (code, err) == (0, "")
    assert "operator set 20" in out
    assert "compiled: " in out
    assert (tmp_path / "m.svg").read_text().startswith("<svg")
    found = json.loads(stepnet("inspect", model, "--shape", "x=5,2,3", "--json").out)
    (scan,) = [layer for layer in found["net"]["layers"] if layer["type"] == "Scan"]
    assert (scan["loop"]["steps"], scan["loop"]["compiled"]) == (5, True)
    assert [socket["value"]["shape"] for socket in found["inputs"]] == [[-1, -1, 3]]
    weights = sum(p.numel() for p in cells.MinGRU(3, 4).parameters())
    assert 0 <= found["parameters"] - weights < 4  # and numbers that its step writes
    products = [layer for layer in found["net"]["layers"] if layer["type"] in ("Gemm", "MatMul")]
    assert sum(layer["cost"]["flops"] for layer in products) == 2 * 3 * 8 * 5 * 2  # outside, for all steps
    assert stepnet("inspect", model, "--bin", "w.bin").code == 2


def test_inspect_of_a_window_of_one_axis(stepnet, tmp_path):
    from stepnet.onnx import save

    save(torch.nn.MaxPool1d(3), tmp_path / "p.onnx", torch.randn(2, 4, 9))
    (tmp_path / "p.onnx").rename(tmp_path / "P.ONNX")
    code, out, err = stepnet("inspect", tmp_path / "P.ONNX", "--json", "--shape", "input=2,4,9")
    assert (code, err) == (0, "")
    (pool,) = [layer for layer in json.loads(out)["net"]["layers"] if layer["type"] == "MaxPool"]
    assert pool["cost"]["flops"] == 3 * 2 * 4 * 3


def test_what_crosses_the_border_of_a_loop(stepnet, tmp_path):
    """A Loop that carries a sum and joins its tanh; a Scan as it was before opset 9, with lengths."""
    onnx = pytest.importorskip("onnx")
    node, graph = onnx.helper.make_node, onnx.helper.make_graph
    whole, truth = onnx.TensorProto.INT64, onnx.TensorProto.BOOL

    def value(name, shape=(2, 3), type=onnx.TensorProto.FLOAT):
        return onnx.helper.make_tensor_value_info(name, type, shape)

    def inspected(graph, opset):
        opsets = [onnx.helper.make_opsetid("", opset)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "loop.onnx")
        found = json.loads(stepnet("inspect", tmp_path / "loop.onnx", "--json").out)
        (loop,) = (layer["loop"] for layer in found["net"]["layers"] if layer["loop"])
        ways = [[port["way"] for port in loop[side]["body"]] for side in ("takes", "gives")]
        edges = [(edge["result"], edge["parameter"]) for edge in loop["back_edges"]]
        runs = {inner["type"]: inner["when"] for inner in loop["bodies"]["body"]["layers"]}
        return ways, edges, (runs["Add"], runs["Tanh"]), loop["steps"]

    nodes = [node("Add", ["s", "x"], ["s2"]), node("Tanh", ["s2"], ["y"])]
    given = [value("n", (), whole), value("go", (), truth), value("s")]
    gives = [value("on", (), truth), value("s2"), value("y")]
    body = graph([*nodes, node("Identity", ["go"], ["on"])], "body", given, gives)
    count = onnx.numpy_helper.from_array(np.array(4), "count")
    loop = node("Loop", ["count", "", "x"], ["last", "ys"], body=body)
    outputs = [value("last"), value("ys", (None, 2, 3))]
    ways, edges, runs, _ = inspected(graph([loop], "g", [value("x")], outputs, [count]), 17)
    assert ways == [["iteration", "condition", "state"], ["condition", "last", "joined"]]
    assert (edges, runs) == ([("s2", "s")], ("step", "rows"))

    body = graph(nodes, "body", [value("s"), value("x")], [value("s2"), value("y")])
    scan = node("Scan", ["", "h", "xs"], ["last", "ys"], body=body, num_scan_inputs=1)
    ends = [
        [value(name, (1, 2, 3)), value(rows, (1, 5, 2, 3))] for name, rows in (("h", "xs"), ("last", "ys"))
    ]
    ways, edges, runs, steps = inspected(graph([scan], "g", *ends), 8)
    assert ways == [["state", "slice"], ["last", "joined"]]
    assert (edges, runs, steps) == ([("s2", "s")], ("step", "rows"), 5)


def test_lists_of_tensors_and_an_input_called_self(stepnet, tmp_path):
    import onnx_ir as ir

    x = ir.val("self", ir.DataType.FLOAT, ["N", 3])
    y = ir.Node(
        "",
        "SequenceConstruct",
        [x, x],
        outputs=[ir.val("y", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))],
    )
    graph = ir.Graph([x], y.outputs, nodes=[y], opset_imports={"": 17}, name="g")
    ir.save(ir.Model(graph, ir_version=8), tmp_path / "m.onnx")
    code, out, err = stepnet("run", tmp_path / "m.onnx", "--random", "--output", tmp_path / "y.npz")
    assert (code, err) == (0, "")
    assert "y[1] " in out
    with np.load(tmp_path / "y.npz") as found:
        assert {name: found[name].shape for name in found} == {"y[0]": (8, 3), "y[1]": (8, 3)}
    code, _, err = stepnet("convert", tmp_path / "m.onnx", tmp_path / "n.onnx")
    assert (code, err) == (0, "")
    code, out, err = stepnet("inspect", tmp_path / "n.onnx", "--json")
    assert (code, [i["name"] for i in json.loads(out)["inputs"]], err) == (0, ["self"], "")
    pytest.importorskip("onnxruntime")
    code, out, _ = stepnet("compare", tmp_path / "m.onnx", "--rounds", 1, "--json")
    assert (code, [o["output"] for o in json.loads(out)["outputs"]]) == (0, ["y[0]", "y[1]"])


@pytest.mark.parametrize("command", ["inspect", "run", "convert"])
def test_an_input_is_not_made_of_a_declared_size(stepnet, tmp_path, command, monkeypatch):
    import onnx_ir as ir

    x = ir.val("x", ir.DataType.FLOAT, [2**31 - 1, "N"])
    y = ir.Node("", "Tanh", [x], outputs=[ir.val("y")])
    graph = ir.Graph([x], y.outputs, nodes=[y], opset_imports={"": 17}, name="g")
    ir.save(ir.Model(graph, ir_version=8), tmp_path / "m.onnx")
    for name in ("zeros", "randn"):
        monkeypatch.setattr(torch, name, lambda *_, device=None, **__: pytest.fail("that much memory"))
    last = {"inspect": [], "run": ["--random"], "convert": [tmp_path / "n.onnx"]}
    code, _, err = stepnet(command, tmp_path / "m.onnx", *last[command])
    if command == "inspect":
        assert (code, err) == (0, "")
    else:
        assert code == 2
        assert "input 'x' cannot be made: it is too large" in err
