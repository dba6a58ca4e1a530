"""Numbers at which operators of ONNX and of torch part: NaN, infinities, the least whole number."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
    "remainder": torch.remainder,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
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


def read(text, folder):
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 13]> {text}'), folder / "m.onnx")
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


def test_selu_of_large_numbers_has_gradients(tmp_path):
    model = read("g (float[N] x) => (float[N] y) { y = Selu(x) }", tmp_path)
    x = torch.tensor([100.0, -100.0, 0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(model(x)[0].sum(), x)
    assert slope.isfinite().all()
    torch.testing.assert_close(model(x)[0], F.selu(x))
