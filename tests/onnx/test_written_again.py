"""Models that were read are written again: their sizes stay open, and branches become choices."""

from __future__ import annotations

import re

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

LAST = 2**63 - 1


def cut(start, end, step):
    parts = (
        f"{n} = Constant<value = int64[1] {{{v}}}>() "
        for n, v in zip("seat", (start, end, 0, step), strict=True)
    )
    return "".join(parts) + "y = Slice(x, s, e, a, t)"


def branch(condition):
    return (
        condition
        + """ y = If(c) <then_branch = t () => (float[T,B,4] p) { p = Tanh(x) },
        else_branch = f () => (float[T,B,4] q) { q = Neg(x) }>"""
    )


GRAPHS = {
    "all but the last": cut(0, -1, 1),
    "the last two": cut(-2, LAST, 1),
    "backwards": cut(-1, -LAST, -2),
    "backwards from behind the end": cut(LAST, 0, -1),
    "a range over the steps": """s = Shape<start = 0, end = 1>(x)  n = Squeeze(s)
        z = Constant<value = int64 {0}>()  d = Constant<value = int64 {1}>()
        r = Range(z, n, d)  f = Cast<to = 1>(r)
        u = Constant<value = int64[2] {1, 2}>()  g = Unsqueeze(f, u)  y = Add(x, g)""",
    "one-hot": """i = ArgMax<axis = 2, keepdims = 0>(x)  d = Constant<value = int64 {5}>()
        v = Constant<value = float[2] {0.0, 1.0}>()  y = OneHot(i, d, v)""",
    "normalized over the steps": """k = Constant<value = float[4] {1.0, 2.0, 1.0, 0.5}>()
        z = Transpose<perm = [1, 2, 0]>(x)  n = InstanceNormalization(z, k, k)
        y = Transpose<perm = [2, 0, 1]>(n)""",
    "half of the steps": """s = Shape<start = 0, end = 1>(x)  t = Constant<value = int64[1] {2}>()
        d = Div(s, t)  z = Constant<value = int64[1] {0}>()  y = Slice(x, z, d, z)""",
    "paddings that are computed": """p = Constant<value = int64[4] {0, 0, 1, 2}>()  s = Shape(p)
        two = Constant<value = int64[1] {2}>()  e = Sub(s, two)  z = ConstantOfShape<value = int64[1] {0}>(e)
        a = Concat<axis = 0>(p, z)  m = Constant<value = int64[2] {-1, 2}>()  r = Reshape(a, m)
        t = Transpose<perm = [1, 0]>(r)  k = Constant<value = int64[1] {-1}>()
        f = Reshape(t, k)  q = Cast<to = 7>(f)  y = Pad<mode = "edge">(x, q)""",
    "a branch by a size that is known": """s = Shape(x)  two = Constant<value = int64 {2}>()
        n = Gather(s, two)  k = Constant<value = int64 {4}>()  c = Equal(n, k)
        y = If(c) <then_branch = t () => (float[T,B,4] p) { p = Tanh(x) },
        else_branch = f () => (float[T,4] q) { o = Constant<value = int64[1] {1}>()  q = Squeeze(x, o) }>""",
    "expanded as torch's exporter has it": """l = Shape<start = 2>(x)  m = Constant<value = int64[1] {-1}>()
        b = Shape<start = 1, end = 2>(x)  u = Concat<axis = 0>(m, b, l)  s = Shape(u)
        o = ConstantOfShape<value = int64[1] {1}>(s)  n = Mul(o, m)  q = Equal(u, n)  w = Where(q, o, u)
        z = Constant<value = int64[1] {0}>()  r = ReduceSum<keepdims = 1>(x, z)  e = Expand(r, w)
        k = Shape<start = 0, end = 1>(e)  one = Constant<value = int64[1] {1}>()  c = Equal(k, one)
        y = If(c) <then_branch = t () => (float[B,4] p) { p = Squeeze(e, z) },
        else_branch = f () => (float[T,B,4] p2) { p2 = Identity(e) }>""",
    "the largest over the steps": """z = Transpose<perm = [1, 2, 0]>(x)
        m = MaxPool<kernel_shape = [3], pads = [1, 1]>(z)  y = Transpose<perm = [2, 0, 1]>(m)""",
    "windows that end beyond the steps": """z = Transpose<perm = [1, 2, 0]>(x)
        m = MaxPool<kernel_shape = [2], strides = [3], pads = [1, 0], ceil_mode = 1>(z)
        a = AveragePool<kernel_shape = [3], strides = [2], pads = [1, 1], ceil_mode = 1>(z)
        b = AveragePool<kernel_shape = [2], strides = [2], pads = [0, 1], ceil_mode = 1,
        count_include_pad = 1>(z)
        c = Concat<axis = 2>(m, a, b)  y = Transpose<perm = [2, 0, 1]>(c)""",
    "each step twice": """z = Transpose<perm = [1, 2, 0]>(x)  s = Constant<value = float[3] {1.0, 1.0, 2.0}>()
        m = Resize<mode = "nearest">(z, , s)  y = Transpose<perm = [2, 0, 1]>(m)""",
    "sorted by the steps": """s = Shape<start = 0, end = 1>(x)  y, i = TopK<axis = 0>(x, s)""",
    "a range over all numbers": """n = Size(x)  s = Shape(x)  z = Constant<value = int64 {0}>()
        d = Constant<value = int64 {1}>()  p = ReduceProd<keepdims = 0>(s)  r = Range(z, n, d)
        q = Range(z, p, d)  a = Add(r, q)  f = Cast<to = 1>(a)  g = Reshape(f, s)  y = Add(x, g)""",
    "parts of the steps": """t = Constant<value = int64 {2}>()  q = SplitToSequence<axis = 0>(x, t)
        k = Constant<value = int64 {-1}>()  a = SequenceAt(q, k)
        z = Constant<value = int64 {0}>()  b = SequenceAt(q, z)
        n = SequenceLength(q)  f = Cast<to = 1>(n)  j = ConcatFromSequence<axis = 0>(q)
        m = Mul(j, f)  y = Concat<axis = 0>(a, m, b)""",
    "two halves of the steps": """s = Shape<start = 0, end = 1>(x)  n = Squeeze(s)
        o = Constant<value = int64 {1}>()  w = Constant<value = int64 {2}>()
        z = Constant<value = int64 {0}>()  a = Add(n, o)  h = Div(a, w)
        q = SplitToSequence<axis = 0>(x, h)  y = SequenceAt(q, z)""",
    "steps as parts of one": """t = Constant<value = int64 {1}>()  q = SplitToSequence<axis = 0>(x, t)
        k = Constant<value = int64 {-1}>()  y = SequenceAt(q, k)""",
    "over axes that are counted": """s = Shape(x)  n = Size(s)  o = Constant<value = int64 {1}>()
        r = Range(o, n, o)  m = ReduceMean<keepdims = 1>(x, r)  y = Sub(x, m)""",
    "parts of a sequence": """q = SplitToSequence<axis = 2>(x)  k = Constant<value = int64 {-3}>()
        a = SequenceAt(q, k)  r = SequenceErase(q, k)  n = SequenceLength(r)
        i = SequenceInsert(r, a, n)  y = ConcatFromSequence<axis = 2>(i)""",
    "the steps that are above zero": """a = Constant<value = int64[2] {1, 2}>()
        r = ReduceSum<keepdims = 0>(x, a)  z = Constant<value = float {-1000.0}>()
        c = Greater(r, z)  y = Compress<axis = 0>(x, c)""",
    "sequences of their own lengths": f"""w = Constant<value = float[1, 8, 4] {{{", ".join(["0.1"] * 32)}}}>()
        r = Constant<value = float[1, 8, 2] {{{", ".join(["0.2"] * 16)}}}>()
        i = Constant<value = int32[1] {{2}}>()  b = Shape<start = 1, end = 2>(x)  e = Expand(i, b)
        t = Shape<start = 0, end = 1>(x)  o = Cast<to = 6>(t)  n = Min(e, o)
        h = LSTM<hidden_size = 2, direction = "reverse">(x, w, r, , n)  k = Constant<value = int64[1] {{1}}>()
        y = Squeeze(h, k)""",
    "rows of a loop that its body ends": """n = Constant<value = int64 {50}>()
        o = Constant<value = int64 {1}>()  t = Cast<to = 9>(o)  k = Constant<value = float {0.5}>()
        z = Constant<value = float {0.1}>()  a = Constant<value = int64[1] {0}>()
        h, y = Loop(n, t, x) <body = b (int64 i, bool g, float[T,B,4] s)
        => (bool more, float[T,B,4] new, float[B,4] row)
        { new = Mul(s, k)  u = Abs(new)  m = ReduceMax<keepdims = 0>(u)  more = Greater(m, z)
        row = ReduceSum<keepdims = 0>(new, a) }>""",
    "a loop inside a loop": """n = Constant<value = int64 {3}>()  o = Constant<value = int64 {1}>()
        t = Cast<to = 9>(o)
        y = Loop(n, t, x) <body = b (int64 i, bool g, float[T,B,4] s) => (bool more, float[T,B,4] new)
        { r = Loop(n, t, s) <body = c (int64 j, bool k, float[T,B,4] u) => (bool l, float[T,B,4] v)
        { v = Tanh(u)  l = Identity(k) }>  new = Sub(r, x)  more = Less(i, o) }>""",
    "a loop whose state grows": """n = Constant<value = int64 {3}>()  o = Constant<value = int64 {1}>()
        t = Cast<to = 9>(o)
        y = Loop(n, t, x) <body = b (int64 i, bool g, float[K,B,4] s) => (bool more, float[L,B,4] new)
        { u = Tanh(x)  new = Concat<axis = 0>(s, u)  more = Identity(g) }>""",
    "a cell of what a loop joins as it is": """n = Constant<value = int64 {2}>()  e = Identity(x)
        w = Constant<value = float[1,1,4] {0.5, -0.5, 0.2, 0.1}>()  r = Constant<value = float[1,1,1] {0.5}>()
        p, q = Loop(n, , x) <body = b (int64 i, bool g, float[T,B,4] s)
        => (bool m, float[T,B,4] u, float[T,B,4] v) { u = Tanh(s)  v = Identity(e)  m = Identity(g) }>
        z = Constant<value = int64 {1}>()  c = Gather<axis = 0>(q, z)
        a, y = RNN<hidden_size = 1>(c, w, r)""",
    "loops over what a loop joins as often as data say": """f = ReduceMax<keepdims = 0>(x)
        k = Cast<to = 7>(f)  o = Constant<value = int64 {2}>()  n = Add(k, o)
        z = Loop(n, , ) <body = b (int64 i, bool d) => (bool m, float[T,B,4] q)
        { m = Identity(d)  q = Tanh(x) }>
        h, p = Scan(x, z) <num_scan_inputs = 1, body = w (float[T,B,4] a, float[T,B,4] row)
        => (float[T,B,4] c, float[T,B,4] e) { e = Identity(a)
        c = Loop(n, , row) <body = v (int64 j, bool g, float[T,B,4] s) => (bool l, float[T,B,4] t)
        { l = Identity(g)  t = Add(s, a) }> }>  y = Add(h, x)""",
    "a branch by a size": branch("""s = Shape<start = 0, end = 1>(x)  n = Squeeze(s)
        k = Constant<value = int64 {3}>()  c = Greater(n, k)"""),
    "a branch by a number": branch("""r = ReduceSum<keepdims = 0>(x)  z = Constant<value = float {0.0}>()
        c = Greater(r, z)"""),
    "a range of old sets of operators": """s = Shape<start = 0, end = 1>(x)
        o = ConstantOfShape<value = int64[1] {1}>(s)  n = NonZero(o)  k = Constant<value = int64[1] {0}>()
        r = Squeeze(n, k)  f = Cast<to = 1>(r)  u = Constant<value = int64[2] {1, 2}>()
        g = Unsqueeze(f, u)  y = Add(x, g)""",
    "padded to the same size": """z = Transpose<perm = [1, 2, 0]>(x)
        w = Constant<value = float[4,1,3] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0}>()
        c = Conv<group = 4, strides = [2], auto_pad = "SAME_LOWER">(z, w)
        y = Transpose<perm = [2, 0, 1]>(c)""",
    "bytes": """z = Transpose<perm = [1, 2, 0]>(x)  s = Constant<value = float {0.02}>()
        o = Constant<value = uint8 {120}>()  q = QuantizeLinear(z, s, o)
        w = Constant<value = uint8[1,4,3] {1, 250, 3, 9, 99, 199, 255, 0, 33, 7, 8, 90}>()
        v = Constant<value = uint8 {100}>()  i = ConvInteger<pads = [1, 1]>(q, w, o, v)
        f = Cast<to = 1>(i)  y = Transpose<perm = [2, 0, 1]>(f)""",
    "normalized by what is computed": """z = Transpose<perm = [1, 2, 0]>(x)
        a = Constant<value = int64[2] {0, 2}>()  m = ReduceMean<keepdims = 0>(z, a)  v = Exp(m)
        c = BatchNormalization(z, v, m, m, v)  y = Transpose<perm = [2, 0, 1]>(c)""",
    "the distinct numbers": """i = ArgMax<axis = 2, keepdims = 0>(x)  u, p, v, c = Unique(i)
        a = Mul(u, c)  b = Mul(a, p)  w = ReduceSum(v)  d = Add(b, w)  f = Cast<to = 1>(d)
        s = Constant<value = int64[2] {1, 2}>()  y = Unsqueeze(f, s)""",
    "a grid from a box": """m = ReduceMax(x)  h = Constant<value = float[4] {0.0, 0.0, 2.0, 3.0}>()
        b = Mul(h, m)  l = Constant<value = int64[2] {1, 4}>()  r = Reshape(b, l)
        w = Constant<value = int64[1] {0}>()  o = Constant<value = int64[1] {1}>()  i = Unsqueeze(x, o)
        g = RoiAlign<output_height = 2, output_width = 3, sampling_ratio = 2>(i, r, w)  y = Squeeze(g, o)""",
}  # fmt: skip


