"""ONNX files that break a rule: an error that names the node, no crash, and nothing of a declared size."""

from __future__ import annotations

import itertools
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import stepnet.onnx  # noqa: E402
from covering import examples  # noqa: E402
from stepnet.errors import IRError  # noqa: E402


def value(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def write(path, nodes, inputs=(), outputs=("y",), constants=(), opset=20, functions=(), imports=("", "my")):
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", list(inputs), made, list(constants))
    model = helper.make_model(graph, ir_version=9, functions=functions)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, opset if not domain else 1) for domain in imports)
    path.write_bytes(model.SerializeToString())
    return path


def node(kind, inputs, outputs=("y",), **attributes):
    return helper.make_node(kind, list(inputs), list(outputs), name="n", **attributes)


def ints(name, *numbers):
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def body(*outputs, inputs=()):
    return helper.make_graph([], "b", list(inputs), [value(name) for name in outputs])


def outside(offset):
    tensor = TensorProto(name="s", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "m.bin"), ("offset", offset), ("length", "8")):
        tensor.external_data.add(key=key, value=text)
    return tensor


def given(nodes, **more):
    return {"nodes": nodes, **more}


def function(kind, domain, imported=None):
    """A function of one node; `imported`: the domain of its operators."""
    domains = [] if imported is None else [helper.make_opsetid(imported, 20 if not imported else 1)]
    return helper.make_function("my", "F", ["a"], ["b"], [node(kind, "a", "b", domain=domain)], domains)


def other(domain, kind, read="x"):
    """A graph of one node, of operators of somebody else."""
    made = body("z")
    made.node.append(helper.make_node(kind, [read], ["z"], name="n", domain=domain))
    return made


def renamed(name):
    """A graph whose node makes what the graph around has."""
    made = body(name)
    made.node.append(node("Abs", ["x"], [name]))
    return made


def twice(made):
    made.attribute.append(made.attribute[0])
    return made


