"""Layers that move elements, work on bits, or are sums of products, beside what numpy says of each."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(5)
A = RNG.standard_normal((2, 3, 4)).astype(np.float32)
I = RNG.integers(-7, 8, (2, 3, 4)).astype(np.int32)
SHIFTS = RNG.integers(0, 4, (3, 1)).astype(np.int32)
IMAGE = RNG.standard_normal((2, 8, 4, 6)).astype(np.float32)
SUMS = np.stack([IMAGE[:, :, 0, 0] + IMAGE[:, :, 0, 1], IMAGE[:, :, 0, 2]], -1)
SQUARE = (RNG.standard_normal((2, 3, 3)) + 3 * np.eye(3)).astype(np.float32)
BLOCKS = RNG.standard_normal((2, 12, 6)).astype(np.float32)
ODD = np.array([[np.inf, -np.inf, np.nan, 1.0]], np.float32)
NEAR = np.sort(RNG.standard_normal((2, 3, 5)).astype(np.float32), -1)
PLACES = RNG.integers(0, 3, (2, 7, 1)).astype(np.int64)
EACH = RNG.integers(-4, 4, (2, 3, 1)).astype(np.int64)


def places(image, corners):
    """Those of an image's elements from right to left."""
    high, wide = image.shape[2:]
    y, x = ((2 * np.arange(n) + 1) / n - 1 if not corners else np.linspace(-1, 1, n) for n in (high, wide))
    found = np.stack(np.broadcast_arrays(x[::-1], y[:, None]), -1)
    return np.stack([found] * len(image)).astype(np.float32)


BOXES = np.array([[[0, 0, 2, 2], [0, 2, 1, 0], [5, 5, 6, 6], [6, 6, 5, 5]]], np.float32)  # two pairs
SCORES = np.array([[[0.5, 0.75, 0.25, 0.125], [0, 0.125, 0.5, 0.25]]], np.float32)
CENTRED = np.array([[[1, 1, 2, 2], [0.5, 1, 1, 2], [5.5, 5.5, 1, 1], [5.5, 5.5, 1, 1]]], np.float32)
WHOLE = np.array([[0, 0, 6, 4]] * 2, np.float32)  # beginning at -0.5: a sample an element
SWAPPED = np.array([1, 0], np.int32)


def aligned(mode="avg", scale=1, **more):
    sizes = {"pooled_h": "4", "pooled_w": "6", "sampling_ratio": "1"}
    return sizes | {"mode": mode, "spatial_scale": str(scale)} | more


def c(value, dtype=np.int64):
    return ("const", np.asarray(value, dtype=dtype))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attended(mask=0.0, scale=0.5):
    return softmax(A @ A.transpose(0, 2, 1) * scale + mask) @ A


def windows(x, size):
    reach = (size - 1) // 2
    sums = [np.square(x[:, max(0, k - reach) : k + reach + 1]).sum(1) for k in range(x.shape[1])]
    return x / (2 + 0.9 / size * np.stack(sums, 1)) ** 0.7


