"""Pooling of ONNX files: windows, padding, and where the largest numbers stand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

parser = pytest.importorskip("onnx").parser
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402


@pytest.fixture
def pooled(tmp_path):
    """What a node gives for an image."""

    def run(node, x, outputs="y"):
        declared = ", ".join(f"float[A,B,C,D] {name}" for name in outputs.split(", "))
        text = f"g (float[N,C,H,W] x) => ({declared}) {{ {outputs} = {node}(x) }}"
        model = parser.parse_model('<ir_version: 9, opset_import: ["": 22]>\n' + text)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        return stepnet.onnx.load(tmp_path / "m.onnx")(x)

    return run


X = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(0))


def test_the_largest_and_where_it_stands(pooled):
    cut = "kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]"
    y, places = pooled(f"MaxPool<{cut}>", X, "y, p")
    padded = F.pad(X, [0, 1, 1, 1], value=-torch.inf)
    assert torch.equal(y, F.max_pool2d(padded, (3, 2), (2, 1)))
    assert torch.equal(X.reshape(-1)[places], y)
    turned = pooled("MaxPool<kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1], storage_order=1>", X, "y, p")[
        1
    ]
    assert torch.equal(X.transpose(2, 3).reshape(-1)[turned], y)


def test_rounded_up_and_dilated(pooled):
    expected = F.max_pool2d(X, 2, 3, 0, 2, ceil_mode=True)
    assert torch.equal(
        pooled("MaxPool<kernel_shape=[2,2], strides=[3,3], dilations=[2,2], ceil_mode=1>", X)[0], expected
    )
    low = F.pad(X, [1, 1, 1, 1])
    rows = low[..., :-2, :], low[..., 2:, :]
    parts = [part for row in rows for part in (row[..., :-2], row[..., 2:])]
    cut = "kernel_shape=[2,2], dilations=[2,2], pads=[1,1,1,1]"
    mean = pooled(f"AveragePool<{cut}, count_include_pad=1>", X)[0]
    torch.testing.assert_close(mean, sum(parts) / 4)
    norm = pooled(f"LpPool<{cut}, p=1>", X)[0]
    torch.testing.assert_close(norm, sum(part.abs() for part in parts))


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("sizes", [[2, 1, 4, 5], [2, 1, 1, 3], [2, 1, 3, 4, 2]])
def test_places_of_images_whose_sizes_are_an_input(sizes, corners, tmp_path):
    space = len(sizes) - 2
    declared = "float[A,B,C,D] y" if space == 2 else "float[A,B,C,D,E] y"
    text = f"g (float[N,{space},{space + 1}] x, int64[{space + 2}] s) => ({declared})"
    text += f"{{ y = AffineGrid<align_corners={corners}>(x, s) }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 20]>\n' + text)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    x = torch.randn(2, space, space + 1)
    got = stepnet.onnx.load(tmp_path / "m.onnx")(x, torch.tensor(sizes))[0]
    wide = [max(size, 2) for size in sizes]  # torch warns of one place from corner to corner: the middle
    if corners and 1 in sizes[2:]:
        right = F.affine_grid(x, wide, align_corners=True).mean(1, keepdim=True)
    else:
        right = F.affine_grid(x, sizes, align_corners=bool(corners))
    torch.testing.assert_close(got, right)


def test_put_back_where_the_largest_stood(tmp_path):
    text = "g (float[N,C,H,W] x, int64[N,C,H,W] i, int64[K] s) => (float[A,B,C,D] y, float[A,B,C,D] z)"
    node = "MaxUnpool<kernel_shape=[2,3], strides=[2,3]>"
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 22]>\n{text} {{ y = {node}(x, i) z = {node}(x, i, s) }}'
    )
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    x, places = F.max_pool2d(X[:, :, :6], (2, 3), return_indices=True)
    places_of_all = places + 36 * torch.arange(6).reshape(2, 3, 1, 1)
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    own, wide = model(x, places_of_all, torch.tensor([2, 3, 6, 8])).values()
    right = F.max_unpool2d(x, places, (2, 3))
    assert torch.equal(own, right)
    assert torch.equal(wide.reshape(-1)[:216], right.reshape(-1))
    assert wide.shape == (2, 3, 6, 8)
    with pytest.raises(IRError, match=r"node 1 '' \(MaxUnpool\).*output_shape needs a size for each axis"):
        model(x, places_of_all, torch.tensor([3, 7, 6]))


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_means(pooled, include, ceil):
    cut = "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"
    node = f"AveragePool<{cut}, ceil_mode={ceil}, count_include_pad={include}>"
    expected = F.avg_pool2d(X, 3, 2, 1, bool(ceil), bool(include))
    torch.testing.assert_close(pooled(node, X)[0], expected)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("kernel_shape=[3]", r"kernel \[3\] does not fit data \[2, 3, 7, 6\]"),
        ("kernel_shape=[3,0]", "must be at least 1"),
        ("kernel_shape=[3,3], pads=[1,1]", r"two pads for each axis\n.*\[1, 1\]"),
        ("kernel_shape=[3,3], strides=[1]", "have different lengths"),
        ('kernel_shape=[3,3], auto_pad="SOME"', "no such padding"),
    ],
)
def test_refused(pooled, attributes, says):
    with pytest.raises(IRError, match=rf"node 0 '' \(MaxPool\).*{says}"):
        pooled(f"MaxPool<{attributes}>", X)
