"""Layers that do not fit what they are given, or what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest

from ir_files import write_layer
from stepnet.errors import IRError
from stepnet.openvino import load
from stepnet.openvino.opset_versions import SINCE

RNG = np.random.default_rng(3)
A = RNG.standard_normal((2, 3, 5)).astype(np.float32)
B = RNG.standard_normal((3, 1)).astype(np.float32)
I = RNG.integers(-7, 8, (2, 3, 5)).astype(np.int64)
IMAGE = RNG.standard_normal((2, 3, 7, 9)).astype(np.float32)
KERNEL = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)


def c(value, dtype=np.int64):
    """An input that is a constant of the file."""
    return ("const", np.asarray(value, dtype=dtype))


WRONG = [
    ("MatMul", [A, A], {}, r"\[2, 3, 5\] x \[2, 3, 5\] do not match"),
    ("Add", [A, A[:, :2]], {}, r"shapes \[2, 3, 5\] and \[2, 2, 5\] do not fit together"),
    ("Add", [A, I], {}, "inputs have different element types"),
    ("Reshape", [A, c([7, 7])], {"special_zero": "false"}, "cannot be reshaped to .7, 7."),
    ("Squeeze", [A, c([1])], {}, r"cannot squeeze axis 1 of \[2, 3, 5\]"),
    ("Concat", [A, B], {"axis": "0"}, r"cannot join \[2, 3, 5\] and \[3, 1\]"),
    ("Softmax", [A], {"axis": "3"}, "axis 3 lies outside a tensor of 3 dimensions"),
    ("Tanh", [A, A], {}, "has 2 inputs"),
    ("Clamp", [A], {"min": "0"}, "has no max"),
    ("Clamp", [A], {"min": "low", "max": "1"}, "min is no number"),
    ("Transpose", [A, c([0, 0, 1])], {}, "order does not permute 3 axes"),
    ("Tile", [c(1.0, np.float32), c([2**40, 2**40])], {}, "too large|overflow|must be"),
    ("Broadcast", [B, c([2**50, 3, 1])], {}, "too large"),
    ("Tile", [A, c([2**20, 2**8, 1])], {}, "the result would be too large"),
    ("Range", [c(0), c(2**31), c(1)], {"output_type": "i64"}, "the result would be too large"),
    ("OneHot", [I, c(2**27), c(1), c(0)], {"axis": "0"}, "the result would be too large"),
    ("Pad", [A, c([0, 0, 0]), c([0, 2**31, 0])], {"pad_mode": "edge"}, "the result would be too large"),
    ("STFT", [A[0], A[0, 0], c(4), c(0)], {"transpose_frames": "false"}, "frame_step do not fit"),
    ("ISTFT", [IMAGE[0, 0, :3, :2], A[0, 0, :4], c(4), c(2**40)], {}, "frequencies do not fit frame_size"),
    ("EmbeddingSegmentsSum", [B, c([0, 1]), c([0, 0]), c(2**27)], {}, "the number of bags does not fit"),
    ("Interpolate", [A, c([2**40])], {"mode": "nearest", "axes": "1"}, "the result would be too large"),
    ("Interpolate", [A, c([2, 2])], {"mode": "nearest", "axes": "1"}, "one of the sizes for each axis"),
    ("Interpolate", [A, c([2])], {"mode": "area", "axes": "1"}, "mode is not known"),
    ("Convolution", [IMAGE, c(KERNEL, np.float32)],
     {"strides": "0, 1", "dilations": "1, 1", "pads_begin": "0, 0", "pads_end": "0, 0"},
     "must be at least 1"),
    ("Add", [A, A[:, 0]], {"auto_broadcast": "pdpd"}, r"\[2, 3, 5\] and \[2, 5\] do not fit together .pdpd"),
    ("Add", [A[0], A], {"auto_broadcast": "pdpd"}, r"\[3, 5\] and \[2, 3, 5\] do not fit together .pdpd"),
    ("Add", [A > 0, A > 0], {}, "input 0 is of bool"),
    ("LogicalAnd", [A, A], {}, "input 0 is of float32"),
    ("IsNaN", [I], {}, "input 0 is of int64"),
    ("BitwiseAnd", [A, A], {}, "input 0 is of float32"),
    ("ConvertPromoteTypes", [A, I], {}, "no element type holds the numbers of both"),
    ("Transpose", [A, c([-1, 0, 1])], {}, "order does not permute 3 axes"),
    ("Unsqueeze", [A, c([])], {}, "axes name none"),
    ("Softmax", [A], {"axis": "-1"}, "axis is not negative in the first version"),
    ("SliceScatter", [A, A[:, :1], c([0]), c([2]), c([1]), c([1])], {}, r"\[2, 1, 5\] do not fit the slice"),
    ("SearchSorted", [A[0, 0], I[0, 0]], {}, "inputs have different element types"),
    ("EmbeddingBagOffsets", [B, c([0, 1]), c([0]), c(-1), c([1, 1], np.float32)], {"reduction": "mean"},
     "per_sample_weights are of sums only"),
    ("EmbeddingBagPacked", [B, c([[0, 1]]), c([[1, 1]], np.float32)], {"reduction": "mean"},
     "per_sample_weights are of sums only"),
    ("EmbeddingBagOffsets", [B, c([0, 1]), c([0]), c(3)], {}, "default_index names no row"),
    ("ScatterUpdate", [A, c([0, 1]), A[:, :, :2], c(1)], {}, r"updates \[2, 3, 2\] do not fit the indices"),
    ("ScatterNDUpdate", [A, c([[0], [1]]), A[0]], {}, r"updates \[3, 5\] do not fit the indices"),
    ("ScatterElementsUpdate", [A, c([[[0]]]), A, c(1)], {}, r"updates \[2, 3, 5\] do not fit the indices"),
    ("GatherElements", [A, c([[[0]]])], {"axis": "1"}, r"indices \[1, 1, 1\] do not fit \[2, 3, 5\]"),
    ("Broadcast", [B[:, 0], c([2, 3]), c([0])], {}, r"cannot broadcast \[3, 1\] to \[2, 3\]"),
    ("AvgPool", [IMAGE], {"kernel": "1, 2", "strides": "1, 1", "pads_begin": "0, 2", "pads_end": "0, 0"},
     "a window lies in the padding alone"),
    ("OneHot", [I, c(3), c(1.0, np.float32), c(0)], {"axis": "0"}, "inputs have different element types"),
    ("SegmentMax", [A, c([0, 0, 0])], {"fill_mode": "ZERO"}, "needs the number of a segment for each row"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "says"), WRONG, ids=[f"{w[0]}-{i}" for i, w in enumerate(WRONG)]
)
def test_layers_that_do_not_fit_are_refused_when_read(tmp_path, kind, inputs, attributes, says):
    outputs = (A,) * (2 if kind == "ConvertPromoteTypes" else 1)
    path, _, _ = write_layer(
        tmp_path, kind, inputs, outputs, f"opset{SINCE.get(kind.lower(), 1)}", attributes
    )
    with pytest.raises(IRError, match=says) as error:
        load(path)
    assert f"{kind} layer {len(inputs)}" in str(error.value)


BAGS = ("EmbeddingBagOffsets", "EmbeddingBagOffsetsSum")
THREE = np.array([0, 1, 2])
UNFIT = [  # numbers that are known when the model runs
    *(
        (kind, [B, THREE, np.array(offsets)], says)
        for kind in BAGS
        for offsets, says in {
            (0, 2, 1): "the sizes of bags, which offsets say, must lie in 0..3",
            (0, 4): "the sizes of bags, which offsets say, must lie in 0..3",
            (-1, 2): "the first of offsets must lie in 0..0",
            (1, 2): "the first of offsets must lie in 0..0",
        }.items()
    ),
    *((kind, [B, np.array([0, -1]), np.array([0])], "index") for kind in BAGS),
    *(
        ("CTCGreedyDecoderSeqLen", [A, np.array(lengths, np.int32)], "sequence_length must lie in 0..3")
        for lengths in ([4, 1], [3, -1])
    ),
]


@pytest.mark.parametrize(("kind", "inputs", "says"), UNFIT, ids=[f"{w[0]}-{i}" for i, w in enumerate(UNFIT)])
def test_numbers_that_do_not_fit_are_refused_when_run(tmp_path, kind, inputs, says):
    outputs = (A,) * (2 if kind.startswith("CTC") else 1)
    path, given, _ = write_layer(
        tmp_path, kind, inputs, outputs, f"opset{SINCE[kind.lower()]}", {}, dynamic=True
    )
    model = load(path)
    right = [*given[:-1], np.zeros_like(given[-1])]
    right[1:-1] = [abs(values) for values in right[1:-1]]
    for _ in range(3):  # as recorded, too
        model(*right)
        with pytest.raises(IRError, match=says):
            model(*given)


PROMOTED = {
    ("uint8", "int32"): "int32", ("bool", "uint8"): "uint8",
    ("float16", "int8"): "float16", ("float16", "float64"): "float64", ("int64", "int32"): "int64",
}  # fmt: skip


def test_types_that_are_promoted_with_a_loss_are_refused(tmp_path):
    for one, other in (("int32", "float32"), ("int8", "uint8"), ("float16", "int32"), ("float32", "int64")):
        inputs = [np.ones(2, one), np.ones(3, other)]
        path, _, _ = write_layer(tmp_path, "ConvertPromoteTypes", inputs, (A, A), "opset14", {})
        with pytest.raises(IRError, match="no element type holds the numbers of both"):
            load(path)


@pytest.mark.parametrize("pair", PROMOTED, ids="-".join)
def test_types_promoted_without_loss(tmp_path, pair):
    for one, other in (pair, pair[::-1]):
        inputs = [np.ones(2, one), np.ones(3, other)]
        path, given, _ = write_layer(tmp_path, "ConvertPromoteTypes", inputs, (A, A), "opset14", {})
        assert {str(value.dtype) for value in load(path)(*given)} == {f"torch.{PROMOTED[pair]}"}
