"""Calls like one before, which look at inputs and constants once: they give what the nodes give, whatever
changed since then, and whatever is around."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import stepnet
from stepnet.engine.plans import forget
from stepnet.errors import IRError
from threads import at_once
from ways_of_calling import as_nodes

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402

BACKEND = "c"
pytestmark = pytest.mark.exhaustive
HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
# A line of small calls that ends in views; a loop of two scans, fed views.
GRAPHS = {
    "line": """g (float[2, 4] x, float[2, 4] h) => (float[2, 1, 4] y, float[4, 2] t, float[2, 4] s) {
      a = MatMul(x, w)  b = Add(a, h)  c = Tanh(b)  d = Mul(c, h)  e = Sigmoid(d)  y = Unsqueeze(e, one)
      f = Add(c, h)  t = Transpose <perm = [1, 0]> (f)
      s = Softmax <axis = 1> (e) }""",
    "scan": """g (float[3, 4] x, float[1, 4] h) => (float[3, 1, 4] y, float[1, 4] l) {
      z = Unsqueeze(x, one)
      l, y = Scan <num_scan_inputs = 1, body = b (float[1, 4] s, float[1, 4] i) =>
        (float[1, 4] n, float[1, 4] o) {
          p = MatMul(i, w)  q = MatMul(s, w)  r = Add(p, q)  n = Tanh(r)
          u = MatMul(n, w)  o = Erf(u) }> (h, z) }""",
}
WIDE = 96  # of a matrix that takes a while to pack
GRAPHS["wide"] = (
    GRAPHS["scan"].replace("4]", f"{WIDE}]").replace("float[3,", "float[T,").replace("Erf(u)", "Neg(n)")
)
ROWS = {"line": 2, "scan": 1, "wide": 1}


def model_of(name, tmp_path, seed=1):
    made, size = onnx.parser.parse_model(HEAD + GRAPHS[name]), WIDE if name == "wide" else 4
    w = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) * 2 / size**0.5
    made.graph.initializer.append(onnx.numpy_helper.from_array(w.numpy(), "w"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(torch.tensor([1]).numpy(), "one"))
    onnx.save(made, tmp_path / "g.onnx")
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    for _ in range(14):
        check(model, *inputs(name))
    assert model.graph._prepared._again is not None
    return model


def inputs(name, steps=3):
    size = WIDE if name == "wide" else 4
    return torch.randn(ROWS[name] if name == "line" else steps, size), torch.randn(ROWS[name], size)


def check(model, *values, grad=False):
    with contextlib.nullcontext() if grad else torch.no_grad():
        found, expected = model(*values), as_nodes(model, values)
        before = [value.clone() for value in found]
        model(*[value * 2 for value in values])
    assert all(map(torch.equal, found, before))  # in memory of its own
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.is_inference(), a.requires_grad) == (b.dtype, b.is_inference(), b.requires_grad)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def floats(model):
    return {name: value for name, value in model.named_buffers() if value.is_floating_point()}


def in_place(model):
    for value in floats(model).values():
        value.mul_(2)


def past_torch(model):
    for value in floats(model).values():
        value.data.copy_(value.data.flip(0))


def other_memory(model):
    for value in floats(model).values():
        value.data = value.data * 3


def loaded(model):
    model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()
                           if value.is_floating_point()}, strict=False)  # fmt: skip


def put(model):
    for name, value in floats(model).items():
        setattr(model, name, value.t().contiguous())


def laid_otherwise(model):
    for name, value in floats(model).items():
        setattr(model, name, value.clone().t())


def there_and_back(model):
    with pytest.raises(IRError):
        model.double()(torch.ones(1))
    model.float()


def failed(model):
    with pytest.raises(IRError):
        model(torch.ones(7, 7), torch.ones(1))


def on_other_threads(model):
    torch.set_num_threads(3 - torch.get_num_threads() % 2)


CHANGES = [in_place, past_torch, other_memory, loaded, put, laid_otherwise, there_and_back, failed,
           on_other_threads]  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_changed_between_calls(name, tmp_path):
    model, threads = model_of(name, tmp_path), torch.get_num_threads()
    try:
        for change in CHANGES:
            with torch.no_grad():
                change(model)
            for _ in range(2):
                check(model, *inputs(name))
    finally:
        torch.set_num_threads(threads)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen = True
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen = True
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def doubles():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def eager():
    stepnet.set_backend("eager")
    try:
        yield
    finally:
        stepnet.set_backend("auto")


AROUND = [torch.inference_mode, Functions, Dispatched, doubles, eager, torch.autograd.detect_anomaly,
          lambda: torch.autocast("cpu", torch.bfloat16)]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_around_a_call(name, tmp_path):
    model = model_of(name, tmp_path)
    for make in AROUND:
        values = inputs(name)
        with make() as mode:
            check(model, *values)
        assert getattr(mode, "seen", True)
        check(model, *values)
    called = []
    hook = model.register_forward_hook(lambda *_: called.append(1))
    check(model, *inputs(name))
    assert len(called) == 2
    hook.remove()


@pytest.mark.parametrize("name", GRAPHS)
def test_inputs_of_other_kinds(name, tmp_path):
    model = model_of(name, tmp_path)
    x, h = inputs(name)
    w = next(iter(floats(model).values()))
    for values in ((x.t().contiguous().t(), h), (x, h.expand(h.shape)), (x[:, ::1], h), (w[: len(x)], h),
                   (x, x[: len(h)]), *([(x, x)] if name == "line" else [])):  # fmt: skip
        check(model, *values)
        check(model, x, h)
    leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
    check(model, leaf, h, grad=True)
    (a,) = torch.autograd.grad(model(leaf, h)[0].sum(), leaf)
    (b,) = torch.autograd.grad(as_nodes(model, (twin, h))[0].sum(), twin)
    torch.testing.assert_close(a, b)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(model(dual, h)[0]).tangent is not None
    at_once(lambda k: [check(model, *inputs(name)) for _ in range(20)], 3)


def test_wide_steps_at_any_length(tmp_path):
    """Each model by its own numbers, at any length, on several threads, also when plans are forgotten."""
    models = [model_of("wide", tmp_path, seed) for seed in (1, 2)]
    for steps in (1, 5, 40):
        for _ in range(8):
            for model in models:
                check(model, *inputs("wide", steps))
    at_once(lambda k: [check(models[k % 2], *inputs("wide", 5)) for _ in range(20)], 4)
    forget()
    for model in models:
        check(model, *inputs("wide", 5))


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = stepnet.nn.LSTM(48, 48)

    def forward(self, x, h, c):
        y, (h, c) = self.rnn(x, (h, c))
        return y, h, c


def negated_past_torch(model):
    for value in floats(model).values():
        value.data.copy_(-value)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_cell_whose_weights_change(batch, tmp_path):
    def values(batch=batch):
        return torch.randn(6, batch, 48), *torch.randn(2, 1, batch, 48)

    torch.manual_seed(3)
    stepnet.onnx.save(Cell().eval(), tmp_path / "m.onnx", values(2))
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    for value in floats(model).values():
        value.mul_(0.2)  # larger ones let rounding grow from step to step
    for change in (lambda _: None, in_place, negated_past_torch, other_memory):
        with torch.no_grad():
            change(model)
        for _ in range(12):
            check(model, *values())