X, TRUTH = value("x", 2, 3), value("c", kind=TensorProto.BOOL)
FOREVER = helper.make_graph(
    [], "b", [value("i", kind=TensorProto.INT64), value("c", kind=TensorProto.BOOL)],
    [value("c", kind=TensorProto.BOOL)],
)  # fmt: skip
SUMS = helper.make_graph([node("Add", "ab", "c")], "b", [value("a", 3), value("b", 4)], [value("c", None)])
TABLES = helper.make_graph([node("Relu", "a", "c")], "b", [value("a", 7, 7)], [value("c", None)])
F = function("Relu", "", "")
READ = {
    "unknown operators": (
        given([node("Foo", "x"), node("Bar", "y", "z")], inputs=[X]),
        r"not read: Bar, Foo\n.*node 0 'n' \(Foo\); node 1 'n' \(Bar\)\n",
    ),
    "unknown operators of others, in bodies": (
        given(
            [node("If", "c", then_branch=other("my", "Relu"), else_branch=other("", "Abs"))],
            inputs=[X, TRUTH],
        ),
        r"not read: my.Relu\n.*node 0 'n' \(If\), then_branch: node 0 'n' \(Relu\)\n",
    ),
    "a value nobody makes": (given([node("Relu", ["z"])], inputs=[X]), "reads 'z', which nothing"),
    "an output nobody makes": (given([], inputs=[X]), "nothing makes the output 'y'"),
    "too few inputs": (given([node("Add", ["x"])], inputs=[X]), r"node 0 'n' \(Add\): has 1 inputs"),
    "an output of around": (
        given([node("If", "c", then_branch=other("", "Abs"), else_branch=body("x"))], inputs=[X, TRUTH]),
        r"\(If\), else_branch: nothing makes the output 'x'\n.*of a graph around\n.*\n.*an Identity node",
    ),
    "a name of around": (
        given([node("If", "c", then_branch=renamed("x"), else_branch=other("", "Abs"))], inputs=[X, TRUTH]),
        r"\(If\), then_branch: node 0 'n' \(Abs\): makes 'x', which is there before it\n.*\n.*of its own",
    ),
    "activations of one direction": (
        given([node("RNN", "xxx", direction="bidirectional", activations=["Tanh"])], inputs=[X]),
        r"activations for each direction\n.*\['Tanh'\]\n.*as many as \['Tanh', 'Tanh'\]",
    ),
    "an old set": (given([node("Relu", ["x"])], inputs=[X], opset=5), "set of operators that is not read"),
    "a direction": (given([node("GRU", "xxx", direction="up")], inputs=[X]), "no such direction"),
    "an activation": (given([node("RNN", "xxx", activations=["Foo"])], inputs=[X]), "no such activation"),
    "a type": (given([node("Cast", "x", to=999)], inputs=[X]), "no such element type"),
    "an attribute": (given([node("Concat", "xx", axis="one")], inputs=[X]), "attribute 'axis' is of another"),
    "no body": (given([node("Scan", "x", num_scan_inputs=1)], inputs=[X]), "the graph 'body' is not there"),
    "scan inputs": (
        given([node("Scan", "x", num_scan_inputs=3, body=body())], inputs=[X]),
        "num_scan_inputs does not fit",
    ),
    "features": (
        given([node("LSTM", "xxx")], inputs=[X]),
        r"\(LSTM\): X must be \[steps, batch, features\]\n.*\[2, 3\]",
    ),
    "weights": (
        given([node("GRU", "xww", hidden_size=2)], inputs=[value("x", "T", "N", 3), value("w", 1, 6, 2)]),
        r"\(GRU\): W must be \[directions, 3\*hidden, features\]\n.*\[1, 6, 2\]\n.*\[1, 6, 3\]",
    ),
    "shapes": (
        given([node("Add", "xz")], inputs=[X, value("z", 4)]),
        r"'n' \(Add\).*\[2, 3\], float32\[4\]",
    ),
    "types": (
        given([node("Add", "xz")], inputs=[X, value("z", 3, kind=TensorProto.INT64)]),
        r"inconsistent type .*\n.*float32\[2, 3\], int64\[3\]",
    ),
    "another attribute": (
        given([node("Relu", "x", alpha=1.0)], inputs=[X]),
        "no attribute of this name\n.*alpha",
    ),
    "more outputs": (
        given([node("Relu", "x", "yz")], inputs=[X]),
        "has more outputs than its operator\n.*2\n.*1",
    ),
    "a set of the future": (
        given([node("Relu", "x")], inputs=[X], opset=99),
        "is not known\n.*99\n.*at most",
    ),
    "nothing given": (given([node("Relu", "x")], inputs=[X], outputs=()), "the graph has no outputs"),
    "twice": (
        given([node("Relu", "x"), node("Tanh", "x")], inputs=[X]),
        r"node 1 'n' \(Tanh\): makes 'y', which is there before it",
    ),
    "a size below zero": (
        given([node("Relu", "x")], inputs=[X], constants=[TensorProto(name="s", data_type=1, dims=[-1])]),
        r"constant 's': a size is negative\n.*-1",
    ),
    "inputs of one name": (given([node("Relu", "x")], inputs=[X, X]), "two inputs have the name 'x'"),
    "an attribute twice": (
        given([twice(node("LeakyRelu", "x", alpha=0.1))], inputs=[X]),
        r"'n' \(LeakyRelu\): has the attribute 'alpha' twice",
    ),
    "a hidden size of another type": (
        given([node("GRU", "xxx", hidden_size="two")], inputs=[X]),
        r"'n' \(GRU\): attribute 'hidden_size' is of another type\n.*STRING\n.*INT",
    ),
    "an input left out": (
        given([node("SequenceInsert", ["s", ""])], inputs=[value("s")]),
        r"'n' \(SequenceInsert\): the input 'tensor' is left out",
    ),
    "a type of an input": (
        given([node("Relu", "x")], inputs=[value("x", 2, kind=77)]),
        "'x' is of no el.*77",
    ),
    "a type of a constant": (
        given([node("Relu", "x")], inputs=[X], constants=[TensorProto(name="s", data_type=99, dims=[1])]),
        r"constant 's' is of no element type that is known\n.*99",
    ),
    "outside, before its file": (
        given([node("Relu", "x")], inputs=[X], constants=[outside("-5")]),
        "constant 's': the offset in its file is no number of bytes\n.*-5",
    ),
    "outside, nowhere": (
        given([node("Relu", "x")], inputs=[X], constants=[outside("x")]),
        "constant 's': the offset in its file is no number of bytes\n.*x",
    ),
    "a circle": (
        given([node("Add", "xb", "a"), node("Relu", "a", "b")], inputs=[X], outputs=["a"]),
        r"'n' \(Add\): reads 'b', which is made of what it gives itself\n.*input 1, of node 1 'n' \(Relu\)",
    ),
    "an order": (
        given([node("Relu", "b"), node("Relu", "x", "b")], inputs=[X]),
        r"reads 'b', which nothing before it makes\n.*input 0, of node 1 .*\n.*\n.*in the order",
    ),
    "an order of around": (
        given(
            [
                node("If", "c", then_branch=other("", "Abs", "w"), else_branch=other("", "Abs")),
                node("Abs", "x", "w"),
            ],
            inputs=[X, TRUTH],
        ),
        r"then_branch: node 0 'n' \(Abs\): reads 'w', which nothing before it makes\n.*of a graph around",
    ),
    "no set": (
        given([node("Relu", "x")], inputs=[X], imports=["my"]),
        "no version of ONNX's operators .*\n.*my\n",
    ),
    "few bytes": (
        given(
            [node("Relu", "x")],
            inputs=[X],
            constants=[TensorProto(name="s", data_type=1, dims=[2, 2], raw_data=b"12")],
        ),
        r"constant 's': does not fill its shape\n.*2 bytes\n.*16 for FLOAT\[2, 2\]",
    ),
    "few numbers": (
        given(
            [node("Relu", "x")],
            inputs=[X],
            constants=[TensorProto(name="s", data_type=7, dims=[2], int64_data=[3])],
        ),
        r"constant 's': does not fill its shape\n.*1 numbers of int64_data\n.*2 for INT64\[2\]",
    ),
    "a constant of another shape": (
        given([node("Relu", "x")], inputs=[X, value("s", "N", 3)], constants=[ints("s", 1, 2)]),
        r"constant 's' has another shape than the input of its name\n.*\[2\]\n.*\[\?, 3\]",
    ),
    "a scan of one number": (
        given([node("Scan", "x", num_scan_inputs=1, body=TABLES)], inputs=[value("x")]),
        r"'n' \(Scan\): input 0 has no axis to cut\n.*\[\]",
    ),
    "a function twice": (
        given([node("F", "x", domain="my")], inputs=[X], functions=[F, F]),
        "two functions have the name 'my.F'",
    ),
    "a function of no import": (
        given([node("F", "x", domain="my")], inputs=[X], functions=[F], imports=[""]),
        r"node 0 'n' \(F\): the domain 'my' of 'F' is not imported\n.*''\n.*'my'",
    ),
    "a set that a function does not import": (
        given([node("F", "x", domain="my")], inputs=[X], functions=[function("Relu", "")]),
        r"function 'F': node 0 'n' \(Relu\): the domain '' of 'Relu' is not imported",
    ),
    "a function of itself": (
        given([node("F", "x", domain="my")], inputs=[X], functions=[function("F", "my", "my")]),
        r"function 'F': calls itself, by itself or by others\n.*'my.F'",
    ),
    "a rank of a body": (
        given([node("Scan", "x", num_scan_inputs=1, body=TABLES)], inputs=[X]),
        r"'n' \(Scan\): its body declares 'a' of another rank\n.*2\n.*1",
    ),
    "texts": (
        given([node("Relu", "x")], inputs=[value("x", 2, kind=TensorProto.STRING)]),
        "'x': torch has no such element type",
    ),
    "a tensor for a sequence": (
        given([node("ConcatFromSequence", "x", axis=0)], inputs=[X]),
        r"'n' \(ConcatFromSequence\): 'x' is no sequence",
    ),
    "in a body": (
        given([node("Scan", "xz", num_scan_inputs=2, body=SUMS)], inputs=[X, value("z", 2, 4)]),
        r"'n' \(Scan\), body: node 0 'n' \(Add\): ",
    ),
    "a loop for ever": (
        given([node("Loop", ["", ""], (), body=FOREVER), node("Relu", "x")], inputs=[X]),
        "'n' .Loop.: never ends\n.*no trip count, and the condition 'c'.*\n.*a trip count",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_refused_when_read(name, tmp_path):
    made, text = READ[name]
    with pytest.raises(IRError, match=rf"(?s)m\.onnx.*{text}"):
        stepnet.onnx.load(write(tmp_path / "m.onnx", **made))


PAIRS = helper.make_graph([node("Add", "ab", "c")], "b", [value("a", 3), value("b", 3)], [value("c", 3)])
RUN = {
    "a shape": (given([node("Reshape", "xs")], constants=[ints("s", 7, 7)]), r"\[2, 3\] cannot .*49"),
    "two open sizes": (given([node("Reshape", "xs")], constants=[ints("s", -1, -1)]), "one size of -1"),
    "types of a sequence": (
        given([node("SequenceConstruct", "xs")], constants=[ints("s", 7)]),
        r"different element types\n.*float32, int64",
    ),
    "a large tensor": (given([node("Expand", "xs")], constants=[ints("s", 10**9, 10**6, 1, 1)]), "too large"),
    "a large constant": (
        given([node("ConstantOfShape", "s"), node("Relu", "x", "z")], constants=[ints("s", 10**12)]),
        "too large",
    ),
    "a large padding": (
        given([node("Pad", "xs")], constants=[ints("s", 0, 0, 10**12, 0)]),
        "too large",
    ),
    "many copies": (given([node("Tile", "xs")], constants=[ints("s", 10**9, 10**9)]), "too large"),
    "a place": (given([node("Gather", "xs")], constants=[ints("s", 9)]), r"\(Gather\)"),
    "steps of a sequence": (
        given(
            [node("Unsqueeze", ["x", "a"], "z"), node("RNN", ["z", "w", "w", "", "l"], hidden_size=3)],
            constants=[
                ints("a", 0),
                numpy_helper.from_array(np.ones((1, 3, 3), np.float32), "w"),
                numpy_helper.from_array(np.array([1, 2], np.int32), "l"),
            ],
        ),
        r"\(RNN\): sequence_lens does not fit X\n.*\[1, 2\]\n.*0 to 1, the steps of X",
    ),
    "steps of another number": (
        given(
            [node("Scan", "xs", num_scan_inputs=2, body=PAIRS)],
            constants=[numpy_helper.from_array(np.ones((3, 3), np.float32), "s")],
        ),
        r"\(Scan\): what is scanned has different numbers of steps\n.*\[2, 3\]\n",
    ),
    "an axis twice": (given([node("Unsqueeze", "xs")], constants=[ints("s", 1, -3)]), "added twice"),
    "no such axis": (given([node("Unsqueeze", "xs")], constants=[ints("s", 3)]), "outside a tensor of 3"),
    "an axis outside": (
        given([node("Squeeze", "xs")], constants=[ints("s", 9)]),
        "lies outside a tensor of 2",
    ),
    "parts": (
        given([node("Split", "xs", "yz")], constants=[ints("s", 1, 0, 1)]),
        "3 sizes.*2, one for each",
    ),
    "a size to keep": (
        given([node("Reshape", "xs")], constants=[ints("s", 2, 3, 0)]),
        "0 keeps one that is not",
    ),
    **{
        f"a convolution ({wrong})": (
            given(
                [node("Unsqueeze", "xs", "z"), node("Conv", "zw", **{wrong: [3]})],
                constants=[ints("s", 0), numpy_helper.from_array(np.ones((1, 2, 1), np.float32), "w")],
            ),
            text,
        )
        for wrong, text in {
            "pads": "1 pads.*as many",
            "kernel_shape": "not that of the weights",
        }.items()
    },
    "an axis": (given([node("Squeeze", "xs")], constants=[ints("s", 0)]), "must have one element"),
}


@pytest.mark.parametrize("name", RUN)
def test_refused_when_run(name, tmp_path):
    made, text = RUN[name]
    model = stepnet.onnx.load(write(tmp_path / "m.onnx", inputs=[X], **made))
    with pytest.raises(IRError, match=rf"(?s)m\.onnx: node \d 'n'.*{text}"):
        model(torch.ones(2, 3))


def test_numbers_that_do_not_fit_their_shape(tmp_path):
    constant = ints("s", 1, 2)
    constant.dims[:] = [10**9, 10**9]
    with pytest.raises(IRError, match="constant 's'"):
        stepnet.onnx.load(write(tmp_path / "m.onnx", [node("Reshape", "xs")], [X], constants=[constant]))


@pytest.mark.parametrize(
    ("location", "length", "text"),
    [
        ("../w.bin", 8, "lies outside the folder"),
        ("/etc/passwd", 8, "lies outside the folder"),
        ("none.bin", 8, "is not there"),
        ("w.bin", 10**12, "behind the end of its file"),
        ("w.bin", 4, r"does not fill its shape\n.*4 bytes\n.*8 bytes"),
        ("link.bin", 8, "lies outside the folder"),
        ("fifo", 8, "is not there"),
        ("a" * 5000, 8, "a name that none can have\\n.*aaa"),
        ("w\0.bin", 8, "a name that none can have"),
    ],
)
def test_constants_outside_the_file(location, length, text, tmp_path):
    (folder := tmp_path / "model").mkdir()
    (folder / "w.bin").write_bytes(bytes(8))
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    os.mkfifo(folder / "fifo")
    constant = TensorProto(
        name="s", data_type=TensorProto.INT64, dims=[1], data_location=TensorProto.EXTERNAL
    )
    for key, told in {"location": location, "offset": "0", "length": str(length)}.items():
        constant.external_data.add(key=key, value=told)
    reshape = node("Reshape", "xs")
    for nodes, constants, place in (
        ([reshape], [constant], "constant 's'"),
        ([node("Constant", "", "s", value=constant), reshape], [], r"node 0 'n' \(Constant\)"),
        ([node("ConstantOfShape", "x", "y", value=constant)], [], r"node 0 'n' \(ConstantOfShape\)"),
    ):
        path = write(folder / "m.onnx", nodes, [X], constants=constants)
        with pytest.raises(IRError, match=rf"^m\.onnx: {place}: .*{text}"):
            stepnet.onnx.load(path)


def test_constants_outside_the_file_of_a_function(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    text = """<ir_version: 9, opset_import: ["": 18, "my": 1]>
      g (float[2] x) => (float[2] y) { y = my.f(x) }
      <domain: "my", opset_import: ["": 18]> f (u) => (v)
      { c = Constant<value = float[2] {0, 0}>()  v = Add(u, c) }"""
    model = onnx.parser.parse_model(text)
    tensor = model.functions[0].node[0].attribute[0].t
    del tensor.float_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, told in {"location": "w.bin", "offset": "0", "length": "8"}.items():
        tensor.external_data.add(key=key, value=told)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert stepnet.onnx.load(tmp_path / "m.onnx")(torch.zeros(2))[0].tolist() == [1, 2]


SPARSE = {
    "": ([3], [1], [1]),
    "places by axis": ([1, 3], [1, 2], [0, 1]),
    "outside of its size": ([3], [1], [3]),
    "of another shape": ([3], [2], [0, 1]),
    "has 1 numbers for its size": ([2**40], [1], [0]),
}


@pytest.mark.parametrize("wrong", SPARSE)
@pytest.mark.parametrize("inside", [False, True])
def test_sparse_constants(wrong, inside, tmp_path):
    """Constants of a graph and those of nodes, by one place for all axes or one for each."""
    sizes, shape, at = SPARSE[wrong]
    sparse = helper.make_sparse_tensor(
        TensorProto(name="s", data_type=1, dims=[1], float_data=[2.0]),
        TensorProto(data_type=7, dims=shape, int64_data=at),
        sizes,
    )
    nodes = [helper.make_node("Constant", [], ["s"], sparse_value=sparse)] if inside else []
    path = write(tmp_path / "m.onnx", [*nodes, node("Add", ["x", "s"])], [value("x", 1, 3)])
    model = onnx.load(path)
    model.graph.sparse_initializer.extend([] if inside else [sparse])
    onnx.save(model, path)
    if not wrong or wrong == "places by axis":
        assert stepnet.onnx.load(path)(torch.ones(1, 3))[0].tolist() == [[1, 3, 1]]
        return
    with pytest.raises(IRError, match=f"m.onnx: sparse constant 's': .*{wrong}"):
        stepnet.onnx.load(path)


def test_what_is_no_file(tmp_path):
    (tmp_path / "text.onnx").write_text("<xml/>")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("text.onnx", "folder.onnx", "none.onnx"):
        with pytest.raises(IRError, match=rf"{name}: (cannot be read|of a set of operators|breaks a rule)"):
            stepnet.onnx.load(tmp_path / name)


def test_changed_files(tmp_path):
    """What a file says changed, and bytes: a model or an error, of a run, too; `fuzz.py` makes long runs."""
    fuzz = runpy.run_path(str(Path(__file__).with_name("fuzz.py")))
    told = fuzz["fuzz"](examples(500), 7, tmp_path, [*fuzz["written"](), *fuzz["special"]()])
    assert min(told["IRError"], told["model that runs"]) > 0, told


@pytest.mark.parametrize("backend", ["auto", "naive"])
@pytest.mark.parametrize("sizes", [(1, 3), (3,), (4, 3)])
def test_a_state_of_a_scan_keeps_its_shape(sizes, backend, tmp_path):
    names = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("h", "row", "new", "y")]
    grows = (
        node("Concat", ["h", "row"], ["new"], axis=0)
        if sizes == (4, 3)
        else node("Add", ["h", "row"], ["new"])
    )
    steps = helper.make_graph([grows, node("Relu", ["row"])], "b", names[:2], names[2:])
    scan = node("Scan", ["s", "x"], ["last", "y"], num_scan_inputs=1, body=steps)
    path = write(tmp_path / "m.onnx", [scan], [value("s", *sizes), value("x", "T", 2, 3)], ["last", "y"])
    stepnet.set_backend(backend)
    model = stepnet.onnx.load(path)
    with pytest.raises(IRError, match=r"'n' \(Scan\): state 0 changes its shape in step 0\n"):
        model(torch.ones(sizes), torch.ones(2, 2, 3))
    assert model(torch.ones(sizes), torch.ones(0, 2, 3))[0].shape == sizes


OF_VALUES = {
    "SequenceAt.*no such place": (
        [node("SplitToSequence", ["x"], ["s"], keepdims=0), node("SequenceAt", ["s", "i"])], 5, "-2 to 1",
    ),
    "Loop.*to be joined changes its shape in step 1": (
        [node("Loop", ["i", "", "x"], ["z", "y"], body=helper.make_graph(
            [node("Concat", ["v", "v"], ["w"], axis=0), node("Identity", ["c"], ["d"])], "b",
            *([helper.make_tensor_value_info(name, kind, None) for name, kind in names] for names in (
                (("k", 7), ("c", 9), ("v", 1)), (("d", 9), ("w", 1), ("w", 1)),
            )),
        ))], 3, r"\[4, 3\]",
    ),
    "Scan.*'scan_output_axes': 7 lies outside": (
        [node("Scan", ["x"], num_scan_inputs=1, scan_output_axes=[7], body=helper.make_graph(
            [node("Tanh", ["v"], ["w"])], "b",
            *([helper.make_tensor_value_info(name, 1, None)] for name in ("v", "w")),
        ))], 0, "-2 to 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", OF_VALUES)
def test_what_only_a_call_shows_is_told_in_the_words_of_the_file(message, tmp_path):
    nodes, number, expected = OF_VALUES[message]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    path = write(tmp_path / "m.onnx", nodes, [x, value("i", kind=TensorProto.INT64)])
    model = stepnet.onnx.load(path)
    with pytest.raises(IRError, match=rf"'n' \({message}[^\n]*\n.*got.*\n.*expected: {expected}"):
        model(torch.ones(2, 3), torch.tensor(number))


def test_a_state_of_a_scan_keeps_its_type(tmp_path):
    body = "b (float[B] h, float[B] a) => (double[B] n) { n = Cast <to = 11> (h) }"
    head = '<ir_version: 9, opset_import: ["": 17]> '
    scan = f"Scan <num_scan_inputs = 1, body = {body}> (h, x)"
    text = f"g (float[B] h, float[T, B] x) => (double[B] y) {{ y = {scan} }}"
    onnx.save(onnx.parser.parse_model(head + text), tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"\(Scan\): state 0 changes its type in a step\n.*DOUBLE\n.*FLOAT"):
        stepnet.onnx.load(tmp_path / "m.onnx")


def changes(message, path):
    """What a file says: each field left out, there twice, or of another value."""
    for field in message.DESCRIPTOR.fields:
        here, held = f"{path}.{field.name}", message.SerializeToString()
        values = getattr(message, field.name)
        count = len(values) if field.is_repeated else int(message.HasField(field.name))
        for i in range(count) if field.name not in ("doc_string", "raw_data") else ():
            if field.is_repeated:
                del values[i]
            else:
                message.ClearField(field.name)
            yield f"no {here}"
            message.ParseFromString(held)
            values = getattr(message, field.name)
            if field.is_repeated:
                values.append(values[i])
                yield f"two {here}"
                message.ParseFromString(held)
                values = getattr(message, field.name)
            if field.message_type:
                yield from changes(values[i] if field.is_repeated else values, f"{here}[{i}]")
                continue
            for new in (
                (-1, 99)
                if isinstance(values[i] if field.is_repeated else values, (int, float))
                else ("", "x", b"x")
            ):
                try:
                    if field.is_repeated:
                        values[i] = new
                    else:
                        setattr(message, field.name, new)
                except (TypeError, ValueError):  # of no such field
                    continue
                yield f"{here}={new}"
                message.ParseFromString(held)
                values = getattr(message, field.name)


LAWFUL = """<ir_version: 9, opset_import: ["": 18]>
g (float[2,3] s, float[T,2,3] x, bool c) => (float[2,3] last, float[T,2,3] y) {
  last, y = Scan<num_scan_inputs = 1,
                 body = b (float[2,3] h, float[2,3] row) => (float[2,3] n, float[2,3] o) {
    n = If(c) <then_branch = t () => (float[2,3] u) { u = Add(h, row) },
               else_branch = f () => (float[2,3] v) { v = Neg(row) }>  o = Relu(n) }>(s, x) }"""


def test_every_refusal_says_what_it_got_and_what_it_expects(tmp_path, request):
    model, path, refused, silent = onnx.parser.parse_model(LAWFUL), tmp_path / "m.onnx", 0, []
    given = torch.ones(2, 3), torch.ones(4, 2, 3), torch.tensor(True)
    share = 1 if request.config.getoption("exhaustive") else 3
    for change in itertools.islice(changes(model, "model"), 0, None, share):
        path.write_bytes(model.SerializeToString())
        try:
            stepnet.onnx.load(path)(*given)
        except IRError as error:
            refused += 1
            if not re.fullmatch(r"m\.onnx: .+\n  got:      .+\n  expected: .+\n  remedy:   .+", str(error)):
                silent.append(f"{change}: {error}")
    assert refused > 100 // share
    assert not silent, "\n".join(silent)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"m\.onnx: cannot be read: it is a pipe or a device"):
        stepnet.onnx.load(tmp_path / "m.onnx")


def test_a_size_below_zero_is_open(tmp_path):
    model = stepnet.onnx.load(write(tmp_path / "m.onnx", [node("Relu", ["x"])], [value("x", -2, 3)]))
    assert model(torch.ones(4, 3))[0].shape == (4, 3)