def in_blocks(x, first):
    batch, channels, high, wide = x.shape
    parts = x.reshape(batch, 2, 2, channels // 4, high, wide) if first else None
    if first:
        return parts.transpose(0, 3, 4, 1, 5, 2).reshape(batch, channels // 4, high * 2, wide * 2)
    parts = x.reshape(batch, channels // 4, 2, 2, high, wide)
    return parts.transpose(0, 1, 4, 2, 5, 3).reshape(batch, channels // 4, high * 2, wide * 2)


def overlapped(blocks, stride):
    """Images of two by three blocks of two by two."""
    image = np.zeros((len(blocks), 3, 2 + stride, 2 + 2 * stride), np.float32)
    for k, part in enumerate(np.moveaxis(blocks.reshape(len(blocks), 3, 2, 2, 6), -1, 0)):
        y, x = stride * (k // 3), stride * (k % 3)
        image[:, :, y : y + 2, x : x + 2] += part
    return image


def updated():
    found = A.copy()
    found[:, 2:0:-1, ::2] = -A[:, :2, :2]
    return found


def of_groups(x):
    parts = x.reshape(2, 4, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 0.01)
    return parts.reshape(x.shape) * np.arange(8)[:, None, None] + 1


TURNED = RNG.standard_normal((8, 3, 3, 2)).astype(np.float32)


def back(channels=slice(8), cut=(0, 0), end=(0, 0)):
    """A transposed convolution with strides 2 and 1, dilations 1 and 2: the sum of what each number adds."""
    out = np.zeros((2, 3, 2 * 3 + 3, 5 + 3), np.float32)
    for k in range(3):
        for m in range(2):
            part = np.einsum("bchw,co->bohw", IMAGE[:, channels], TURNED[channels, :, k, m])
            out[:, :, k : k + 7 : 2, 2 * m : 2 * m + 6] += part
    out = np.pad(out, [(0, 0), (0, 0), *((0, max(0, -n)) for n in end)])
    return out[:, :, cut[0] : out.shape[2] - max(0, end[0]), cut[1] : out.shape[3] - max(0, end[1])]


REPEATS = np.array([[3, 1, 3], [3, 0, 1]])
STEPS = np.array([[[5, 6]], [[7, 9]], [[8, 4]]], np.int32)
FROM = np.array([[[0, 0]], [[0, 0]], [[1, 0]]], np.int32)
BEST = np.array([[1, 1, 3, 1, 0], [2, 3, 3, 0, 0]])
LABELS = np.eye(4, dtype=np.float32)[BEST]
TABLE = RNG.standard_normal((4, 3)).astype(np.float32)
WEIGHTS = np.array([1, 2, 3, 4], np.float32)
BAG = [TABLE, c([0, 2, 3, 1], np.int32), c([0, 2, 2], np.int32)]
BAGS = [TABLE[0] + TABLE[2], TABLE[1] * 0, TABLE[3] + TABLE[1]]
PAIRS = RNG.standard_normal((2, 3, 4, 2)).astype(np.float32)


def pairs(x):
    return np.stack([x.real, x.imag], -1)


COMPLEX = PAIRS[..., 0] + 1j * PAIRS[..., 1]
SIGNAL = RNG.standard_normal((2, 23)).astype(np.float32)
WINDOW = np.hanning(6).astype(np.float32) + 0.1  # of a frame of 8


def frames(x):
    window = np.pad(WINDOW, 1)
    cut = [x[:, at : at + 8] * window for at in range(0, x.shape[1] - 7, 3)]
    return pairs(np.fft.rfft(np.stack(cut, 1)))


def joined(center, scale=1.0, length=None):
    """The frames put together again, each where it was."""
    window, out, weight = np.pad(WINDOW, 1), np.zeros((2, 23)), np.zeros(23)
    found = frames(SIGNAL)
    for k, at in enumerate(range(0, 16, 3)):
        out[:, at : at + 8] += np.fft.irfft(found[:, k, :, 0] + 1j * found[:, k, :, 1], 8) * window
        weight[at : at + 8] += window**2
    out = np.divide(out, weight, out=out, where=weight != 0) * scale
    start = 4 if center else 0
    return out[:, start : 23 - start] if length is None else out[:, start : start + length]


HALVES = (np.arange(8) + 0.5) / 2 - 0.5  # of 4 numbers: where 8 stand
F8 = np.apply_along_axis(lambda row: np.interp(HALVES, np.arange(4), row), 2, A)
AFTER = np.triu(np.full((3, 3), -np.inf, np.float32), 1)
CASES = [  # type, inputs, result, version, and attributes
    ("ROIAlign", [IMAGE, WHOLE - np.float32(0.5), SWAPPED], IMAGE[::-1], "opset3", aligned()),
    ("ROIAlign", [IMAGE, 2 * WHOLE, SWAPPED], IMAGE[::-1], "opset9",
     aligned(scale=0.5, aligned_mode="half_pixel_for_nn")),
    ("ROIAlign", [IMAGE, 2 * WHOLE - np.float32(0.5), SWAPPED.astype(np.int64)], IMAGE[::-1].clip(0),
     "opset9", aligned("max", 0.5, aligned_mode="half_pixel")),
    ("ROIAlign", [IMAGE, WHOLE[:, [2, 3, 0, 1]], SWAPPED], 0 * IMAGE, "opset9",
     aligned("max", aligned_mode="half_pixel") | {"sampling_ratio": "0"}),
    ("NonMaxSuppression", [BOXES, SCORES, c(3), c(0.25, np.float32)],
     [[0, 0, 1], [0, 1, 2], [0, 0, 2], [0, 1, 1]], "opset1", {}),
    ("NonMaxSuppression", [CENTRED, SCORES, c([3]), c(0.25, np.float32), c([0.25], np.float32)],
     [[0, 0, 1], [0, 1, 2]], "opset3", {"box_encoding": "center", "output_type": "i32"}),
    ("NonMaxSuppression", [BOXES, SCORES, c(1), c(0.5, np.float32)], [[0, 0, 1], [0, 1, 2]], "opset4",
     {"sort_result_descending": "false"}),
    ("NonMaxSuppression", [BOXES, SCORES],
     (np.zeros((0, 3), int), np.zeros((0, 3), np.float32), [0]), "opset5", {}),
    ("NonMaxSuppression", [BOXES, SCORES[:, :1], c(3), c(0.5, np.float32), c(0.25, np.float32),
     c(0.5, np.float32)], ([[0, 0, 1], [0, 0, 0]],
     np.array([[0, 0, 0.75], [0, 0, 0.5 * np.exp(-0.25)]], np.float32), [2]), "opset9", {}),
    ("Einsum", [A, A], A @ A.transpose(0, 2, 1), "opset7", {"equation": "bij, bkj -> bik"}),
    ("Unique", [REPEATS], ([0, 1, 3], [4, 1, 0], [2, 1, 2, 2, 0, 1], [1, 2, 3]), "opset10", {}),
    ("Unique", [REPEATS], ([3, 1, 0], [0, 1, 4], [0, 1, 0, 0, 2, 1], [3, 2, 1]), "opset10",
     {"sorted": "false", "index_element_type": "i32"}),
    ("Unique", [REPEATS, c([-2])], (REPEATS[::-1], [1, 0], [1, 0], [1, 1]), "opset10", {}),
    ("GatherTree", [STEPS, FROM, np.array([3], np.int32), c(9, np.int32)],
     np.array([[[5, 5]], [[9, 7]], [[9, 4]]]), "opset1", {}),
    ("GatherTree", [STEPS, FROM, np.array([0], np.int32), c(9, np.int32)], np.full((3, 1, 2), 9),
     "opset1", {}),
    ("CTCGreedyDecoder", [LABELS.transpose(1, 0, 2), np.array([[1, 1]] * 4 + [[0, 1]], np.float32)],
     np.array([[1, 1, -1, -1, -1], [2, 0, -1, -1, -1]], np.float32)[:, :, None, None], "opset1", {}),
    ("CTCGreedyDecoderSeqLen", [LABELS, np.array([5, 2], np.int32)],
     ([[1, 1, 1, 0, -1], [2, -1, -1, -1, -1]], [4, 1]), "opset6", {"merge_repeated": "false"}),
    ("CTCGreedyDecoderSeqLen", [LABELS, np.array([5, 4], np.int32), c(0, np.int32)],
     ([[1, 3, 1, -1, -1], [2, 3, -1, -1, -1]], [3, 2]), "opset6", {}),
    ("EmbeddingBagOffsetsSum", BAG, np.stack(BAGS), "opset3", {}),
    ("EmbeddingBagOffsetsSum", [*BAG, c(2, np.int32), WEIGHTS],
     np.stack([TABLE[0] + 2 * TABLE[2], TABLE[2], 3 * TABLE[3] + 4 * TABLE[1]]), "opset3", {}),
    ("EmbeddingBagOffsets", BAG, np.stack(BAGS) / 2, "opset15", {"reduction": "mean"}),
    ("EmbeddingBagPackedSum", [TABLE, c([[0, 2], [3, 1]]), WEIGHTS.reshape(2, 2)],
     np.stack([TABLE[0] + 2 * TABLE[2], 3 * TABLE[3] + 4 * TABLE[1]]), "opset3", {}),
    ("EmbeddingBagPacked", [TABLE, c([[0, 2], [3, 1]])], np.stack(BAGS)[::2] / 2, "opset15",
     {"reduction": "mean"}),
    ("EmbeddingSegmentsSum", [*BAG[:2], c([0, 0, 2, 2], np.int32), c(4), c(1)],
     np.stack([*BAGS[:1], TABLE[1], BAGS[2], TABLE[1]]), "opset3", {}),
    ("Interpolate", [A, c([2, 8])], A[:, [0, 2]][:, :, [0, 0, 1, 1, 2, 2, 3, 3]], "opset1",
     {"mode": "nearest", "axes": "1, 2", "align_corners": "false"}),
    ("Interpolate", [A, c([2]), c([2.0], np.float32), c([1])], A.repeat(2, 1), "opset4",
     {"mode": "nearest", "shape_calculation_mode": "scales", "pads_begin": "0", "pads_end": "0"}),
    ("Interpolate", [A, c([2]), c([-1])], (A[..., ::2] + A[..., 1::2]) / 2, "opset11",
     {"mode": "linear", "shape_calculation_mode": "sizes"}),
    ("DFT", [PAIRS, c([1])], pairs(np.fft.fft(COMPLEX, axis=1)), "opset7", {}),
    ("IDFT", [PAIRS, c([2, 0]), c([3, -1])], pairs(np.fft.ifft2(COMPLEX, (3, 2), (2, 0))), "opset7", {}),
    ("RDFT", [A, c([0, -1])], pairs(np.fft.rfft2(A, axes=(0, 2))), "opset9", {}),
    ("IRDFT", [PAIRS, c([2])], np.fft.irfft(COMPLEX, axis=2), "opset9", {}),
    ("STFT", [SIGNAL, WINDOW, c(8), c(3)], frames(SIGNAL), "opset15", {"transpose_frames": "false"}),
    ("STFT", [SIGNAL[0], WINDOW, c(8), c(3)], frames(SIGNAL)[0].transpose(1, 0, 2), "opset15",
     {"transpose_frames": "true"}),
    ("ISTFT", [frames(SIGNAL).transpose(0, 2, 1, 3).astype(np.float32), WINDOW, c(8), c(3)],
     joined(False), "opset16", {"center": "false", "normalized": "false"}),
    ("ISTFT", [frames(SIGNAL).transpose(0, 2, 1, 3).astype(np.float32), WINDOW, c(8), c(3), c(17)],
     joined(True, 8**0.5, 17), "opset16", {"center": "true", "normalized": "true"}),
    ("SpaceToBatch", [np.arange(12).reshape(1, 4, 3), c([1, 2, 1]), c([0, 1, 0]), c([0, 1, 0])],
     [[[0, 0, 0], [3, 4, 5], [9, 10, 11]], [[0, 1, 2], [6, 7, 8], [0, 0, 0]]], "opset2", {}),
    ("BatchToSpace", [np.arange(12).reshape(2, 2, 3), c([1, 2, 1]), c([0, 1, 0]), c([0, 0, 1])],
     [[[6, 7], [3, 4], [9, 10]]], "opset2", {}),
    ("Roll", [A, c([1, -6]), c([0, -1])], np.roll(A, (1, -6), (0, 2)), "opset7", {}),
    ("Roll", [A, c(2), c([2, 1])], np.roll(A, (2, 2), (2, 1)), "opset7", {}),
    ("Reverse", [A, c([0, -1])], A[::-1, :, ::-1], "opset1", {"mode": "index"}),
    ("Reverse", [A, c([False, True, False], bool)], A[:, ::-1], "opset1", {"mode": "mask"}),
    ("GridSample", [IMAGE, places(IMAGE, False)], IMAGE[..., ::-1], "opset9", {}),
    ("GridSample", [IMAGE, places(IMAGE, True)], IMAGE[..., ::-1], "opset9",
     {"align_corners": "true", "mode": "nearest", "padding_mode": "reflection"}),
    ("GridSample", [IMAGE, places(IMAGE, False) + np.float32(2)], 0 * IMAGE, "opset9", {"mode": "bicubic"}),
    ("Col2Im", [BLOCKS, c([3, 4]), c([2, 2])], overlapped(BLOCKS, 1), "opset15", {}),
    ("Col2Im", [BLOCKS[0], c([4, 6]), c([2, 2])], overlapped(BLOCKS, 2)[0], "opset15", {"strides": "2,2"}),
    ("Col2Im", [BLOCKS, c([2, 2]), c([2, 2])], overlapped(BLOCKS, 1)[:, :, 1:, 1:3], "opset15",
     {"strides": "1,1", "dilations": "1,1", "pads_begin": "1,1", "pads_end": "0,1"}),
    ("BitwiseAnd", [I, SHIFTS], I & SHIFTS, "opset13", {}),
    ("BitwiseOr", [I, SHIFTS], I | SHIFTS, "opset13", {}),
    ("BitwiseXor", [I, SHIFTS], I ^ SHIFTS, "opset13", {}),
    ("BitwiseNot", [I], ~I, "opset13", {}),
    ("BitwiseNot", [A > 0], A <= 0, "opset13", {}),
    ("BitwiseLeftShift", [I, SHIFTS], I << SHIFTS, "opset15", {}),
    ("BitwiseRightShift", [I, SHIFTS], I >> SHIFTS, "opset15", {}),
    ("IsInf", [ODD], np.isinf(ODD), "opset10", {}),
    ("IsInf", [ODD], np.isposinf(ODD), "opset10", {"detect_negative": "false"}),
    ("IsInf", [ODD], np.isneginf(ODD), "opset10", {"detect_positive": "false"}),
    ("Bucketize", [I, c([-3, 0, 2], np.int32)], np.searchsorted([-3, 0, 2], I), "opset3", {}),
    ("Bucketize", [I, c([-3, 0, 2], np.int32)], np.searchsorted([-3, 0, 2], I, "right"), "opset3",
     {"with_right_bound": "false", "output_type": "i32"}),
    ("SearchSorted", [c([-1, 0, 1], np.float32), A], np.searchsorted([-1, 0, 1], A), "opset15", {}),
    ("SearchSorted", [NEAR, NEAR[..., :2]],
     np.stack([[np.searchsorted(r, r[:2], "right") for r in m] for m in NEAR]), "opset15",
     {"right_mode": "true"}),
    ("Inverse", [SQUARE], np.linalg.inv(SQUARE), "opset14", {"adjoint": "false"}),
    ("Inverse", [SQUARE], np.linalg.inv(SQUARE).transpose(0, 2, 1), "opset14", {"adjoint": "true"}),
    ("ScaledDotProductAttention", [A, A, A], attended(), "opset13", {"causal": "false"}),
    ("ScaledDotProductAttention", [A, A, A], attended(AFTER), "opset13", {"causal": "true"}),
    ("ScaledDotProductAttention", [A, A, A, c(AFTER == 0, bool)], attended(AFTER), "opset13",
     {"causal": "false"}),
    ("ScaledDotProductAttention", [A, A, A, c(0.0, np.float32), c(0.3, np.float32)], attended(scale=0.3),
     "opset13", {"causal": "false"}),
    ("LRN", [IMAGE, c([1])], windows(IMAGE, 5), "opset1",
     {"alpha": "0.9", "beta": "0.7", "bias": "2", "size": "5"}),
    ("LRN", [IMAGE, c([1])], windows(IMAGE, 4), "opset1",
     {"alpha": "0.9", "beta": "0.7", "bias": "2", "size": "4"}),
    ("LRN", [IMAGE[:, :0], c([1])], IMAGE[:, :0], "opset1",
     {"alpha": "0.9", "beta": "0.7", "bias": "2", "size": "4"}),
    ("GRN", [IMAGE], IMAGE / np.sqrt(np.square(IMAGE).sum(1, keepdims=True) + 0.3), "opset1",
     {"bias": "0.3"}),
    ("GroupNormalization", [IMAGE, c(np.arange(8), np.float32), c(np.ones(8), np.float32)], of_groups(IMAGE),
     "opset12", {"num_groups": "4", "epsilon": "0.01"}),
    ("DepthToSpace", [IMAGE], in_blocks(IMAGE, True), "opset1", {"mode": "blocks_first", "block_size": "2"}),
    ("DepthToSpace", [IMAGE], in_blocks(IMAGE, False), "opset1", {"mode": "depth_first", "block_size": "2"}),
    ("SpaceToDepth", [in_blocks(IMAGE, True)], IMAGE, "opset1", {"mode": "blocks_first", "block_size": "2"}),
    ("SpaceToDepth", [in_blocks(IMAGE, False)], IMAGE, "opset1", {"mode": "depth_first", "block_size": "2"}),
    ("ShuffleChannels", [IMAGE], IMAGE.reshape(2, 2, 4, 4, 6).transpose(0, 2, 1, 3, 4).reshape(IMAGE.shape),
     "opset1", {"axis": "1", "group": "2"}),
    ("Eye", [c(3), c(4), c(-1)], np.eye(3, 4, -1), "opset9", {"output_type": "f32"}),
    ("Eye", [c(2), c(2), c(0), c([3])], np.stack([np.eye(2, dtype=int)] * 3), "opset9",
     {"output_type": "i64"}),
    ("Slice", [A, c([-9, 1]), c([-9, -9]), c([-1, -1]), c([1, 2])], A[:, :1, 1::-1], "opset8", {}),
    ("GatherND", [A, c([1, 2])], A[1, 2], "opset8", {}),
    ("OneHot", [c([[1, -1]]), c(3), c(5), c(2)], [[[2, 2], [5, 2], [2, 5]]], "opset16",
     {"axis": "1", "negative_indices_mode": "normalize"}),
    ("OneHot", [c([1, -1]), c(3), c(5), c(2)], [[2, 5, 2], [2, 2, 2]], "opset16", {"axis": "-1"}),
    ("Broadcast", [A[0, 0], c([2, 4, 3]), c([1])], np.broadcast_to(A[0, 0][:, None], (2, 4, 3)), "opset1",
     {"mode": "none"}),
    ("Range", [c(0.5, np.float32), c(5.5, np.float32), c(2.5, np.float32)], [0, 2, 4], "opset4",
     {"output_type": "i32"}),
    ("Transpose", [A, c([])], A.transpose(2, 1, 0), "opset1", {}),
    ("Clamp", [I.astype(np.uint8) % 4], np.clip(I.astype(np.uint8) % 4, 0, 2), "opset1",
     {"min": "-1.5", "max": "2.5"}),
    ("Clamp", [I.astype(np.int8)], np.full_like(I, 127), "opset1", {"min": "300", "max": "inf"}),
    ("AvgPool", [IMAGE[:1, :1, :1]], np.append(IMAGE[0, 0, 0, ::4], 0)[None, None, None], "opset1",
     {"kernel": "1, 1", "strides": "1, 4", "auto_pad": "valid", "rounding_type": "ceil"}),
    ("AdaptiveAvgPool", [IMAGE, c([2, 3])], IMAGE.reshape(2, 8, 2, 2, 3, 2).mean((3, 5)), "opset8", {}),
    ("AdaptiveMaxPool", [IMAGE, c([1, 1])],
     (IMAGE.max((2, 3), keepdims=True), IMAGE.reshape(2, 8, -1).argmax(-1)[..., None, None]), "opset8", {}),
    *(("ConvolutionBackpropData", [IMAGE, c(TURNED, np.float32), *size], back(**how), "opset1",
       {"strides": "2, 1", "dilations": "1, 2", "pads_begin": "1, 0", "pads_end": "0, 1", **said})
      for size, said, how in (
          ([], {"output_padding": "1, 0"}, {"cut": (1, 0), "end": (-1, 1)}),
          ([], {"auto_pad": "valid"}, {"cut": (0, 0), "end": (0, 0)}),
          ([c([8, 7])], {"auto_pad": "same_upper"}, {"cut": (1, 1), "end": (0, 0)}),
          ([c([8, 7])], {"auto_pad": "same_lower"}, {"cut": (0, 0), "end": (1, 1)}),
          ([c([8, 7])], {}, {"cut": (1, 0), "end": (0, 1)}),
      )),
    ("GroupConvolutionBackpropData", [IMAGE, c(TURNED.reshape(2, 4, 3, 3, 2), np.float32)],
     np.concatenate([back(part, (0, 0), (0, 0)) for part in (slice(4), slice(4, 8))], 1), "opset1",
     {"strides": "2, 1", "dilations": "1, 2", "pads_begin": "0, 0", "pads_end": "0, 0"}),
    ("Identity", [A], A, "opset16", {}),
    ("SliceScatter", [A, -A[:, :2, :2], c([2, 0]), c([0, 4]), c([-1, 2]), c([1, 2])], updated(), "opset15",
     {}),
    ("GatherND", [A, PLACES], A[np.arange(2)[:, None], PLACES[..., 0]], "opset8", {"batch_dims": "1"}),
    ("GatherND", [A, EACH], np.take_along_axis(A, EACH, 2)[..., 0], "opset8", {"batch_dims": "2"}),
    ("GatherND", [A, EACH], np.take_along_axis(A, EACH, 2).reshape(6), "opset5", {"batch_dims": "2"}),
    ("Add", [A, A[:, :, 0]], A + A[:, :, :1], "opset1", {"auto_broadcast": "pdpd"}),
    ("Add", [A, A[0, :, :1]], A + A[0, :, :1], "opset1", {"auto_broadcast": "pdpd", "axis": "1"}),
    ("Add", [A, A[:1, :, 0]], A + A[:1, :, :1], "opset1", {"auto_broadcast": "pdpd"}),
    ("Multiply", [A, c(3, np.float32)], A * 3, "opset1", {"auto_broadcast": "pdpd"}),
    ("Less", [A, A[0, 0]], A[0, 0] > A, "opset1", {"auto_broadcast": "pdpd", "axis": "-1"}),
    ("Select", [I[:, 0, 0] > 0, A, A[:, :, 0]], np.where(I[:, :1, :1] > 0, A, A[:, :, :1]), "opset1",
     {"auto_broadcast": "pdpd"}),
    ("FakeQuantize", [A, *(c(v, np.float32) for v in ([-1, 0], [1, 2], [-1, 0], [1, 2]))],
     np.stack([A[0].clip(-1, 1) > 0, A[1].clip(0, 2) > 1]) * 2 - np.float32([1, 0])[:, None, None], "opset1",
     {"levels": "2", "auto_broadcast": "pdpd"}),
    ("LogicalNot", [I], (I == 0).astype(np.int32), "opset1", {}),
    ("Elu", [I], np.where(I > 0, I, np.round(2 * np.expm1(np.minimum(I, 0)))).astype(np.int32), "opset1",
     {"alpha": "2"}),
    ("Interpolate", [A, c([8])], F8, "opset1",
     {"axes": "2", "mode": "linear", "align_corners": "false"}),
    ("HSwish", [c([65504.0, -4.0, 1.5], np.float16)], np.float16([65504, 0, 1.125]), "opset4", {}),
    ("ErfInv", [c([0.0, 1.0, -1.0], np.float32)], [0, np.inf, -np.inf], "opset17", {}),
    ("ReduceMean", [A[:, :0], c([1])], np.zeros((2, 4)), "opset1", {}),
    *(("ReduceSum", [A[0, 0, 0], c(axis)], A[0, 0, 0], "opset1", {}) for axis in ([0], [-1], [])),
    ("SoftMax", [A[0, 0, 0]], np.float32(1), "opset8", {"axis": "-1"}),
    ("MVN", [A, c([])], 0 * A, "opset6",
     {"normalize_variance": "true", "eps": "0.1", "eps_mode": "INSIDE_SQRT"}),
    ("MVN", [A[0]], 0 * A[0], "opset2", {"eps": "0.1", "across_channels": "false"}),
    ("NormalizeL2", [A, c([])], A / A, "opset1", {"eps": "0.1", "eps_mode": "add"}),
    ("Reshape", [A[:0], c([0, -1])], np.zeros((0, 1)), "opset1", {"special_zero": "false"}),
    ("AvgPool", [IMAGE], IMAGE, "opset14",
     {"kernel": "1, 1", "strides": "1, 1", "pads_begin": "0, 0", "pads_end": "0, 1",
      "rounding_type": "ceil_torch", "exclude-pad": "false"}),
    *(("AvgPool", [IMAGE[:, :, :1, :3]], SUMS[:, :, None] / divisors, "opset1",
       {"kernel": "1, 2", "strides": "1, 2", "rounding_type": "ceil", "exclude-pad": "false", **pads})
      for divisors, pads in (
          ([2, 1], {"pads_begin": "0, 0", "pads_end": "0, 0"}),
          ([2, 1], {"pads_begin": "0, 1", "pads_end": "0, 1", "auto_pad": "valid"}),
          ([2, 2], {"pads_begin": "0, 0", "pads_end": "0, 1"}))),
    ("Broadcast", [A[0, :, 0], c([3, 2]), c([0])], np.stack([A[0, :, 0]] * 2, 1), "opset1", {}),
    ("NonZero", [A[0, 0, 0]], [[0]], "opset3", {}),
    ("SegmentMax", [TABLE, c([0, 0, 3, 3]), c(5)],
     np.stack([TABLE[:2].max(0), 0 * TABLE[0], 0 * TABLE[0], TABLE[2:].max(0), 0 * TABLE[0]]), "opset16",
     {"fill_mode": "ZERO"}),
    ("SegmentMax", [TABLE, c([0, 0, 1, 2]), c(2)], np.stack([TABLE[:2].max(0), TABLE[2]]), "opset16",
     {"fill_mode": "LOWEST"}),
    ("SegmentMax", [TABLE, c([0, 0, 2, 2])],
     np.stack([TABLE[:2].max(0), 0 * TABLE[0] + np.finfo(np.float32).min, TABLE[2:].max(0)]), "opset16",
     {"fill_mode": "LOWEST"}),
]  # fmt: skip
