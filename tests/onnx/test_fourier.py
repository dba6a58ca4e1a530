"""Signals and their frequencies in ONNX files: as numpy and ONNX Runtime have them, at any length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

parser = pytest.importorskip("onnx").parser
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402
from ways_of_calling import called  # noqa: E402

REAL = torch.randn(2, 6, 5, 1, generator=torch.Generator().manual_seed(0))
PAIRS = torch.randn(2, 6, 5, 2, generator=torch.Generator().manual_seed(1))
SIGNAL = torch.randn(2, 40, 1, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def model(tmp_path):
    """A model of one node of these inputs; constants as the parser writes them."""

    def make(node, inputs, constants="", opset=20):
        text = (
            f'<ir_version: 9, opset_import: ["": {opset}]>\ng ({inputs}) => (y) {{ {constants} y = {node} }}'
        )
        (tmp_path / "m.onnx").write_bytes(parser.parse_model(text).SerializeToString())
        return stepnet.onnx.load(tmp_path / "m.onnx")

    return make


def complexes(x):
    x = x.numpy()
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def expected(x, axis, size, inverse, half):
    if half and inverse:
        return np.fft.irfft(complexes(x), size, axis)[..., None]
    by = (np.fft.rfft if half else np.fft.fft) if not inverse else np.fft.ifft
    y = by(x[..., 0].numpy() if half else complexes(x), size, axis)
    return np.stack([y.real, y.imag], -1)


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [None, 0, 1, -2])
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms(model, opset, axis, half, inverse):
    said = f", axis={axis}" if opset < 20 and axis is not None else ""
    third = opset == 20 and axis is not None
    node = f"DFT<onesided={half}, inverse={inverse}{said}>(x, n{', a' if third else ''})"
    constants = f"a = Constant<value_int={axis}>()" if third else ""
    read = model(f"{node}", "float[A,B,C,D] x, int64 n", f"{constants}", opset)
    alone = model(node.replace(" n", "").replace(",)", ")"), "float[A,B,C,D] x", constants, opset)
    along = axis if axis is not None else 1 if opset < 20 else -2
    along = along % 4
    for x in [PAIRS] if half and inverse else [REAL] if half else [REAL, PAIRS]:
        for size in (4, 9, 1):
            for found in called(read, [x, torch.tensor(size)]):
                want = expected(x, along, size, inverse, half)
                np.testing.assert_allclose(found[0], want, rtol=1e-4, atol=1e-5)
        for part in (x, x[:1, :3]):
            if part.shape[along] > 1:
                want = expected(part, along, None, inverse, half)
                np.testing.assert_allclose(alone(part)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(model, dtype):
    kind = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "double"}[dtype]
    read = model("DFT<onesided=1>(x)", f"{kind}[A,B,C,1] x")
    y = read(REAL.to(dtype))[0]
    assert y.dtype is dtype
    exact = torch.from_numpy(expected(REAL.to(dtype).double(), 2, None, 0, 1))
    torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("given", ["w", " , n", "w, n"])
def test_frames(model, half, given, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    inputs = (
        "float[B,T,1] x, int64 s"
        + (", float[W] w" if "w" in given else "")
        + (", int64 n" if "n" in given else "")
    )
    read = model(f"STFT<onesided={half}>(x, s, {given})", inputs)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    for step, size, x in ((4, 16, SIGNAL), (7, 5, SIGNAL[:1, :23]), (40, 40, SIGNAL)):
        window = torch.hann_window(size)
        named = {"x": x, "s": torch.tensor(step), "w": window, "n": torch.tensor(size)}
        named = {k: v for k, v in named.items() if f" {k}" in inputs}
        want = session.run(None, {k: v.numpy() for k, v in named.items()})[0]
        for found in called(read, [*named.values()]):
            np.testing.assert_allclose(found[0], want, rtol=1e-4, atol=1e-4)
        frames = x[..., 0].unfold(1, size, step) * (window if "w" in given else 1)
        direct = torch.view_as_real(torch.fft.rfft(frames) if half else torch.fft.fft(frames))
        torch.testing.assert_close(torch.from_numpy(want), direct, rtol=1e-4, atol=1e-4)


def test_gradients_of_frames(model):
    read = model("STFT(x, s, w)", "double[B,T,1] x, int64 s, double[W] w")
    x, window = SIGNAL[:, :9].double().requires_grad_(), torch.hann_window(4).double().requires_grad_()
    run = lambda x, window: read(x, torch.tensor(3), window)[0]  # noqa: E731
    assert torch.autograd.gradcheck(run, (x, window))
    assert torch.autograd.gradgradcheck(run, (x, window))


@pytest.mark.parametrize("kind", ["Hann", "Hamming", "Blackman"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(model, kind, periodic, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    read = model(f"{kind}Window<periodic={periodic}>(n)", "int64 n")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    for size in (0, 1, 2, 7, 16):
        want = session.run(None, {"n": np.array(size)})[0]
        np.testing.assert_allclose(read(torch.tensor(size))[0], want, atol=1e-6)
    with pytest.raises(IRError, match="too large"):
        read(torch.tensor(2**40))


@pytest.mark.parametrize(
    ("node", "x", "numbers", "says"),
    [
        ("DFT<onesided=1>(x, n)", PAIRS, (4,), "one-sided transforms take real numbers"),
        ("DFT<onesided=1, inverse=1>(x, n)", REAL, (4,), "one-sided transforms take real numbers"),
        ("DFT(x, n)", PAIRS[..., :0], (4,), "holds no numbers, real or complex"),
        ("DFT(x, n)", PAIRS, (0,), "the length must be 1 or more"),
        ("DFT(x, n)", PAIRS, (-1,), "the length must be 1 or more"),
        ("DFT(x, n)", PAIRS, ([4, 4],), "is not one whole number"),
        ("DFT(x, n)", PAIRS, (2**40,), "the result would be too large"),
        ("DFT(x, , n)", PAIRS, (3,), "an axis holds no signal"),
        ("DFT(x, , n)", PAIRS, (-1,), "an axis holds no signal"),
        ("DFT(x, , n)", PAIRS, (-5,), "an axis holds no signal"),
        ("STFT(x, n, , m)", SIGNAL, (0, 4), "frames do not fit the signal"),
        ("STFT(x, n, , m)", SIGNAL, (-2, 4), "frames do not fit the signal"),
        ("STFT(x, n, , m)", SIGNAL, (2, 41), "frames do not fit the signal"),
        ("STFT(x, n, , m)", SIGNAL, (2, 0), "frames do not fit the signal"),
        ("STFT(x, n, , m)", SIGNAL[0], (2, 4), r"needs \[batch, signal, 1 or 2\]"),
        ("STFT(x, n, m)", SIGNAL, (2, [1.0] * 41), "frames do not fit the signal"),
        ("STFT(x, n, m)", SIGNAL, (2, 1.0), "the window is not of one axis"),
        ("STFT(x, n, m)", SIGNAL.repeat(1, 1, 2), (2, [1.0] * 4), "one-sided transforms take real numbers"),
    ],
)
def test_refused(model, node, x, numbers, says):
    values = [torch.tensor(value) for value in numbers]
    kinds = [
        "float m" if v.is_floating_point() else f"int64 {name}" for name, v in zip("nm", values, strict=False)
    ]
    kinds = [
        f"{kind.split()[0]}{'[N]' if v.dim() else ''} {kind.split()[1]}"
        for kind, v in zip(kinds, values, strict=True)
    ]
    axes = ",".join("ABCD"[: x.dim()])
    with pytest.raises(IRError, match=rf"node 0 '' \({node[:4].strip('<(')}.*{says}"):
        model(node, ", ".join([f"float[{axes}] x", *kinds]))(x, *values)


def test_in_steps_on_any_number_of_rows(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[B,4] h0, float[T,B,4] xs) => (float[B,4] h, float[T,B,4] ys)
    <float[1,4] k = {1,2,3,4}, int64 one = {1}, int64[1] last = {-1}> {
      h, ys = Scan<num_scan_inputs=1, body = b (float[B,4] s, float[B,4] x) => (float[B,4] n, float[B,4] y) {
        z = Add(s, x) u = Unsqueeze(z, last) f = DFT(u, , one) m = ReduceMean<keepdims=0>(f, last)
        size = Shape(x) e = Expand(k, size) a = Mul(m, e) n = Tanh(a) y = Identity(n) }>(h0, xs) }"""
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(text).SerializeToString())
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    for steps, batch in ((5, 1), (3, 3), (1, 2)):
        h, xs = torch.randn(batch, 4), torch.randn(steps, batch, 4)
        with torch.no_grad():
            found = read(h, xs)
        for ours, theirs in zip(found, session.run(None, {"h0": h.numpy(), "xs": xs.numpy()}), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert read.loops[0].compiled
