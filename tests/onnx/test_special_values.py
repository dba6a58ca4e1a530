"""Numbers at which operators of ONNX and of torch part: NaN, infinities, the least whole number."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from covering import every
from stepnet.errors import IRError

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
import stepnet.onnx  # noqa: E402

INF, NAN = float("inf"), float("nan")
X = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3e30, -1e-30])


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


WRITTEN = {
    "sign": torch.sign, "rsqrt": torch.rsqrt, "isinf": torch.isinf, "selu": F.selu, "trunc": torch.trunc,
    "remainder": torch.remainder, "e4m3": lambda x: x.to(torch.float8_e4m3fn).float(),
    "e5m2": lambda x: x.to(torch.float8_e5m2).float(),
}  # fmt: skip


@pytest.mark.parametrize("name", every(2, WRITTEN))
def test_written(name, tmp_path):
    module = Called(WRITTEN[name])
    x = torch.meshgrid(X[:9], X[:9], indexing="ij") if name == "remainder" else (X,)
    x = tuple(part.flatten() for part in x)
    stepnet.onnx.save(module, tmp_path / "m.onnx", x)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    feed = {i.name: part.numpy() for i, part in zip(session.get_inputs(), x, strict=True)}
    found = torch.from_numpy(session.run(None, feed)[0])
    torch.testing.assert_close(found, module(*x), equal_nan=True)
    torch.testing.assert_close(stepnet.onnx.load(tmp_path / "m.onnx")(*x)[0], found, equal_nan=True)


@pytest.mark.parametrize("function", [torch.atanh, F.softplus, torch.log1p], ids=lambda f: f.__name__)
def test_small_and_large_doubles(function, tmp_path):
    """ONNX Runtime has no Atanh and no Softplus of doubles."""
    sizes = 10.0 ** -torch.arange(0, 30, 0.3, dtype=torch.float64)
    x = torch.cat([X.double(), sizes, -sizes, 1 - sizes, sizes - 1, 30 * sizes, 1e300 * sizes])
    stepnet.onnx.save(Called(function), tmp_path / "m.onnx", x)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    torch.testing.assert_close(found, function(x), rtol=1e-14, atol=0, equal_nan=True)


def read(text, folder, opset=13):
    head = f'<ir_version: 9, opset_import: ["": {opset}]>'
    onnx.save(onnx.parser.parse_model(f"{head} {text}"), folder / "m.onnx")
    return stepnet.onnx.load(folder / "m.onnx")


def test_the_sign_of_nan_is_nan(tmp_path):
    model = read("g (float[N] x) => (float[N] y) { y = Sign(x) }", tmp_path)
    expected = runtime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": X.numpy()})[0]
    torch.testing.assert_close(model(X)[0], torch.from_numpy(expected), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_least_whole_number_by_minus_one(dtype, tmp_path):
    kind, least = str(dtype).removeprefix("torch."), torch.iinfo(dtype).min
    model = read(f"g ({kind}[N] x, {kind}[N] y) => ({kind}[N] z) {{ z = Div(x, y) }}", tmp_path)
    x, y = torch.tensor([least, 7, -7, 7], dtype=dtype), torch.tensor([-1, -1, 2, -2], dtype=dtype)
    assert model(x, y)[0].tolist() == [least, -7, -3, -3]


def test_bytes_by_255(tmp_path):
    """Which torch takes for -1."""
    model = read("g (uint8[N] x, uint8[N] y) => (uint8[N] z) { z = Div(x, y) }", tmp_path, opset=14)
    x, y = torch.tensor([[255, 254, 9], [255, 255, 2]], dtype=torch.uint8)
    assert model(x, y)[0].tolist() == [1, 0, 4]


def test_ones_along_a_diagonal(tmp_path):
    """Of a matrix alone; one row costs what it holds."""
    model = read("g (float[N,M] x) => (float[N,M] y) { y = EyeLike<k = -1>(x) }", tmp_path)
    assert torch.equal(model(torch.zeros(3, 2))[0], torch.tensor([[0.0, 0], [1, 0], [0, 1]]))
    assert model(torch.zeros(1, 2**20))[0].shape == (1, 2**20)
    model = read("g (float[N,M,K] x) => (float[N,M] y) { y = EyeLike(x) }", tmp_path)
    with pytest.raises(IRError, match=r"\(EyeLike\): must have two dimensions\n.*\[2, 3, 4\]\n.*a matrix"):
        model(torch.zeros(2, 3, 4))


def test_means_of_whole_numbers(tmp_path):
    """They are whole, towards zero, as ONNX Runtime has them."""
    model = read(
        """g (int32[N,M] x) => (int32[N] y, int32[N] z) {
        y = ReduceMean<axes = [1], keepdims = 0>(x)  z = ReduceLogSumExp<axes = [1], keepdims = 0>(x) }""",
        tmp_path,
    )
    found = model(torch.tensor([[-1, -2], [3, 4]], dtype=torch.int32))
    assert [(out.dtype, out.tolist()) for out in found] == [(torch.int32, [-1, 3]), (torch.int32, [0, 4])]
    with pytest.raises(IRError, match=r"\(ReduceMean\): whole numbers have no mean\n.*\[2, 0\]\n"):
        model(torch.zeros(2, 0, dtype=torch.int32))


def test_selu_of_large_numbers_has_gradients(tmp_path):
    model = read("g (float[N] x) => (float[N] y) { y = Selu(x) }", tmp_path)
    x = torch.tensor([100.0, -100.0, 0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(model(x)[0].sum(), x)
    assert slope.isfinite().all()
    torch.testing.assert_close(model(x)[0], F.selu(x))


@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_eight_bits(saturate, tmp_path):
    """Of what lies beyond the largest number, too; 464 is halfway to where the next would be."""
    x = torch.tensor([INF, -INF, NAN, -0.0, 3e-3, 240.0, 250.0, 464.0, -465.0, 500.0, 57344.0, 65536.0, -1e9])
    made, rule = (
        "o = Constant<value = float {0}>() s = Constant<value = float {1}>()",
        f"saturate = {saturate}",
    )
    for k in range(17, 21):
        made += f" z{k} = Cast<to = {k}, {rule}>(x) y{k} = Cast<to = 1>(z{k}) p{k} = Cast<to = {k}>(o)"
        made += f" q{k} = QuantizeLinear<{rule}>(x, s, p{k}) w{k} = Cast<to = 1>(q{k})"
    outputs = ", ".join(f"float[N] y{k}, float[N] w{k}" for k in range(17, 21))
    found = read(f"g (float[N] x) => ({outputs}) {{ {made} }}", tmp_path, opset=20)(x)
    expected = runtime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x.numpy()})
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, torch.from_numpy(b), equal_nan=True, rtol=0, atol=0)
