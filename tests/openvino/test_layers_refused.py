"""Layers that do not fit what they are given, or what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest

from ir_files import Net, write_layer
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


def w(*shape):
    """Weights that are constants of the file."""
    return c(np.ones(shape), np.float32)


CELL = [A[0], w(3, 4), w(3, 4), w(16, 5), w(16, 4), w(16)]
SEQUENCE = [A, w(2, 1, 4), w(2, 1, 4), c([3, 3]), w(1, 16, 5), w(1, 16, 4), w(1, 16)]
WHOLE, SPACE, NONE = (
    {"begin_mask": "", "end_mask": ""},
    {"mode": "blocks_first", "block_size": "2"},
    c([0] * 3),
)
SIZED = {
    "mode": "nearest",
    "shape_calculation_mode": "sizes",
    "coordinate_transformation_mode": "half_pixel",
}
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
    ("EmbeddingBagOffsets", [B, c([[0, 1]]), c([0])], {}, r"offsets of \[1, 2\] and \[1\] are no lists"),
    ("EmbeddingBagPacked", [B, c([0, 1])], {}, r"indices of \[2\] are no bags"),
    ("SegmentMax", [A, c([0, 1]), c(2**31)], {"fill_mode": "ZERO"}, "the number of segments does not fit"),
    ("LSTMCell", CELL, {"activations": "sigmoid,tanh"}, "needs 3 activations"),
    ("LSTMCell", CELL, {"activations": "sigmoid,tanh,swish"}, "activation swish is not known"),
    ("LSTMCell", CELL, {"weights_format": "ficc"}, "weights_format is not known"),
    ("LSTMCell", [A, *CELL[1:]], {}, r"X must be \[batch, input\]"),
    ("LSTMCell", [A[0, :2], *CELL[1:]], {}, r"X \[2, 5\] and state \[3, 4\] have different batch sizes"),
    ("LSTMCell", [*CELL, w(4)], {}, r"P must be \[3\*hidden\] = \[12\]"),
    ("LSTMCell", [*CELL[:3], w(16, 8), w(16)], {}, r"the joined weights must be .* = \[16, 9\]"),
    ("LSTMSequence", [A[0], *SEQUENCE[1:]], {"direction": "forward"}, r"X must be \[batch, time, input\]"),
    ("LSTMSequence", [A, w(2, 2, 4), *SEQUENCE[2:]], {"direction": "reverse"}, r"a state must be .batch, 1"),
    ("GatherTree", [I, I, c([1, 2]), c(0)], {}, r"\[2, 3, 5\] and \[2\] are no beams"),
    ("CTCGreedyDecoder", [A[0], A[0]], {}, r"\[3, 5\] are no scores of labels"),
    ("CTCGreedyDecoderSeqLen", [A, c([[1, 1]])], {}, "needs one length for each of 2 sequences"),
    ("Add", [A, A[0]], {"auto_broadcast": "none"}, r"shapes \[2, 3, 5\] and \[3, 5\] do not fit together"),
    ("DFT", [A[:, :, :2], c([0, 0])], {}, "axes must be some, each once"),
    ("STFT", [A, w(4), c(4), c(1)], {"transpose_frames": "false"}, "no signals of a frame of 4"),
    ("StridedSlice", [A, c([0, 0]), c([1]), c([1, 1])], WHOLE, "begin, end and strides have different"),
    ("StridedSlice", [A, *[c([1] * 4)] * 3], WHOLE, "slices more axes than .* has"),
    ("StridedSlice", [A, c([7]), c([8]), c([1])], {**WHOLE, "shrink_axis_mask": "1"}, "index 7 out of range"),
    ("Pad", [A, c([0, 0]), c([0, 0, 0])], {"pad_mode": "constant"}, "needs one pad for each axis"),
    ("MatMul", [A[0, 0, 0], A], {}, "a number is no matrix"),
    ("Inverse", [A], {}, r"\[2, 3, 5\] is no square matrix"),
    ("Convolution", [A[0], w(4, 3, 3, 2)],
     {"strides": "1, 1", "dilations": "1, 1", "pads_begin": "0, 0", "pads_end": "0, 0"}, "do not fit"),
    ("AdaptiveAvgPool", [IMAGE, c([2])], {}, r"sizes \[2\] do not fit data"),
    ("Roll", [A, c([1, 2]), c([0])], {}, "needs one shift for each axis"),
    ("Reverse", [A, c([1, 0], bool)], {"mode": "mask"}, "needs a truth for each axis"),
    ("DepthToSpace", [IMAGE], {**SPACE, "block_size": "0"}, "block_size must be at least 1"),
    ("DepthToSpace", [IMAGE], SPACE, r"3 channels are no blocks of 2\^2"),
    ("SpaceToDepth", [IMAGE], SPACE, r"the sizes of \[2, 3, 7, 9\] are no blocks of 2"),
    ("SpaceToDepth", [A[0]], SPACE, r"\[3, 5\] has no axes of space"),
    ("SpaceToBatch", [A, c([1, 2]), NONE, NONE], {}, "needs a block, a front and an end for each axis"),
    ("SpaceToBatch", [A, c([1, 2, 2]), NONE, NONE], {}, "does not divide into blocks"),
    ("BatchToSpace", [A, c([1, 2, 2]), NONE, NONE], {}, "a batch of 2 is no blocks"),
    ("BatchToSpace", [A, c([1, 2, 1]), *[c([0, 4, 0])] * 2], {}, "cuts more than there is off"),
    ("ShuffleChannels", [A], {"axis": "1", "group": "2"}, r"axis 1 of \[2, 3, 5\] is not 2 groups"),
    ("SliceScatter", [A, A[:, :1], c([0, 0]), *[c([1])] * 3], {}, "step and axes have different lengths"),
    ("Bucketize", [A, A[0]], {}, "buckets must have one axis"),
    ("SearchSorted", [A, A[0, :2]], {}, r"\[2, 3, 5\] and \[2, 5\] do not fit"),
    ("BatchNormInference", [A[0, 0], *[w(5)] * 4], {"epsilon": "0"}, "the data has no channel axis"),
    ("LRN", [IMAGE, c([1])], {"alpha": "1", "beta": "1", "bias": "1", "size": "0"}, "size must be at least"),
    ("FakeQuantize", [A, *[w()] * 4], {"levels": "1"}, "levels must be at least 2"),
    ("Interpolate@4", [A, c([2]), w(1), c([1, 2])], SIZED, "one of the sizes for each axis, each"),
    ("Interpolate@11", [A, c([2]), c([1]), c([1])], SIZED, "has an input too many"),
    ("Interpolate@11", [A, c([-1, 1], np.float32), c([1, 2])], SIZED | {"shape_calculation_mode": "scales"},
     "scales must be above zero"),
    ("Interpolate@4", [IMAGE, c([3, 20]), w(2), c([2, 3])], SIZED | {"mode": "linear", "antialias": "true"},
     "antialias of axes that grow beside such that shrink"),
    ("Interpolate@4", [A, c([2]), w(1), c([1])], SIZED | {"pads_begin": "0, 0, 0, 0"}, "pads must be"),
    ("Col2Im", [A, c([4]), c([2, 2])], {}, "needs blocks .*, and height and width"),
    ("CumSum", [A, c([0, 1])], {}, "axis must be one number"),
    ("Reshape", [A, c([-1, -1])], {"special_zero": "false"}, r"cannot reshape to \[-1, -1\]"),
    ("Reshape", [A, c([2, 3, 5, 0])], {"special_zero": "true"}, "cannot keep dimension 3"),
    ("Concat", [A, A[:, :, :2]], {"axis": "0"}, r"cannot join \[2, 3, 5\] and \[2, 3, 2\] along axis 0"),
    ("Split", [A, c(1)], {"num_splits": "1"}, "num_splits is 1, but there are 2 outputs"),
    ("Split", [A, c(1)], {"num_splits": "2"}, "cannot split axis 1 .* into 2 equal parts"),
    ("VariadicSplit", [A, c(1), c([-2])], {}, r"cannot split axis 1 of \[2, 3, 5\] into \[-2\]"),
    ("Broadcast@3", [A, c([2, 3, 5]), c([0, 1, 2])], {"mode": "numpy"}, "axes_mapping is of the mode"),
    ("Broadcast", [A, c([2, 3, -5])], {"mode": "numpy"}, r"cannot broadcast to \[2, 3, -5\]"),
    ("Broadcast", [A, c([2, 3, 5]), c([0, 2, 1])], {"mode": "explicit"}, r"axes_mapping .* does not fit"),
    ("Broadcast", [A, c([3, 5])], {"mode": "numpy"}, r"cannot broadcast \[2, 3, 5\] to \[3, 5\]"),
    ("Tile", [A, c([1, -1, 1])], {}, r"cannot repeat \[1, -1, 1\] times"),
    ("Range", [c(0), c(4), c(0)], {"output_type": "i64"}, "start, stop and step do not make a range"),
    ("TopK", [A, c(9)], {"axis": "1", "mode": "max", "sort": "value"}, "k is 9, but axis 1 of .* is shorter"),
    ("Gather", [A, A, c(0)], {}, "indices must be integers"),
]  # fmt: skip
OUTPUTS = {
    "ConvertPromoteTypes": 2,
    "LSTMCell": 2,
    "LSTMSequence": 3,
    "CTCGreedyDecoderSeqLen": 2,
    "Split": 2,
    "TopK": 2,
}


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "says"), WRONG, ids=[f"{w[0]}-{i}" for i, w in enumerate(WRONG)]
)
def test_layers_that_do_not_fit_are_refused_when_read(tmp_path, kind, inputs, attributes, says):
    kind, _, opset = kind.partition("@")
    version = f"opset{opset or SINCE.get(kind.lower(), 1)}"
    if kind.startswith("LSTM"):
        attributes = {"hidden_size": "4", **attributes}
    path, _, _ = write_layer(tmp_path, kind, inputs, (A,) * OUTPUTS.get(kind, 1), version, attributes)
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


def columns(net, x, made):
    return net.add("MatMul", [x, net.const(np.ones((5, made), np.float32))])


def steps(net, x, made):
    states, lengths = net.const(np.zeros((7, 1, made), np.float32)), net.const(np.full(7, 3))
    parts = [net.const(np.ones((1, 3 * made, n), np.float32)) for n in (5, made)]
    bias = net.const(np.zeros((1, 3 * made), np.float32))
    layer, port = net.add("GRUSequence", [x, states, lengths, *parts, bias], ["FP32"] * 2, "opset5",
                          hidden_size=made)  # fmt: skip
    return layer, port + 1


def step(net, x, made):
    parts = [net.const(np.ones(size, np.float32)) for size in ((made, 5), (made, made), (made,))]
    return net.add("RNNCell", [x, net.const(np.zeros((7, made), np.float32)), *parts], hidden_size=made)


@pytest.mark.parametrize(
    ("first", "shape"), [(columns, "?,?,?"), (columns, "?"), (steps, "7,?,?"), (step, "7,?")]
)
def test_what_stands_behind_a_layer_of_any_number_of_features(tmp_path, first, shape):
    """Weights say how many there are; the sizes that are tried as a file is read are others."""
    net = Net()
    made = first(net, net.parameter("x", shape), 4)
    net.result(net.add("MatMul", [made, net.const(np.ones((6, 2), np.float32))], name="behind"))
    with pytest.raises(IRError, match=r"MatMul layer \d+ 'behind': \[.*4\] x \[6, 2\] do not match"):
        load(net.write(tmp_path))


@pytest.mark.parametrize("first", [columns, step])
def test_layers_of_any_number_of_features_are_read(tmp_path, first):
    net = Net()
    net.result(net.add("Tanh", [first(net, net.parameter("x", "7,?"), 4)]))
    assert load(net.write(tmp_path))(np.ones((7, 5), np.float32))[0].shape == (7, 4)
