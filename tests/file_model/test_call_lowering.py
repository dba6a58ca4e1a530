"""Lines of small calls run as one: they give what the nodes give, whatever changed since they were made."""

from __future__ import annotations

import pytest
import torch

import stepnet
from threads import at_once
from ways_of_calling import as_nodes

parser = pytest.importorskip("onnx").parser
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402

BACKEND = "c"
HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
OPS = """g (float[2, 6] x, float[1, 2, 4] h, float[1, 2, 4] c, bool way) => (float[2, 3] y, float[2, 12] z,
 float[N, M] all, float[1, 2, 4] h2, float[1, 2, 4] c2, float[1, 2, 4] g2, float[1, 2, 4] r2, float[M] means)
<float two = {2}, float half = {0.5}, float low = {-0.5}, int64[6] around = {0, 1, 0, 0, 1, 0},
 int64[3] apart = {2, 3, 2}, int64[2] six = {2, 6}, int64[2] flat = {4, 15}, int64[1] zero = {0},
 int64[1] one = {1}, int64[6] sides = {0, 0, 1, 0, 0, 1}>
{
  linear = Gemm <transB = 1> (x, w, b)
  gate = Sigmoid(linear)
  exp = Exp(linear)
  y = Div(gate, exp)
  table = Reshape(x, apart)
  turned = Transpose <perm = [0, 2, 1]> (table)
  wider = Pad(turned, around, low)
  mirrored = Pad <mode = "reflect"> (turned, sides)
  high = Conv <kernel_shape = [3], pads = [1, 1]> (wider, k, kb)
  conv = Conv <kernel_shape = [3]> (mirrored, k2, kb)
  positive = Greater(conv, half)
  some = Where(positive, conv, low)
  leaky = LeakyRelu <alpha = 0.3> (some)
  squares = Pow(leaky, two)
  more = Add(squares, half)
  roots = Sqrt(more)
  clipped = Clip(roots, half, two)
  truth = Cast <to = 1> (positive)
  counted = Mul(truth, conv)
  joined = Concat <axis = 1> (high, clipped)
  mean = ReduceMean <axes = [2], keepdims = 0> (joined)
  means = ReduceMean <axes = [0], keepdims = 0> (mean)
  total = ReduceSum <keepdims = 1> (counted, one)
  swapped = Transpose <perm = [0, 2, 1]> (joined)
  folded = Reshape(swapped, flat)
  sum = ReduceSum <keepdims = 1> (total)
  all = Add(folded, sum)
  z = If (way) <then_branch = t () => (a) {
        f = Reshape(turned, six)  g = Tanh(f)  a = Concat <axis = 1> (g, f) },
                else_branch = e () => (d) {
        p = Reshape(turned, six)  q = Relu(p)  d = Concat <axis = 1> (p, q) }>
  step = Unsqueeze(x, zero)
  l, h2, c2 = LSTM <hidden_size = 4> (step, lw, lr, lb, , h, c)
  u, g2 = GRU <hidden_size = 4, linear_before_reset = 1> (step, gw, gr, gb, , h)
  v, r2 = RNN <hidden_size = 4> (step, rw, rr, rb, , h)
}
"""
SHAPES = {
    "w": (3, 6), "b": (3,), "k": (5, 4, 3), "k2": (5, 2, 3), "kb": (5,), "lw": (1, 16, 6), "lr": (1, 16, 4),
    "lb": (1, 32), "gw": (1, 12, 6), "gr": (1, 12, 4), "gb": (1, 24), "rw": (1, 4, 6), "rr": (1, 4, 4),
    "rb": (1, 8),
}  # fmt: skip


@pytest.fixture
def model(tmp_path_factory):
    import onnx

    text, place = OPS, tmp_path_factory.mktemp("g") / "g.onnx"
    made = parser.parse_model(HEAD + text)
    numbers = torch.Generator().manual_seed(3)
    for name, shape in SHAPES.items():
        tensor = onnx.numpy_helper.from_array(torch.randn(shape, generator=numbers).numpy(), name)
        made.graph.initializer.append(tensor)
    onnx.save(made, place)
    return stepnet.onnx.load(place)


def inputs(way=True):
    return torch.randn(2, 6), torch.randn(1, 2, 4), torch.randn(1, 2, 4), torch.tensor(way)


def lines(model):
    """How many of its functions run by lines."""
    ways = model.graph._prepared._functions.values()
    return sum(function.run._fast is not None for functions in ways for function in functions or ())


def check(model, *values):
    with torch.no_grad():
        found, expected = model(*values), as_nodes(model, values)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def built(model):
    for _ in range(4):
        check(model, *inputs())
    assert lines(model) == 1
    return model


def swap(model):
    for number in model.buffers():
        number.data = number.data * 2 if number.is_floating_point() else number.data.clone()


def in_place(model):
    for number in model.buffers():
        if number.is_floating_point():
            number.mul_(2)


@pytest.mark.parametrize("change", [swap, in_place])
def test_weights_that_change(model, change):
    built(model)
    change(model)
    for _ in range(3):
        check(model, *inputs())


def test_all_that_a_line_holds(model):
    """Both branches, special numbers, other places of inputs, several threads, and inputs that stay."""
    built(model)
    for way in (False, True, False, False):
        check(model, *inputs(way))
    for odd in (torch.nan, torch.inf, -torch.inf, -0.0, 1e30, 1e-42):
        x, *rest = inputs()
        x[0, 2] = odd
        check(model, x, *rest)
    x, h, c, way = inputs()
    check(model, torch.randn(6, 2).t(), h, c, way)
    same = x.clone(), h.clone(), c.clone()
    with torch.no_grad():
        out = model(x, h, c, way)
        again = model(x, h, c, way)
        for value in out:
            value.add_(1)
    assert all(map(torch.equal, same, (x, h, c)))
    assert all(map(torch.equal, [value - 1 for value in out], [value + 1 - 1 for value in again]))
    at_once(lambda k: [check(model, *inputs(bool(k))) for _ in range(20)], 3)


