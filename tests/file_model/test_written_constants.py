"""A read model sees one number that was written to a constant in its next call, however it was written, and
whatever was made of that constant."""

from __future__ import annotations

import ctypes

import pytest
import torch

from ways_of_calling import as_nodes

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402

BACKEND = "c"
pytestmark = pytest.mark.exhaustive
HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
N = 24  # numbers of a row of x; of a constant there are more than one would look at some of


def weights(*shape, dtype=torch.float32):
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (numbers / 3).to(dtype)


def of_a_cell(gates, b=2):
    return {"w": weights(1, gates * N, N), "r": weights(1, gates * N, N), "b": weights(1, b * gates * N)}


_CELL = "g (float[T, B, 24] x) => (float[T, 1, B, 24] y) { y = KIND <hidden_size = 24> (x, w, r, b) }"
_LOOP = """g (float[T, B, 24] x, float[B, 24] h) => (float[B, 24] last, float[T, B, 24] y) {
  last, y = Scan <num_scan_inputs = 1, body = b (float[B, 24] s, float[B, 24] i) =>
    (float[B, 24] n, float[B, 24] o) { p = MatMul(i, w) q = MatMul(s, w) r = Add(p, q)
      n = Tanh(r) o = BODY }> (h, x) }"""
# The text of a graph, its constants, and the sizes of its inputs, some of which are called in turns.
CASES = {
    "product": ("g (float[B, 24] x) => (float[B, 24] y) { p = MatMul(x, w) q = Add(p, b) r = Tanh(q)"
                " s = Exp(r) t = Mul(s, r) u = Sigmoid(t) y = MatMul(u, w) }",
                {"w": weights(N, N), "b": weights(N)}, [[(1, N)], [(3, N)], [(40, N)]]),
    "made of it": ("g (float[B, 24] x) => (float[B, 24] y) { a = Mul(w, w) t = Transpose <perm = [1, 0]> (w)"
                   " c = Add(a, t) p = MatMul(x, c) q = Tanh(p) r = Exp(q) s = Neg(r) y = Sigmoid(s) }",
                   {"w": weights(N, N)}, [[(2, N)], [(9, N)]]),
    "half": ("g (float[B, 24] x) => (float[B, 24] y) { a = Cast <to = 1> (w) y = MatMul(x, a) }",
             {"w": weights(N, N, dtype=torch.float16)}, [[(2, N)]]),
    "a part": ("g (float[B, 24] x) => (float[B, 12] y) { a, c = Split <axis = 1, num_outputs = 2> (w)"
               " d = Add(a, c) e = MatMul(x, d) f = MatMul(x, c) y = Mul(e, f) }", {"w": weights(N, N)},
               [[(2, N)]]),
    "places": ("g (float[B, 24] x, int64[K] at) => (float[B, 24] y) { a = Gather <axis = 0> (w, at)"
               " s = ReduceSum <keepdims = 1> (a, zero) y = Add(x, s) }",
               {"w": weights(N, N), "zero": torch.tensor([0])}, [[(2, N), N]]),
    "convolution": ("g (float[1, 24, S] x) => (float[1, 24, P] y) {"
                    " y = Conv <pads = [1, 1], kernel_shape = [3]> (x, w, b) }",
                    {"w": weights(N, N, 3), "b": weights(N)}, [[(1, N, 1)], [(1, N, 3)], [(1, N, 20)]]),
    "put together": ("""g (float[B, 48] x) => (float[B, 96] y, float[48, 96] o) {
      a, c, d = Split <axis = 1> (w, sizes)  e = Concat <axis = 1> (c, a, d)  p = MatMul(x, e)
      f = Transpose <perm = [1, 0]> (w)  g1 = Concat <axis = 0> (f, w)  q = MatMul(x, f)
      h = Concat <axis = 0> (e, w)  i = Concat <axis = 1> (h, h)  j = Transpose <perm = [1, 0]> (i)
      s = Concat <axis = 1> (x, x)  k = MatMul(s, j)  t = Tanh(p)  u = Sigmoid(q)  v = Exp(t)
      z = Mul(v, u)  r = Reshape(g1, wide)  l = MatMul(z, r)  m = Mul(e, e)  n = MatMul(x, m)
      o = Concat <axis = 1> (e, f)  aa = Add(l, k)  bb = Concat <axis = 1> (n, n)  y = Add(aa, bb) }""",
                     {"w": weights(48, 48), "sizes": torch.tensor([20, 8, 20]),
                      "wide": torch.tensor([48, 96])}, [[(1, 48)], [(3, 48)], [(20, 48)]]),
    "gates put together": ("""g (float[T, B, 48] x, float[1, B, 48] h, float[1, B, 48] c)
      => (float[T, 1, B, 48] y, float[1, B, 48] d, float[1, B, 48] e) {
      i, f, g1, o = Split <axis = 0, num_outputs = 4> (w)  w4 = Concat <axis = 0> (i, o, f, g1)
      j, k, l, m = Split <axis = 0, num_outputs = 4> (r)  r4 = Concat <axis = 0> (j, m, k, l)
      wu = Unsqueeze(w4, zero)  ru = Unsqueeze(r4, zero)
      y, d, e = LSTM <hidden_size = 48> (x, wu, ru, , , h, c) }""",
                           {"w": weights(192, 48), "r": weights(192, 48), "zero": torch.tensor([0])},
                           [[(t, b, 48), (1, b, 48), (1, b, 48)]
                            for t, b in ((1, 1), (1, 9), (5, 1), (30, 3))]),
    "bytes": ("g (float[B, 24] x) => (int32[B, 24] y) { q = Cast <to = 2> (x)"
              " y = MatMulInteger(q, w, za, zb) }",
              {"w": torch.arange(N * N).reshape(N, N).byte(), "za": torch.tensor(3).byte(),
               "zb": torch.tensor(5).byte()}, [[(2, N)]]),
    **{kind: (_CELL.replace("KIND", kind), of_a_cell(gates), [[(t, b, N)] for t in (1, 6) for b in (1, 9)])
       for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))},
    **{f"loop {n}": (_LOOP.replace("BODY", body), {"w": weights(N, N)},
                     [[(t, b, N), (b, N)] for t in (1, 4, 30) for b in (1, 7)])
       for n, body in enumerate(("Neg(n)", "Erf(n)", "MatMul(n, w)"))},
}  # fmt: skip


