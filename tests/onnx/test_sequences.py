"""Sequences cut from an axis that stays open: elements are taken out, put in, read and joined in files that
take any number of them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnx_ir")
import onnx
import onnx.parser

import stepnet.onnx
import stepnet.openvino
from covering import few
from file_formats import share_traces
from stepnet.errors import IRError
from torch_since import torch_since

since = torch_since("2.13", "its export fixes sizes that are computed with")

HEAD = '<ir_version: 9, opset_import: ["": 18]> g (float[T,B,4] x) => (float[N,M,K] y) '
NUMBERS = """zero = Constant<value = int64 {0}>()  one = Constant<value = int64 {1}>()
    two = Constant<value = int64 {2}>()
    last = Constant<value = int64 {-1}>()  axes = Constant<value = int64[1] {0}>()  yes = Cast<to = 9>(one)
    row = ReduceMax<keepdims = 0>(x, axes)  block = ReduceMax<keepdims = 1>(x, axes)
    ns = Shape<start = 0, end = 1>(x)  n = Squeeze(ns)  middle = Div(n, two)
"""
BLOCKS, ROWS = "q = SplitToSequence<axis = 0>(x, one)", "q = SplitToSequence<axis = 0, keepdims = 0>(x)"
JOINED, STACKED = "y = ConcatFromSequence<axis = 0>(r)", "y = ConcatFromSequence<axis = 0, new_axis = 1>(r)"
LOOP = """e = SequenceEmpty()  c = SequenceLength(q)
    l, h = Loop(c, yes, e, row) <body = b (int64 i, bool c0, seq(float[B,4]) s, float[B,4] h0) =>
        (bool c1, seq(float[B,4]) s1, float[B,4] h1) { c1 = Identity(c0)  a = SequenceAt(q, i)
        u = Add(a, h0)  h1 = Tanh(u)  s1 = SequenceInsert(s, h1) }> """
ADDED = """e = SequenceEmpty()  c = SequenceLength(q)
    r = Loop(c, yes, e) <body = b (int64 i, bool c0, seq(float[1,B,4]) s) => (bool c1, seq(float[1,B,4]) s1)
        { c1 = Identity(c0)  a = SequenceAt(q, i)  u = Tanh(a)  s1 = SequenceInsert(s, u) }> """
GRAPHS = {
    "without the first": f"{BLOCKS}  r = SequenceErase(q, zero)  {JOINED}",
    "without the last": f"{BLOCKS}  r = SequenceErase(q)  {JOINED}",
    "without one from the end": f"{ROWS}  r = SequenceErase(q, last)  {STACKED}",
    "without one in a place that is computed": f"{BLOCKS}  r = SequenceErase(q, middle)  {JOINED}",
    "with one at the end": f"{BLOCKS}  r = SequenceInsert(q, block)  {JOINED}",
    "with one in front": f"{ROWS}  r = SequenceInsert(q, row, zero)  {STACKED}",
    "with one before the last": f"{BLOCKS}  r = SequenceInsert(q, block, last)  {JOINED}",
    "with one in a place that is computed": f"{ROWS}  r = SequenceInsert(q, row, middle)  {STACKED}",
    "the first one becomes the last": f"""{BLOCKS}  a = SequenceAt(q, zero)  s = SequenceErase(q, zero)
        r = SequenceInsert(s, a)  {JOINED}""",
    "how many are left": f"""{BLOCKS}  r = SequenceErase(q, zero)  c = SequenceLength(r)
        f = Cast<to = 1>(c)  y = Mul(x, f)""",
    "one of those that are left": f"{BLOCKS}  r = SequenceErase(q)  y = SequenceAt(r, last)",
    "a loop over those that are left": f"""p = SplitToSequence<axis = 0>(x, one)
        q = SequenceErase(p)  {ADDED} {JOINED}""",
    "what a loop adds to a sequence": f"{BLOCKS}  {ADDED} {JOINED}",
    "one put into what a loop adds": f"{ROWS}  {LOOP}  r = SequenceInsert(l, h, zero)  {STACKED}",
}  # fmt: skip


def text(graph):
    return f"{HEAD} {{ {NUMBERS} {graph} }}"


@since
@pytest.mark.parametrize("name", few(GRAPHS, [*[*GRAPHS][::4], "one put into what a loop adds"]))
def test_any_number_of_elements(name, tmp_path, opened, monkeypatch):
    if "Loop" not in GRAPHS[name]:
        share_traces(monkeypatch, {})
    onnx.save(onnx.parser.parse_model(text(GRAPHS[name])), tmp_path / "m.onnx")
    written = opened(tmp_path / "m.onnx")
    stepnet.onnx.save(written.read, tmp_path / "again.onnx", torch.randn(4, 3, 4))
    stepnet.openvino.save(written.read, tmp_path / "again.xml", torch.randn(4, 3, 4))
    twins = [opened(tmp_path / "again.onnx").read, stepnet.openvino.load(tmp_path / "again.xml")]
    assert [twin.open_sizes for twin in twins] == [{"x": [0, 1]}] * 2
    for steps in (2, 7):
        x = torch.randn(steps, 2, 4)
        (expected,) = written(x)
        for twin in twins:
            torch.testing.assert_close(twin(x)[0], expected, rtol=1e-5, atol=1e-5)


REFUSED = {
    "an element of another shape": (f"{BLOCKS}  r = SequenceInsert(q, x)  {JOINED}",
        r"SequenceInsert\): splits along a dimension that stays open.*\n.*any number"),
    "parts of several steps": (f"q = SplitToSequence<axis = 0>(x, two)  r = SequenceErase(q)  {JOINED}",
        r"SequenceErase\): splits along a dimension that stays open.*\n.*any number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_written_for_a_known_number_alone(name, tmp_path):
    """It is not written as the sequence of the example, and where the number is known it is."""
    graph, says = REFUSED[name]
    onnx.save(onnx.parser.parse_model(text(graph)), tmp_path / "m.onnx")
    model, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.randn(4, 2, 4)
    with pytest.raises(IRError, match=says):
        stepnet.onnx.save(model, tmp_path / "n.onnx", x)
    stepnet.onnx.save(model, tmp_path / "n.onnx", x, dynamic={"x": [1]})
    again = stepnet.onnx.load(tmp_path / "n.onnx")
    assert again.inputs[0].shape == (4, -1, 4)
    torch.testing.assert_close(again(x)[0], model(x)[0])


def test_a_loop_that_reads_what_it_adds_to(tmp_path):
    graph = f"""{BLOCKS}  r = Loop(n, yes, q) <body = b (int64 i, bool c0, seq(float[1,B,4]) s) =>
        (bool c1, seq(float[1,B,4]) s1) {{ c1 = Identity(c0)  a = SequenceAt(s, i)  u = Tanh(a)
        s1 = SequenceInsert(s, u) }}>  {JOINED}"""
    onnx.save(onnx.parser.parse_model(text(graph)), tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"Loop\): carries a sequence, 's', and does more.*\n.*4: .*\n.*begins"):
        stepnet.onnx.save(stepnet.onnx.load(tmp_path / "m.onnx"), tmp_path / "n.onnx", torch.randn(4, 2, 4))


@pytest.mark.parametrize("end", ["r = SequenceErase(q, n)", "a = SequenceAt(q, n)  r = SequenceInsert(q, a)"])
def test_no_such_place(end, tmp_path):
    onnx.save(onnx.parser.parse_model(text(f"{BLOCKS}  {end}  {JOINED}")), tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"no such place in the sequence\n.*5\n.*-5 to 4"):
        stepnet.onnx.load(tmp_path / "m.onnx")(torch.randn(5, 2, 4))


MAP = """<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (seq(float[2]) y) {{
y = SequenceMap({args}) <body = b ({takes}) => ({gives}) {{ c = Neg(a)  d = Abs(a) }}> }}"""


@pytest.mark.parametrize(
    ("inputs", "takes", "gives", "given", "says"),
    [
        ("float[2] x", "float[2] a", "float[2] c", [torch.ones(2)], "'x' is no sequence"),
        ("seq(float[2]) x", "float[2] a", "float[2] c, float[2] d", [], "another number of values"),
        (
            "seq(float[2]) x, seq(float[2]) z", "float[2] a, float[2] e", "float[2] c",
            [[torch.ones(2)] * 3, [torch.ones(2)] * 2], r"shorter than the first one\n.*2\n.*3 elements",
        ),
    ],
)  # fmt: skip
def test_maps_that_cannot_be(inputs, takes, gives, given, says, tmp_path):
    args = ", ".join(part.split()[-1] for part in inputs.split(", "))
    made = onnx.parser.parse_model(MAP.format(inputs=inputs, args=args, takes=takes, gives=gives))
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(IRError, match=says):
        stepnet.onnx.load(tmp_path / "m.onnx")(*given)


TYPED = """<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (float[N] y) {{ {nodes} }}"""
OF_TYPES = {  # inputs, nodes, what is given, what is said
    "a sequence of whole numbers": ("seq(float[N]) s", "y = ConcatFromSequence<axis = 0>(s)",
        [[torch.ones(2), torch.ones(2).long()]],
        r"'s' holds a tensor of another element type, at 1\n.*int64\[2\]\n.*s: tensors of float32"),
    "arrays of another precision": ("seq(float[N]) s", "y = ConcatFromSequence<axis = 0>(s)",
        [[torch.ones(2).double().numpy()]], r"another element type, at 0\n.*float64\[2\]\n.*float32"),
    "a table of whole numbers": ("seq(float[N]) s", "y = ConcatFromSequence<axis = 0>(s)",
        [torch.ones(2, 2).long()], r"'s' holds a tensor of another element type\n.*int64\[2, 2\]"),
    "an optional value": ("optional(float[N]) s", "y = OptionalGetElement(s)",
        [torch.ones(2).long()], r"'s' holds a tensor of another element type\n.*int64\[2\]\n.*float32"),
    "into an empty sequence": ("float[N] x",
        "e = SequenceEmpty<dtype = 7>()  s = SequenceInsert(e, x)  y = ConcatFromSequence<axis = 0>(s)",
        [torch.ones(2)], r"SequenceInsert\): puts a tensor of another element type.*\n.*float32\n.*int64"),
    "beside an element": ("float[N] x, int64[N] i",
        "q = SequenceConstruct(x)  s = SequenceInsert(q, i)  y = ConcatFromSequence<axis = 0>(s)",
        [torch.ones(2), torch.ones(2).long()], r"SequenceInsert\): inputs have diff.*\n.*float32, int64"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TYPES)
def test_tensors_of_another_type_than_their_sequence(name, tmp_path):
    inputs, nodes, given, says = OF_TYPES[name]
    made = onnx.parser.parse_model(TYPED.format(inputs=inputs, nodes=nodes))
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(IRError, match=says):
        stepnet.onnx.load(tmp_path / "m.onnx")(*given)


def test_a_sequence_of_the_type_that_a_model_was_taken_to(tmp_path):
    nodes = """w = Constant<value = float[2] {1, 2}>()  e = SequenceEmpty()  a = SequenceInsert(e, w)
        b = SequenceAt(s, i)  q = SequenceInsert(a, b)  y = ConcatFromSequence<axis = 0>(q)"""
    made = onnx.parser.parse_model(TYPED.format(inputs="seq(float[N]) s, int64 i", nodes=nodes))
    onnx.save(made, tmp_path / "m.onnx")
    given = [torch.ones(2).double()]
    assert stepnet.onnx.load(tmp_path / "m.onnx").double()(given, torch.tensor(0))[0].tolist() == [1, 2, 1, 1]
