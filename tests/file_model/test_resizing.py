"""Axes of other sizes: as torch, ONNX Runtime and OpenVINO make them, where each knows the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stepnet.errors import IRError
from stepnet.file_model import ROUNDED, WHERE, Misfit, Resizing

SIZES = [(3, 11), (7, 9), (1, 4), (14, 18), (2, 1)]
TORCHS = {  # what torch calls some of them
    ("nearest", "asymmetric", "floor"): {"mode": "nearest"},
    ("nearest", "half_pixel", "round_prefer_ceil"): {"mode": "nearest-exact"},
    ("linear", "half_pixel", "floor"): {"mode": "bilinear", "align_corners": False},
    ("linear", "align_corners", "floor"): {"mode": "bilinear", "align_corners": True},
    ("cubic", "half_pixel", "floor"): {"mode": "bicubic", "align_corners": False},
    ("cubic", "align_corners", "floor"): {"mode": "bicubic", "align_corners": True},
}


def image():
    return torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", TORCHS, ids="-".join)
def test_as_torch(way):
    for sizes in SIZES:
        for dtype in (torch.float32, torch.float64):
            x = image().to(dtype).requires_grad_()
            found = Resizing(*way).run(x, [2, 3], sizes, [sizes[0] / 7, sizes[1] / 9])
            expected = F.interpolate(x, sizes, **TORCHS[way])
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
            torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_means_of_what_goes_as_torch(kind):
    how = Resizing(kind, "half_pixel", cubic=-0.5, antialias=True, inside=True)
    for sizes in SIZES[:-1]:  # of one column torch 2.13 repeats the first row
        found = how.run(image(), [2, 3], sizes, [sizes[0] / 7, sizes[1] / 9])
        expected = F.interpolate(image(), sizes, mode=f"bi{kind}", antialias=True)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_kinds_of_numbers():
    """Whole numbers are rounded and stay in range; halves are computed as floats; axes in any order."""
    how = Resizing("cubic", "half_pixel")
    for dtype in (torch.uint8, torch.int32, torch.float16, torch.bfloat16):
        x = (image() * 90 + 100).clamp(0, 255).to(dtype)
        found, wide = (how.run(v, [3, 2], [13, 5], [13 / 9, 5 / 7]) for v in (x, x.float()))
        whole = dtype in (torch.uint8, torch.int32)
        expected = wide.round().clamp(
            0 if dtype is torch.uint8 else -1e9, 255 if dtype is torch.uint8 else 1e9
        )
        assert torch.equal(found, (expected if whole else wide).to(dtype))
    assert how.run(image()[:0], [2], [3], [3 / 7]).shape == (0, 3, 3, 9)
    for sizes in ([-1], [2**40]):
        with pytest.raises(Misfit):
            how.run(image(), [2], sizes, [1.0])


COMBINED = [
    (kind, where, rounding, by, factor)
    for kind, where, rounding, by, factor in itertools.product(
        ("nearest", "linear", "cubic"), WHERE, ROUNDED, ("sizes", "scales"), (0.5, 0.8, 1.6, 2.0)
    )
    if kind == "nearest" or rounding == "floor"
]


def given(by, factor):
    sizes = np.array([max(1, int(7 * factor)), int(9 * factor * 1.1)])
    return sizes if by == "sizes" else np.array([factor, factor * 1.1], np.float32)


def test_as_onnx_runtime(tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    import stepnet.onnx

    ran = 0
    for kind, where, rounding, by, factor in COMBINED[::9]:
        if rounding == "simple" or where == "tf_half_pixel_for_nn":
            continue
        inputs = ["x", "", "", "n"] if by == "sizes" else ["x", "", "n"]
        node = onnx.helper.make_node(
            "Resize", inputs, ["y"], mode=kind, coordinate_transformation_mode=where, nearest_mode=rounding,
            axes=[2, 3],
        )  # fmt: skip
        numbers = onnx.numpy_helper.from_array(given(by, factor), "n")
        ends = [onnx.helper.make_tensor_value_info(name, 1, [None] * 4) for name in "xy"]
        graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [numbers])
        onnx.save(
            onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9),
            tmp_path / "m.onnx",
        )
        session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
        expected = session.run(None, {"x": image().numpy()})[0]
        found = stepnet.onnx.load(tmp_path / "m.onnx")(image())[0]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
        ran += 1
    assert ran > 10


@pytest.mark.exhaustive
def test_as_openvino(tmp_path):
    ov = pytest.importorskip("openvino")
    pytest.importorskip("defusedxml")
    import stepnet.openvino
    from openvino import opset11 as ops

    core = ov.Core()
    for kind, where, rounding, by, factor in COMBINED[::13]:
        if where == "half_pixel_symmetric":
            continue
        x = ops.parameter([-1, 3, -1, -1], np.float32)
        node = ops.interpolate(
            x, ops.constant(given(by, factor)), kind, by, axes=ops.constant(np.array([2, 3])),
            coordinate_transformation_mode=where, nearest_mode=rounding, pads_begin=[0] * 4,
            pads_end=[0, 0, 1, 0],
        )  # fmt: skip
        model = ov.Model([node], [x])
        ov.serialize(model, tmp_path / "m.xml")
        run = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        expected = run([image().numpy()])[0]
        found = stepnet.openvino.load(tmp_path / "m.xml")(image())[0]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_told(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnx_ir")
    import stepnet.onnx

    text = """<ir_version: 9, opset_import: ["": 19]>
    g (float[N, 4] x, float[K] s) => (float[A, B] y) { y = Resize <ATTRIBUTES> (x, , s) }"""
    for attributes, scales, says in (
        ('mode = "linear"', [1.0], r"node 0 '' \(Resize\): needs a scale above zero for each axis"),
        ('mode = "linear"', [1.0, -2.0], "needs a scale above zero"),
        ('mode = "linear"', [1.0, 1e30], "needs a scale above zero"),
        ('mode = "linear"', [3e4, 3e4], "the result would be too large"),
        ('mode = "area"', [1.0, 1.0], "attribute 'mode' is not known"),
        ("axes = [2]", [1.0], "axis 2 lies outside"),
    ):
        onnx.save(onnx.parser.parse_model(text.replace("ATTRIBUTES", attributes)), tmp_path / "m.onnx")
        with pytest.raises(IRError, match=says):
            stepnet.onnx.load(tmp_path / "m.onnx")(torch.ones(20, 4), torch.tensor(scales))
