"""Loops of ONNX files that their bodies end: by blocks of generated C, as the plain loop runs them."""

from __future__ import annotations

import copy

import pytest
import torch

from covering import few
from stepnet.errors import IRError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402
from saved_modules import plain_loops  # noqa: E402
from stepnet.file_model.body_ended_loops import rounded  # noqa: E402

LOOP = """<ir_version: 9, opset_import: ["": 18]>
g (double[B,3] x, double[3,3] w, int64 limit, double[N,3] rows) => (double[B,3] h, int64 k, double[T,B,3] ys)
<int64 most = {1000}, int64 zero = {0}, int64 one = {1}, bool go = {1}, double least = {0.5}> {
 h, k, ys = Loop(most, go, x, zero) <body = b (int64 i, bool c, double[B,3] s, int64 n)
                          => (bool d, double[B,3] t, int64 m, double[B,3] y) {
   m = Add(n, one)  p = MatMul(s, w)  STEP  }>
}"""
COUNTS = "t = Tanh(p)  y = Neg(s)  d = Less(m, limit)"
STEPS = {  # a step, and why it is not compiled
    "counts": (COUNTS, None),
    "by what it computes": (
        "t = Tanh(p)  y = Add(t, s)  a = ReduceMax<keepdims=0>(t)  z = Abs(a)  f = Greater(z, least) "
        "l = Less(m, limit)  u = Not(l)  v = And(f, u)  d = Not(v)",
        None,
    ),
    "the number": ("f = Cast<to=11>(i)  t = Div(p, f)  q = Tanh(p)  y = Mul(q, f)  d = Less(m, limit)", None),
    "one element": (
        f"{COUNTS.replace('d =', 'e =')}  sh = Constant<value = int64[1] {{1}}>()  d = Reshape(e, sh)",
        None,
    ),
    "picks": ("z = Gather(rows, i)  t = Add(p, z)  y = Neg(z)  d = Less(m, limit)", None),
    "a branch": (
        """t = Tanh(p)  y = Neg(s)  l = Less(m, limit)  d = If(l) <then_branch = u () => (q)
           { a = ReduceMax<keepdims=0>(t)  z = Abs(a)  f = Neg(least)  q = Greater(z, f) },
           else_branch = v () => (w2) { w2 = Constant<value = bool {0}>() }>""",
        None,
    ),
    "branches of other shapes": (
        """t = Tanh(p)  l = Less(n, most)  d = Less(m, limit)  y = If(l) <
           then_branch = u () => (q) { q = Neg(s) },
           else_branch = v () => (k2) { ax = Constant<value = int64[1] {0}>()  k2 = ReduceMax(s, ax) }>""",
        "other shapes",
    ),
    "its condition": (
        f"{COUNTS.replace('d =', 'e =')}  d = And(e, c)",
        "its body reads its condition",
    ),
}


def read(step, folder):
    onnx.save(onnx.parser.parse_model(LOOP.replace("STEP", step)), folder / "m.onnx")
    return stepnet.onnx.load(folder / "m.onnx")


def given(limit, batch=2, rows=300):
    torch.manual_seed(limit)
    x, w = torch.randn(batch, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    return x, w, torch.tensor(limit), torch.randn(rows, 3, dtype=torch.float64)


def check(model, inputs):
    with torch.no_grad():
        with plain_loops():
            expected = [*model(*inputs)]
        found = [*model(*inputs)]
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("kind", few(STEPS, ["counts", "a branch", "picks"]))
def test_as_the_plain_loop(kind, tmp_path):
    step, why_not = STEPS[kind]
    model = read(step, tmp_path)
    for limit in (20, 20, 3, 20, 40, 16):
        check(model, given(limit))
    assert model.loops[0].compiled == (why_not is None), model.loops[0].reason
    assert why_not is None or why_not in model.loops[0].reason
    check(copy.deepcopy(model), given(30))


def test_what_it_captures_is_read_anew(tmp_path):
    model, inputs = read(COUNTS, tmp_path), given(40)
    for _ in range(4):
        check(model, inputs)
        inputs[1].mul_(0.9)
    assert model.loops[0].compiled


def test_gradients_are_those_of_the_steps(tmp_path):
    model, inputs = read(COUNTS, tmp_path), given(30)
    with torch.no_grad():
        model(*inputs), model(*inputs)
    slopes = []
    for plain in (False, True):
        x, w, *rest = inputs
        leaves = [value.clone().requires_grad_() for value in (x, w)]
        if plain:
            with plain_loops():
                out = model(*leaves, *rest)
        else:
            out = model(*leaves, *rest)
            assert "gradients" in model.loops[0].reason
        slopes.append(torch.autograd.grad(out[0].sum() + out[2].cos().sum(), leaves))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(
    "step",
    few(
        [STEPS["picks"][0], STEPS["picks"][0].replace("Gather(rows, i)", "Gather(rows, n)")],
        [STEPS["picks"][0]],
    ),
)
def test_steps_after_the_end_pick_what_the_last_one_did(step, tmp_path):
    """The rows that it picks end where the loop does."""
    model = read(step, tmp_path)
    for limit in (20, 20, 40, 15):
        check(model, given(limit, rows=limit))
    assert model.loops[0].compiled, model.loops[0].reason
    with torch.no_grad(), pytest.raises(IRError, match=r"\(Loop\), body: node \d+ '' \(Gather\)"):
        model(*given(41, rows=40))


def test_a_state_that_grows_is_run_plainly(tmp_path):
    text = """<ir_version: 9, opset_import: ["": 18]>
      g (double[N] x, int64 limit) => (double[M] h, int64 k) <int64 zero = {0}, int64 one = {1}> {
      h, k = Loop("", "", x, zero) <body = b (int64 i, bool c, double[N] s, int64 n)
                                    => (bool d, double[M] t, int64 m)
        { m = Add(n, one)  t = Concat<axis=0>(s, s)  d = Less(m, limit) }> }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    with torch.no_grad():
        for _ in range(3):
            assert model(torch.ones(1, dtype=torch.float64), torch.tensor(17))[0].shape == (2**17,)
    assert "changes its shape" in model.loops[0].reason


def test_blocks():
    for steps in range(16, 9000):
        block = rounded(steps)
        assert steps < block <= steps + max(16, steps / 8) or block == 4096
    assert [rounded(steps) for steps in (None, 0, 15)] == [None, 0, 0]