def with_number(t, at, number):
    changed = t.detach().clone()
    changed.view(-1)[at] = number
    return changed


def data(model, name, t, at, number):
    t.data.view(-1)[at] = number


def data_copied(model, name, t, at, number):
    changed = with_number(t, at, number)
    t.data.copy_(changed)


def other_data(model, name, t, at, number):
    changed = with_number(t, at, number)
    t.data = changed


def in_place(model, name, t, at, number):
    with torch.no_grad():
        t.view(-1)[at] = number


def in_inference(model, name, t, at, number):
    with torch.inference_mode():
        t.view(-1)[at] = number


def by_numpy(model, name, t, at, number):
    t.detach().numpy().reshape(-1)[at] = number.numpy()


def of_numpy(model, name, t, at, number):
    """Memory that numpy has, and writes to after a call."""
    array = t.detach().numpy().copy()
    model.load_state_dict({name: torch.from_numpy(array)}, strict=False, assign=True)
    yield
    array.reshape(-1)[at] = number.numpy()


def state_dict(model, name, t, at, number):
    model.state_dict()[name].data.view(-1)[at] = number


def dlpack(model, name, t, at, number):
    torch.from_dlpack(t.detach()).view(-1)[at] = number


def storage(model, name, t, at, number):
    size = t.itemsize
    for k, byte in enumerate(number.reshape(1).view(torch.uint8).tolist()):
        t.untyped_storage()[at * size + k] = byte


def memory(model, name, t, at, number):
    ctypes.memmove(t.data_ptr() + at * t.itemsize, number.numpy().tobytes(), t.itemsize)


def resized(model, name, t, at, number):
    t.data, changed = t.detach().clone(), with_number(t, at, number)
    yield
    held = t.untyped_storage()
    held.resize_(0)
    held.resize_(changed.nbytes)
    t.data.copy_(changed)


def set_to(model, name, t, at, number):
    changed = with_number(t, at, number)
    with torch.no_grad():
        t.set_(changed)


def loaded(model, name, t, at, number):
    changed = with_number(t, at, number)
    model.load_state_dict({name: changed}, strict=False)


def assigned(model, name, t, at, number):
    changed = with_number(t, at, number)
    model.load_state_dict({name: changed}, strict=False, assign=True)


def swapped(model, name, t, at, number):
    changed = with_number(t, at, number)
    torch.utils.swap_tensors(t, changed)


def foreach(model, name, t, at, number):
    step = torch.zeros_like(t)
    step.view(-1)[at] = number - t.view(-1)[at]
    torch._foreach_add_([t.data], [step])


WAYS = [data, data_copied, other_data, in_place, in_inference, by_numpy, of_numpy, state_dict, dlpack,
        storage, memory, resized, set_to, loaded, assigned, swapped, foreach]  # fmt: skip


def check(model, sizes, rng):
    for size in sizes:
        given = [torch.randn(s, generator=rng) if isinstance(s, tuple) else torch.arange(s) for s in size]
        with torch.no_grad():
            for a, b in zip(model(*given), as_nodes(model, given), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_one_number(case, tmp_path):
    text, constants, sizes = CASES[case]
    made, rng = onnx.parser.parse_model(HEAD + text), torch.Generator().manual_seed(1)
    for name, value in constants.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    for _ in range(12):
        check(model, sizes, rng)
    for name in [name for name, value in model.named_buffers() if value.numel() > 1 or case == "bytes"]:
        for number, way in enumerate(WAYS):
            t = getattr(model, name)
            whole = not t.is_floating_point()
            if whole and t.dtype != torch.uint8:
                continue  # an axis
            at = (t.numel() // 3 + 11 * number + 1) % t.numel()  # not among some that are evenly spread
            new = (t.view(-1)[at] + 1 if whole else t.view(-1)[at] + 2).detach().clone()
            between = way(model, name, t, at, new)
            if between is not None:
                next(between)
                check(model, sizes, rng)
                check(model, sizes, rng)
                next(between, None)
            assert getattr(model, name).view(-1)[at] == new
            for _ in range(2):
                check(model, sizes, rng)