def test_what_must_see_torchs_calls(model):
    """Tangents, transforms, gradients, another backend, autocast."""
    built(model)
    x, *rest = inputs()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with torch.no_grad():
            plain = as_nodes(model, (dual, *rest))[0]
            found = model(dual, *rest)[0]
        for value in (plain, found):
            assert torch.autograd.forward_ad.unpack_dual(value).tangent is not None
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(leaf, *rest)[0].sum(), leaf)
    twin = x.clone().requires_grad_()
    (plain,) = torch.autograd.grad(as_nodes(model, (twin, *rest))[0].sum(), twin)
    torch.testing.assert_close(found, plain)
    stepnet.set_backend("eager")
    check(model, x, *rest)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        for _ in range(4):
            a, b = model(x, *rest)[0], as_nodes(model, (x, *rest))[0]
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b)


STEPS = """g (float[N, B, 5] x, float[D, B, 4] h) => (float[N, D, B, 4] y, float[D, B, 4] last) {
  t = Tanh(x)  y, last = %s(t, w, r, b, , h)
}"""
OF_STEPS = [
    ("LSTM", "hidden_size = 4", 16), ("LSTM", 'hidden_size = 4, direction = "bidirectional"', 16),
    ("GRU", 'hidden_size = 4, linear_before_reset = 1, direction = "reverse"', 12),
    ("RNN", 'hidden_size = 4, direction = "bidirectional"', 4),
    ("LSTM", 'hidden_size = 4, layout = 1, direction = "bidirectional"', 16),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "said", "rows"), OF_STEPS)
def test_a_few_steps_of_a_cell(tmp_path, kind, said, rows):
    """All steps are part of a line, read the weights as they are, and begin with states of any layout."""
    import onnx

    made = parser.parse_model(HEAD + STEPS % f"{kind} <{said}>")
    ways = 2 if "bi" in said else 1
    for name, shape in {"w": (rows, 5), "r": (rows, 4), "b": (2 * rows,)}.items():
        numbers = torch.randn(ways, *shape).numpy()
        made.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    turned = "layout" in said
    for steps, batch in ((3, 2), (1, 3)):
        x, h = torch.randn(steps, batch, 5), torch.randn(ways, batch, 4)
        given = (x.transpose(0, 1), h.transpose(0, 1)) if turned else (x, h)
        for _ in range(12):
            check(model, *given)
    assert lines(model) == 2
    for weight in model.buffers():
        weight.data.copy_(weight * 0.5)  # which torch counts not as a change
    check(model, *given)
    check(model, *given)
    assert lines(model) == 2


def test_rows_that_fill_vectors(tmp_path):
    """They are turned, where a CPU has wide vectors, in place of the weights."""
    import onnx

    head = "g (float[N, B, 130] x) => (float[N, 1, B, 128] y)"
    said = "hidden_size = 128, linear_before_reset = 1"
    made = parser.parse_model(f"{HEAD}{head} {{ t = Tanh(x)  y = GRU<{said}>(t, w, r) }}")
    for name, shape in {"w": (1, 384, 130), "r": (1, 384, 128)}.items():
        numbers = 0.1 * torch.randn(*shape).numpy()
        made.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    for _ in range(4):
        check(model, torch.randn(1, 16, 130))
    assert lines(model) == 1


BRANCHES = """g (float[N, B, 5] x, float[1, B, 4] h, bool way) => (float[N, 1, B, 4] y) {
  y = If (way) <then_branch = t () => (a) { a = LSTM <hidden_size = 4> (x, w, r, b, , h, h) },
    else_branch = e () => (d) { d = LSTM <hidden_size = 4, direction = "reverse"> (x, w, r, b, , h, h) }>
}"""


def test_a_cell_in_a_branch_is_not_the_branch(tmp_path):
    import onnx

    made = parser.parse_model(HEAD + BRANCHES)
    for name, shape in {"w": (1, 16, 5), "r": (1, 16, 4), "b": (1, 32)}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(torch.randn(shape).numpy(), name))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    x, h = torch.randn(3, 2, 5), torch.randn(1, 2, 4)
    for way in (True, True, True, True, False, True, False):
        check(model, x, h, torch.tensor(way))


NORMS = """g (float[M, 3, 4] x) => (float[A, B, C] y) {
  a = Tanh(x)  n = LayerNormalization <axis = 1> (a, w, b)  s = Sigmoid(n)  r = Sqrt(s)  e = Abs(r)
  t = Tanh(e)
  m = LayerNormalization <epsilon = 0.01> (t, v)  y = Neg(m)
}"""


def test_norms(tmp_path):
    import onnx

    made = parser.parse_model(HEAD + NORMS)
    for name, shape in (("w", (3, 4)), ("b", (3, 4)), ("v", (4,))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(torch.randn(shape).numpy(), name))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    for _ in range(4):
        check(model, torch.randn(2, 3, 4))
    ((function,),) = filter(None, model.graph._prepared._functions.values())
    assert torch.nn.functional.layer_norm not in function.run._fast.__globals__.values()
    for odd in (torch.nan, torch.inf, -0.0):
        x = torch.randn(2, 3, 4)
        x[1, 2, 0] = odd
        check(model, x)