BY_THEMSELVES = {
    "a cell of what a loop joins as it is", "loops over what a loop joins as often as data say",
    "windows that end beyond the steps",
}  # fmt: skip
LIKE_OTHERS = {
    "the last two", "backwards from behind the end", "a range over the steps", "half of the steps",
    "the largest over the steps", "a branch by a size",
}  # fmt: skip


@since
@pytest.mark.parametrize("name", few(GRAPHS, {*[*GRAPHS][::7], *BY_THEMSELVES}))
def test_sizes_stay_open(name, tmp_path, opened, monkeypatch):
    if not re.search("Loop|LSTM", GRAPHS[name]):
        share_traces(monkeypatch, {})
    head = '<ir_version: 9, opset_import: ["": 18]> g (float[T,B,4] x) => (float[N,M,K] y) '
    onnx.save(onnx.parser.parse_model(f"{head} {{ {GRAPHS[name]} }}"), tmp_path / "m.onnx")
    written = opened(tmp_path / "m.onnx")
    stepnet.onnx.save(written.read, tmp_path / "again.onnx", torch.randn(4, 3, 4))
    stepnet.openvino.save(written.read, tmp_path / "again.xml", torch.randn(4, 3, 4))
    twins = [stepnet.onnx.load(tmp_path / "again.onnx"), stepnet.openvino.load(tmp_path / "again.xml")]
    assert [twin.open_sizes for twin in twins] == [{"x": [0, 1]}] * 2
    for steps, sign in ((1, 1), (2, -1), (7, 1), (7, -1)):
        x = sign * torch.rand(steps, 2, 4)
        (expected,) = written(x)
        for twin in twins:
            torch.testing.assert_close(twin(x)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive  # as a loop that is read and written: test_from_openvino.py
@since
def test_loops_stay_compiled(tmp_path):
    """A body that was written keeps to one axis what is cut along it, and takes any number of rows."""
    cell, given = stepnet.Recurrent(stepnet.cells.MinGRU(4, 4)), (torch.randn(4, 3, 4), torch.zeros(3, 4))
    model = cell.eval()
    for name in ("m.onnx", "again.onnx", "again.xml"):
        library = stepnet.onnx if name.endswith("onnx") else stepnet.openvino
        library.save(model, tmp_path / name, given)
        model = library.load(tmp_path / name)
        with torch.no_grad():
            torch.testing.assert_close(model(*given)[0], cell(*given)[0])
        assert [loop.compiled for loop in model.loops] == [True]


@since
def test_a_branch_of_two_shapes(tmp_path, opened):
    """It is the one of the example, and so are the sizes that it is chosen by."""
    graph = """four = Constant<value = int64[1] {4}>()  zero = Constant<value = int64[1] {0}>()
        s = Shape<start = 0, end = 1>(x)  d = Div(s, four)  z = Slice(x, zero, d, zero)
        n = Shape<start = 0, end = 1>(z)  one = Constant<value = int64[1] {1}>()  c = Equal(n, one)
        q = If(c) <then_branch = t () => (float[B,4] p) { p = Squeeze(z, zero) },
        else_branch = f () => (float[T,B,4] p2) { p2 = Identity(z) }>  y = Tanh(q)"""
    head = '<ir_version: 9, opset_import: ["": 18]> g (float[T,B,4] x) => (float y) '
    onnx.save(onnx.parser.parse_model(f"{head} {{ {graph} }}"), tmp_path / "m.onnx")
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    stepnet.onnx.save(read, tmp_path / "again.onnx", torch.randn(4, 3, 4))
    stepnet.openvino.save(read, tmp_path / "again.xml", torch.randn(4, 3, 4))
    x = torch.randn(4, 2, 4)
    for twin in (opened(tmp_path / "again.onnx").read, stepnet.openvino.load(tmp_path / "again.xml")):
        assert twin.open_sizes == {"x": [1]}
        torch.testing.assert_close(twin(x)[0], x[0].tanh())


def test_a_branch_that_does_not_run_at_the_sizes_of_the_example(tmp_path, opened):
    """The other one is written, and where it would not be taken nothing is given."""
    graph = """zero = Constant<value = int64[1] {0}>()
        q = If(c) <then_branch = t () => (float[T,B] p) { s = Squeeze(x, zero)  p = Unsqueeze(s, zero) },
        else_branch = f () => (float[T,B] p2) { p2 = Identity(x) }>  y = Tanh(q)"""
    head = '<ir_version: 9, opset_import: ["": 18]> g (float[T,B] x, bool c) => (float[T,B] y) '
    onnx.save(onnx.parser.parse_model(f"{head} {{ {graph} }}"), tmp_path / "m.onnx")
    read, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.randn(7, 2)
    yes, no = torch.tensor(True), torch.tensor(False)
    for library, name in ((stepnet.onnx, "again.onnx"), (stepnet.openvino, "again.xml")):
        library.save(read, tmp_path / name, (torch.randn(4, 3), no))
        twin = library.load(tmp_path / name)
        torch.testing.assert_close(twin(x, no)[0], x.tanh())
        with pytest.raises(IRError, match="Reshape"):
            twin(x, yes)
    with pytest.raises(Exception, match="Reshape"):
        opened(tmp_path / "again.onnx")(x, yes)


def test_axes_that_are_inputs_are_refused(tmp_path):
    head = '<ir_version: 9, opset_import: ["": 18]> g (float[T,4] x, int64 a) => (float[N,M] y) '
    onnx.save(onnx.parser.parse_model(f"{head} {{ y = CumSum(x, a) }}"), tmp_path / "m.onnx")
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    with pytest.raises(
        IRError, match=r"node 0 .*\(CumSum\): numbers of its inputs decide(.|\n)*remedy:.*constant"
    ):
        stepnet.onnx.save(read, tmp_path / "again.onnx", (torch.randn(4, 4), torch.tensor(1)))


BATCHED = """<ir_version: 8, opset_import: ["": 8]>
    g (float[B,3] s, float[B,T,3] x, int64[B] l) => (float[B,3] last, float[B,T,3] y) {
    last, y = Scan<num_scan_inputs = 1, directions = [WAY], body = b (float[3] h, float[3] r)
    => (float[3] n, float[3] o) { a = Add(h, r)  n = Tanh(a)  o = Exp(n) }>(LENGTHS, s, x) }"""


@since
@pytest.mark.exhaustive  # a loop in a loop is written in test_nested.py, too
@pytest.mark.parametrize("lengths", ["", "l"])
@pytest.mark.parametrize("way", [0, 1])
def test_a_batch_of_opset_8_stays_open(way, lengths, tmp_path):
    """The Scans of opset 8 have a batch in front, and a length for each of it."""
    text = BATCHED.replace("WAY", str(way)).replace("LENGTHS", lengths)
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    stepnet.onnx.save(
        read, tmp_path / "n.onnx", (torch.randn(2, 3), torch.randn(2, 5, 3), torch.tensor([4, 1]))
    )
    again = stepnet.onnx.load(tmp_path / "n.onnx")
    for given in ([5, 0, 3], [1], []):
        steps, batch = max([*given, 2]), len(given)
        h, x, ends = torch.randn(batch, 3), torch.randn(batch, steps, 3), torch.tensor(given).long()
        last, y = h.clone(), torch.zeros_like(x)
        for b, end in enumerate(given if lengths else [steps] * batch):
            for k in range(end):
                last[b] = (last[b] + x[b, end - 1 - k if way else k]).tanh()
                y[b, k] = last[b].exp()
        for model in (read, again):
            torch.testing.assert_close(model(h, x, ends).tuple(), (last, y))


# What numbers of an input lay out, cut, repeat or pad: the node, and such numbers.
BY_NUMBERS = {
    "y = Expand(x, s)": ([2, 3, 4], [1, 1, 4]),
    "y = Tile(x, s)": ([2, 3, 4], [1, 1, 4]),
    "y = ConstantOfShape(s)": ([2, 3, 4], [1, 1, 4]),
    "y = Reshape(x, s)": ([3, 2, 2], [0, -1, 1], [1, 0, 4]),
    "y = Slice(x, s, e)": ([0, 1, 0], [0, -2, 1], [0, 9, 0]),
    "y = Slice(x, s, f, a, g)": ([0, 1, 0], [0, -2, 1], [0, 9, 3]),
    "q = Concat<axis = 0>(s, s)  y = Pad(x, q)": ([0, 1, 2], [1, 0, -1]),
    """q = Concat<axis = 0>(s, s)  y = Pad<mode = "reflect">(x, q)""": ([0, 1, 2], [0, 0, -1]),
    """q = Concat<axis = 0>(s, s)  y = Pad<mode = "edge">(x, q)""": ([0, 1, 2], [0, 2, 0]),
    """q = Concat<axis = 0>(s, s)  y = Pad<mode = "wrap">(x, q)""": ([0, 1, 2], [0, 2, 0]),
    """h = Neg(s)  q = Concat<axis = 0>(h, s)  y = Pad<mode = "edge">(x, q)""": ([0, 1, 2], [0, 0, -1]),
    """h = Neg(s)  q = Concat<axis = 0>(h, s)  y = Pad<mode = "reflect">(x, q)""": ([0, 1, 1], [0, 0, -1]),
    "k = ReduceMin<keepdims = 1>(s)  y, i = TopK(x, k)": ([2, 3, 4], [1, 9, 9]),
    """y = Resize<mode = "linear">(x, , , s)""": ([1, 6, 4], [1, 2, 9]),
}
NUMBERS = """e = Constant<value = int64[3] {9, 9, 9223372036854775807}>()
    a = Constant<value = int64[3] {0, 1, 2}>()  b = Constant<value = int64[1] {1}>()
    f = Constant<value = int64[3] {-9223372036854775808, -9, -9}>()
    g = Constant<value = int64[3] {-1, -2, -1}>()"""


@since
@pytest.mark.parametrize("ends", [[2, 2], [-1, 2]], ids=["of all", "of what is left"])
def test_a_reflection_that_is_too_wide_is_refused_by_what_runs_the_file(ends, tmp_path):
    """As it is where it is read: no other numbers."""
    head = '<ir_version: 9, opset_import: ["": 20]> g (float[T] x, int64[2] s) => (float[N] y) '
    onnx.save(onnx.parser.parse_model(f'{head} {{ y = Pad<mode = "reflect">(x, s) }}'), tmp_path / "m.onnx")
    read, wide = stepnet.onnx.load(tmp_path / "m.onnx"), torch.tensor(ends)
    stepnet.onnx.save(read, tmp_path / "n.onnx", (torch.randn(5), torch.tensor([1, 1])))
    again = stepnet.onnx.load(tmp_path / "n.onnx")
    torch.testing.assert_close(again(torch.arange(4.0), wide)[0], read(torch.arange(4.0), wide)[0])
    for model in (read, again):
        with pytest.raises(IRError, match=r"node \d+ "):
            model(torch.arange(2.0), wide)


@since
@pytest.mark.exhaustive
@pytest.mark.parametrize("node", BY_NUMBERS)
def test_shapes_that_are_inputs_are_written(node, tmp_path, opened):
    """As OpenVINO IR, read and written as ONNX, and again: where one of the steps is repeated, too."""
    head = '<ir_version: 9, opset_import: ["": 20]> g (float[1,T,4] x, int64[3] s) => (float[N,M,K] y) '
    onnx.save(onnx.parser.parse_model(f"{head} {{ {NUMBERS} {node} }}"), tmp_path / "m.onnx")
    written = opened(tmp_path / "m.onnx")
    numbers = [torch.tensor(given) for given in BY_NUMBERS[node]]
    again, example = written.read, (torch.randn(1, 3, 4), numbers[0])
    given = [(torch.randn(1, 3, 4), said) for said in numbers]
    given += (
        [(torch.randn(1, 1, 4), numbers[0])] if "Expand" in node else [(torch.randn(1, 6, 4), numbers[-1])]
    )
    for name in ("a.xml", "b.onnx", "c.xml"):
        library = stepnet.onnx if name.endswith("onnx") else stepnet.openvino
        library.save(again, tmp_path / name, example)
        again = library.load(tmp_path / name)
        for values in given:
            torch.testing.assert_close(again(*values)[0], written(*values)[0])
    torch.testing.assert_close(opened(tmp_path / "b.onnx")(*given[-1])[0], written(*given[-1])[0])
