"""Loops of ONNX files that only their trip count ends: compiled where they treat rows alike."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from covering import few
from stepnet.errors import IRError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402
from saved_modules import plain_loops  # noqa: E402
from torch_since import torch_since  # noqa: E402

LOOP = """<ir_version: 9, opset_import: ["": 18]>
g (double[A,B,3] xs, double[N,3] h0, int64 n, double[3,3] w) => (double[N,3] h, double[T,N,3] ys)
<bool go = {1}, int64[1] last = {1}> {
 h, ys = Loop(n, go, h0) <body = b (int64 i, bool c, double[N,3] s)
                          => (bool d, double[N,3] t, double[N,3] y) {
   d = Identity(c)  p = MatMul(s, w)  STEP  }>
}"""
STEPS = {  # a step, and why it is not compiled
    "an element at a time": ("x = Gather<axis=0>(xs, i)  q = Add(p, x)  t = Tanh(q)  y = Mul(t, x)", None),
    "along another axis": ("x = Gather<axis=1>(xs, i)  q = Add(p, x)  t = Tanh(q)  y = Mul(t, x)", None),
    "an element of what is made before": (
        "k = Abs(p)  x0 = Neg(xs)  x = Gather<axis=0>(x0, i)  q = Add(k, x)  t = Tanh(q)  y = Identity(x)",
        None,
    ),
    "nothing picked": ("t = Tanh(p)  y = Add(t, s)", None),
    "the number": ("k = Cast<to=11>(i)  t = Mul(p, k)  y = Add(t, s)", None),
    "sequences that end": (
        "x = Gather<axis=0>(xs, i)  q = Add(p, x)  v = Tanh(q)  f = Cast<to=11>(i)"
        "  r = ReduceL1<keepdims=0>(h0, last)  l = Less(f, r)  u = Unsqueeze(l, last)"
        "  t = Where(u, v, s)  z = Sub(v, v)  y = Where(u, v, z)",
        None,
    ),
    "rows of numbers": ("t = Tanh(p)  k = Cast<to=11>(i)  e = Shape(s)  y = Expand(k, e)", None),
    "rows that mix": ("m = ReduceMean(s)  t = Add(p, m)  y = Neg(t)", "a mean over the rows"),
}


@pytest.mark.parametrize("kind", few(STEPS, ["rows that mix", "an element at a time", "the number"]))
def test_a_counted_loop(kind, tmp_path):
    step, why_not = STEPS[kind]
    onnx.save(onnx.parser.parse_model(LOOP.replace("STEP", step)), tmp_path / "m.onnx")
    model, axis = stepnet.onnx.load(tmp_path / "m.onnx"), int(kind == "along another axis")
    sizes = ((5, 4, 5), (5, 4, 3), (1, 1, 1), (3, 0, 3), (5, 1, 5), (4, 2, 0), (5, 4, 5))
    for steps, batch, trips in sizes if why_not is None else sizes[:1] + sizes[-1:]:
        xs = torch.randn(steps, batch, 3, dtype=torch.float64).transpose(0, axis).requires_grad_()
        h0, w = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (batch, 3))
        results = []
        for compiled in (True, True, False):
            with nullcontext() if compiled else plain_loops():
                out = [*model(xs, h0, torch.tensor(trips), w)]
            if compiled and trips:
                assert model.loops[0].compiled == (why_not is None), model.loops[0].reason
                assert why_not is None or why_not in model.loops[0].reason
            total = sum(value.square().sum() for value in out)
            slopes = torch.autograd.grad(total, (xs, h0, w), allow_unused=True, materialize_grads=True)
            results.append([*out, *slopes])
        for found in results[:2]:
            for a, b in zip(found, results[2], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    if "Gather" in step and why_not is None:
        with pytest.raises(IRError, match=r"\(Loop\), body: node \d '' \(Gather\)"):
            model(xs, h0, torch.tensor(9), w)


@pytest.mark.parametrize("declared", ["double[2]", "double[N]"])
@pytest.mark.parametrize("trips", [0, -1])
def test_no_steps(tmp_path, declared, trips):
    """Tables are as wide as a step would make them, whether the file says it or not."""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
      g (double[2] x, int64 n) => (double[2] h, double[T,K] ys) {{
      h, ys = Loop(n, "", x) <body = b (int64 i, bool c, double[2] s) => (bool d, double[2] t, {declared} y)
        {{ d = Identity(c)  t = Tanh(s)  y = Neg(s) }}> }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = torch.ones(2, dtype=torch.float64)
    h, ys = stepnet.onnx.load(tmp_path / "m.onnx")(x, torch.tensor(trips))
    assert torch.equal(h, x)
    assert ys.shape == (0, 2)
    assert ys.dtype == torch.float64


SEQUENCES = {  # what a loop reads and what becomes of what it fills, as torch.jit writes them
    "stacked": ("x = Gather(xs, i)", "y = Identity(t)", "ys = ConcatFromSequence<axis = 1, new_axis = 1>(q)"),
    "split and joined": (
        "x = SequenceAt(parts, i)",
        "one = Constant<value = int64[1] {1}>()  y = Unsqueeze(t, one)",
        "ys = ConcatFromSequence<axis = 1>(q)",
    ),
    "read besides": (
        "x = SequenceAt(parts, i)",
        "y = Neg(t)",
        "k = Constant<value = int64 {-1}>()  e = SequenceAt(q, k)"
        "  a = ConcatFromSequence<axis = 0, new_axis = 1>(q)"
        "  l = SequenceLength(q)  f = Cast<to = 1>(l)  b = Add(a, e)  ys = Mul(b, f)",
    ),
}


@torch_since("2.13", "its export fixes sizes that are computed with")
@pytest.mark.parametrize("kind", few(SEQUENCES, ["stacked"]))
def test_a_sequence_that_is_filled(kind, tmp_path, opened):
    """It is compiled, trained and written as a table of what each step gives."""
    pick, row, end = SEQUENCES[kind]
    text = f"""<ir_version: 9, opset_import: ["": 18]>
      g (float[A,B,3] xs, float[B,3] h0) => (float[B,3] h, float[T,N,3] ys) {{
      go = Constant<value = bool {{1}}>()
      parts = SplitToSequence<axis = 0, keepdims = 0>(xs)  n = SequenceLength(parts)
      none = SequenceEmpty()
      h, q = Loop(n, go, h0, none) <body = b (int64 i, bool c, float[B,3] s, seq(float[B,3]) p)
        => (bool d, float[B,3] t, seq(float[B,3]) r)
        {{ {pick}  v = Add(s, x)  t = Tanh(v)  {row}  r = SequenceInsert(p, y)
          d = Identity(go) }}>  {end} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    written = opened(tmp_path / "m.onnx")
    stepnet.onnx.save(written.read, tmp_path / "again.onnx", (torch.randn(4, 2, 3), torch.randn(2, 3)))
    again = opened(tmp_path / "again.onnx")
    for steps, batch in ((4, 2), (7, 3), (1, 1)):
        xs, h0 = torch.randn(steps, batch, 3, requires_grad=True), torch.randn(batch, 3)
        out = written.read(xs, h0)
        assert written.read.loops[0].compiled, written.read.loops[0].reason
        with torch.no_grad():
            for found in (written(xs, h0), again(xs, h0)):
                for a, b in zip(found, out, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        slopes = []
        for compiled in (True, False):
            with nullcontext() if compiled else plain_loops():
                slopes += torch.autograd.grad(written.read(xs, h0)["ys"].square().sum(), xs)
        torch.testing.assert_close(*slopes)


def test_turns_that_nothing_else_ends_have_a_bound(tmp_path):
    """Nothing is allocated for them; a loop that its body ends may have any trip count."""
    body, given = LOOP.replace("STEP", STEPS["nothing picked"][0]), [torch.ones(2, 2, 3).double()] * 2
    given = [given[0], given[1][0], torch.tensor(2**56), torch.eye(3).double()]
    onnx.save(onnx.parser.parse_model(body), tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"\(Loop\): nothing but the trip count ends the loop"):
        stepnet.onnx.load(tmp_path / "m.onnx")(*given)
    ends = body.replace("d = Identity(c)", "o = Constant<value = int64 {3}>()  d = Less(i, o)")
    onnx.save(onnx.parser.parse_model(ends), tmp_path / "e.onnx")
    assert stepnet.onnx.load(tmp_path / "e.onnx")(*given)[1].shape == (4, 2, 3)
