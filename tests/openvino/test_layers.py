"""Each type of layer against numpy, or torch's own operator where numpy has none."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import openvino_rows
from ir_files import Net, write_layer
from stepnet.errors import IRError
from stepnet.openvino import load, supported_types
from stepnet.openvino.table import ROWS as TABLE
from tables import holds

RNG = np.random.default_rng(3)
A = RNG.standard_normal((2, 3, 5)).astype(np.float32)
B = RNG.standard_normal((3, 1)).astype(np.float32)
P = np.abs(A) + 0.1
U = (RNG.random((2, 3, 5)) * 1.6 - 0.8).astype(np.float32)
I = RNG.integers(-7, 8, (2, 3, 5)).astype(np.int64)
J = RNG.integers(1, 5, (3, 1)).astype(np.int64)
LEAST = np.full(5, -(2**63))  # by -1 it is itself; torch.div ends the process
IMAGE = RNG.standard_normal((2, 3, 7, 9)).astype(np.float32)
KERNEL = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)
CHANNELS = [RNG.random(3).astype(np.float32) + 0.5 for _ in range(4)]


def c(value, dtype=np.int64):
    """An input that is a constant of the file."""
    return ("const", np.asarray(value, dtype=dtype))


def t(array):
    return torch.from_numpy(np.ascontiguousarray(array))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def trunc_mod(a, b):
    return np.fmod(a, b)


def row(kind, inputs, expected, version="opset1", label="", **attributes):
    return pytest.param(kind, inputs, expected, version, attributes, id=f"{kind}{label and '-'}{label}")


def top_k(k, largest):
    order = np.argsort(-A if largest else A, axis=2, kind="stable")[..., :k]
    return np.take_along_axis(A, order, 2), order


def mvn(x, axes, eps, inside):
    centred = x - x.mean(axes, keepdims=True)
    variance = x.var(axes, keepdims=True)
    return centred / (np.sqrt(variance + eps) if inside else np.sqrt(variance) + eps)


def batch_norm():
    g, b, m, v = (part[:, None, None] for part in CHANNELS)
    return (IMAGE - m) / np.sqrt(v + 0.01) * g + b


def quantized():
    low, high, steps = -1.0, 1.0, 15
    inside = np.round((np.clip(A, low, high) - low) / (high - low) * steps) / steps * 4 - 2
    return np.where(low >= A, -2.0, np.where(high < A, 2.0, inside))


def padded_max_pool(x):
    return F.max_pool2d(F.pad(t(x), (0, 1, 1, 0), value=-math.inf), (3, 2), (2, 2)).numpy()


X_AXIS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}
ROWS = [
    row("Add", [A, B], A + B),
    row("Subtract", [A, B], A - B),
    row("Multiply", [A, B], A * B),
    row("Divide", [A, B], A / B),
    row("Divide", [I, J], I // J, label="whole", m_pythondiv="true"),
    row("Divide", [LEAST, I[0, 0] * 0 - 1], LEAST, label="least", m_pythondiv="false"),
    row("Power", [P, B], P**B),
    row("Maximum", [A, B], np.maximum(A, B)),
    row("Minimum", [A, B], np.minimum(A, B)),
    row("Mod", [I, J], trunc_mod(I, J)),
    row("FloorMod", [I, J], np.mod(I, J)),
    row("SquaredDifference", [A, B], (A - B) ** 2),
    row("Equal", [I, J], I == J),
    row("NotEqual", [I, J], I != J),
    row("Greater", [A, B], A > B),
    row("GreaterEqual", [I, J], I >= J),
    row("Less", [A, B], A < B),
    row("LessEqual", [I, J], I <= J),
    row("LogicalAnd", [A > 0, B > 0], (A > 0) & (B > 0)),
    row("LogicalOr", [A > 0, B > 0], (A > 0) | (B > 0)),
    row("LogicalXor", [A > 0, B > 0], (A > 0) ^ (B > 0)),
    row("LogicalNot", [A > 0], A <= 0),
    row("Select", [B > 0, A, 2 * A], np.where(B > 0, A, 2 * A)),
    row("Convert", [A * 9], (A * 9).astype(np.int32), destination_type="i32"),
    row("Convert", [I], I != 0, label="to truth", destination_type="boolean"),
    row("ConvertLike", [I, A], I.astype(np.float32)),
    row("ConvertPromoteTypes", [I, A], (I.astype(np.float32), A), version="opset14", promote_unsafe="true"),
    row("Sigmoid", [A], sigmoid(A)),
    row("Tanh", [A], np.tanh(A)),
    row("ReLU", [A], np.maximum(A, 0)),
    row("Exp", [A], np.exp(A)),
    row("Log", [P], np.log(P)),
    row("Sqrt", [P], np.sqrt(P)),
    row("Abs", [A], np.abs(A)),
    row("Negative", [A], -A),
    row("Sign", [A], np.sign(A)),
    row("Floor", [A * 3], np.floor(A * 3)),
    row("Ceiling", [A * 3], np.ceil(A * 3)),
    row(
        "Round",
        [np.array([0.5, 1.5, -2.5, 0.4], np.float32)],
        np.array([0, 2, -2, 0], np.float32),
        "opset5",
        "even",
        mode="half_to_even",
    ),
    row(
        "Round",
        [np.array([0.5, -2.5, 1.2], np.float32)],
        np.array([1, -3, 1], np.float32),
        "opset5",
        "away",
        mode="half_away_from_zero",
    ),
    *(row(n, [U], getattr(np, n.lower())(U)) for n in ("Sin", "Cos", "Tan", "Sinh", "Cosh")),
    row("Asin", [U], np.arcsin(U)),
    row("Acos", [U], np.arccos(U)),
    row("Atan", [A], np.arctan(A)),
    row("Asinh", [A], np.arcsinh(A), "opset4"),
    row("Acosh", [P + 1], np.arccosh(P + 1), "opset4"),
    row("Atanh", [U], np.arctanh(U), "opset4"),
    row("Erf", [A], np.vectorize(math.erf)(A)),
    row("IsNaN", [np.array([1, np.nan], np.float32)], [False, True], "opset10"),
    row("IsFinite", [np.array([1, np.inf, np.nan], np.float32)], [True, False, False], "opset10"),
    row("Clamp", [A], np.clip(A, -0.5, 0.25), min="-0.5", max="0.25"),
    row("Clamp", [A], np.clip(A, -0.5, None), label="no largest", min="-0.5", max="1.7976931348623157e308"),
    row("Clamp", [I], np.clip(I, -1, 2), label="whole", min="-1.5", max="2.5"),
    row("Elu", [A], np.where(A > 0, A, 0.7 * np.expm1(A)), alpha="0.7"),
    row("Gelu", [A], F.gelu(t(A)).numpy(), "opset7", approximation_mode="ERF"),
    row("Gelu", [A], F.gelu(t(A), approximate="tanh").numpy(), "opset7", "tanh", approximation_mode="TANH"),
    row(
        "PReLU", [A, c([0.1, 0.2, 0.3], np.float32)], np.where(A > 0, A, A * np.array([[0.1], [0.2], [0.3]]))
    ),
    row(
        "Selu", [A, c([1.6], np.float32), c([1.05], np.float32)], 1.05 * np.where(A > 0, A, 1.6 * np.expm1(A))
    ),
    row("PReLU", [A, c(np.arange(5), np.float32)], np.where(A > 0, A, A * np.arange(5)), label="no channels"),
    row("PReLU", [A[0, 0, 0] * 0 - 1, c([2], np.float32)], np.float32(-2), label="a number"),
    row(
        "Selu",
        [A[0, 0, 0] * 0 + 1, c([1.6], np.float32), c([1.5], np.float32)],
        np.float32(1.5),
        label="a number",
    ),
    row(
        "HardSigmoid",
        [A[0, 0, 0] * 0 + 1, c([0.5], np.float32), c([0.25], np.float32)],
        np.float32(0.75),
        label="a number",
    ),
    row("Swish", [A], A * sigmoid(A), "opset4"),
    row("Swish", [A, c(0.5, np.float32)], A * sigmoid(0.5 * A), "opset4", "beta"),
    row("HardSigmoid", [A, c(0.3, np.float32), c(0.4, np.float32)], np.clip(0.3 * A + 0.4, 0, 1)),
    row("HSigmoid", [A * 3], np.clip(A * 3 + 3, 0, 6) / 6, "opset5"),
    row("HSwish", [A * 3], A * 3 * np.clip(A * 3 + 3, 0, 6) / 6, "opset4"),
    row("Mish", [A], A * np.tanh(np.log1p(np.exp(A))), "opset4"),
    row("SoftPlus", [A * 40], np.logaddexp(A * 40, 0), "opset4"),
    row("SoftSign", [A], A / (1 + np.abs(A)), "opset9"),
    row("Reshape", [A, c([0, -1])], A.reshape(2, 15), special_zero="true"),
    row("Reshape", [A, c([-1, 10])], A.reshape(3, 10), label="rest", special_zero="false"),
    row("Reshape", [A[:0], c([0, -1])], A[:0].reshape(0, 15), label="empty", special_zero="true"),
    row("Squeeze", [A[:1, :, :1], c([0, -1])], A[0, :, 0]),
    row("Squeeze", [A[:1, :, :1]], A[0, :, 0], label="all"),
    row("Unsqueeze", [A, c([0, -1])], A[None, ..., None]),
    row("Transpose", [A, c([2, 0, 1])], A.transpose(2, 0, 1)),
    row("Concat", [A, A[:, :2]], np.concatenate([A, A[:, :2]], 1), axis="-2"),
    row("Split", [A, c(1)], tuple(np.split(A, 3, 1)), num_splits="3"),
    row("VariadicSplit", [A, c(-1), c([2, -1, 1])], (A[..., :2], A[..., 2:4], A[..., 4:])),
    row("Broadcast", [B, c([4, 3, 5])], np.broadcast_to(B, (4, 3, 5)), "opset3", mode="numpy"),
    row(
        "Broadcast", [B, c([4, 1, 5])], np.broadcast_to(B, (4, 3, 5)), "opset3", "both", mode="bidirectional"
    ),
    row(
        "Broadcast",
        [CHANNELS[0], c([2, 3, 5]), c([1])],
        np.broadcast_to(CHANNELS[0][None, :, None], (2, 3, 5)),
        "opset3",
        "explicit",
        mode="explicit",
    ),
    row("Tile", [A, c([1, 2, 3])], np.tile(A, (1, 2, 3))),
    row("ShapeOf", [A], np.array([2, 3, 5], np.int32), "opset3", output_type="i32"),
    row("Range", [c(1), c(12), c(3)], [1, 4, 7, 10], "opset4", output_type="i64"),
    row("Gather", [A, c([[2, -1], [0, 1]]), c(1)], A[:, [[2, -1], [0, 1]]], "opset8"),
    row(
        "Gather",
        [A, c([[2, 0], [1, 1]]), c(1)],
        np.stack([A[0, [2, 0]], A[1, [1, 1]]]),
        "opset8",
        "batched",
        batch_dims="1",
    ),
    row("Gather", [A, c(1), c(0)], A[1], "opset8", "one"),
    row("GatherElements", [A, c(np.argsort(A, 1))], np.sort(A, 1), "opset6", axis="1"),
    row("GatherND", [A, c([[1, 2], [0, 0]])], A[[1, 0], [2, 0]], "opset8"),
    row("Slice", [A, c([4, 0]), c([0, 2]), c([-2, 1]), c([2, 1])], A[:, 0:2, 4:0:-2], "opset8"),
    row("Slice", [A, c([-(2**31)]), c([2**62]), c([2]), c([2])], A[:, :, ::2], "opset8", "far"),
    row(
        "StridedSlice",
        [A, c([0, 1]), c([9, 2]), c([1, 1])],
        A[:, 1:2],
        begin_mask="1, 0",
        end_mask="1, 0",
        new_axis_mask="",
        shrink_axis_mask="",
        ellipsis_mask="",
    ),
    row(
        "StridedSlice",
        [A, c([0, 0, 1, 4]), c([0, 0, 0, 0]), c([1, 1, 1, -1])],
        A[..., None, 1, ::-1],
        label="masks",
        begin_mask="0,0,0,1",
        end_mask="0,0,0,1",
        new_axis_mask="0,1,0,0",
        shrink_axis_mask="0,0,1,0",
        ellipsis_mask="1,0,0,0",
    ),
    row(
        "Pad",
        [A, c([0, 1, 2]), c([1, 0, 0]), c(0.5, np.float32)],
        np.pad(A, ((0, 1), (1, 0), (2, 0)), constant_values=0.5),
        pad_mode="constant",
    ),
    *(
        row(
            "Pad",
            [A, c([0, 1, 2]), c([0, 0, 1])],
            np.pad(A, ((0, 0), (1, 0), (2, 1)), mode),
            label=mode,
            pad_mode=mode,
        )
        for mode in ("edge", "reflect", "symmetric")
    ),
    row(
        "ReverseSequence",
        [A, c([3, 2])],
        np.stack([A[0, ::-1], A[1][[1, 0, 2]]]),
        batch_axis="0",
        seq_axis="1",
    ),
    row(
        "TopK",
        [A, c(2)],
        top_k(2, True),
        "opset3",
        axis="2",
        mode="max",
        sort="value",
        index_element_type="i64",
    ),
    row(
        "TopK",
        [A, c(3)],
        top_k(3, False),
        "opset11",
        "least",
        axis="-1",
        mode="min",
        sort="value",
        index_element_type="i64",
        stable="true",
    ),
    row("ScatterUpdate", [A, c([2, 0]), A[:, :2], c(1)], np.stack([A[:, 1], A[:, 1], A[:, 0]], 1), "opset3"),
    row(
        "ScatterElementsUpdate",
        [B, c([[1], [0]]), B[:2] * 2, c(0)],
        np.stack([B[1] * 2, B[0] * 2, B[2]]),
        "opset3",
    ),
    *(
        row(
            "ScatterElementsUpdate",
            [c([2.0, 3, 5], np.float32), c([0, 2, 0]), c([4.0, 1, 6], np.float32), c(0)],
            np.array(expected, np.float32),
            "opset12",
            label=f"{how}-{old}",
            reduction=how,
            use_init_val=old,
        )
        for how, old, expected in (
            ("sum", "true", [12.0, 3, 6]),
            ("prod", "true", [48.0, 3, 5]),
            ("min", "true", [2.0, 3, 1]),
            ("max", "true", [6.0, 3, 5]),
            ("mean", "true", [4.0, 3, 3]),
            ("sum", "false", [10.0, 3, 1]),
            ("prod", "false", [24.0, 3, 1]),
            ("min", "false", [4.0, 3, 1]),
            ("mean", "false", [5.0, 3, 1]),
        )
    ),
    row("ScatterNDUpdate", [B, c([[2]]), B[:1]], np.stack([B[0], B[1], B[0]]), "opset4"),
    *(
        row(
            "ScatterNDUpdate",
            [c([[2, 3], [5, 7]]), c([[1], [1]]), c([[4, 1], [6, 9]])],
            np.array(expected),
            "opset15",
            label=how,
            reduction=how,
        )
        for how, expected in (
            ("sum", [[2, 3], [15, 17]]),
            ("sub", [[2, 3], [-5, -3]]),
            ("prod", [[2, 3], [120, 63]]),
            ("min", [[2, 3], [4, 1]]),
            ("max", [[2, 3], [6, 9]]),
        )
    ),
    row(
        "ScatterNDUpdate",
        [c([2, 3]), c([[0], [1], [0]]), c([4, 1, 5])],
        np.array([11, 4]),
        "opset15",
        label="numbers",
        reduction="sum",
    ),
    row("Exp", [c([0, 1, 2])], np.array([1, 3, 7]), label="whole"),
    row("Sqrt", [c([0, 2, 3])], np.array([0, 1, 2]), label="whole"),
    row(
        "OneHot",
        [c([[1], [4]]), c(3), c(5.0, np.float32), c(-1.0, np.float32)],
        [[[-1, 5, -1]], [[-1, -1, -1]]],
        axis="-1",
    ),
    row("NonZero", [np.array([[0, 2], [3, 0]], np.float32)], [[0, 1], [1, 0]], "opset3", output_type="i64"),
    *(row(n, [P, c([0, -1])], f(P, axis=(0, 2), keepdims=True), keep_dims="true") for n, f in X_AXIS.items()),
    row("ReduceSum", [A, c([1])], A.sum(1), label="drop", keep_dims="false"),
    row("ReduceMean", [I, c([1])], np.trunc(I.mean(1)).astype(np.int64), label="whole", keep_dims="false"),
    row("ReduceMax", [A[:, :0], c([1])], np.full((2, 5), -np.inf, "f4"), label="none", keep_dims="false"),
    row("ReduceMin", [I[:, :0], c([1])], np.full((2, 1, 5), 2**63 - 1), label="none", keep_dims="true"),
    row("ReduceL1", [A, c([1])], np.abs(A).sum(1), "opset4", keep_dims="false"),
    row("ReduceL1", [A, c(np.zeros(0, "i8"))], np.abs(A), "opset4", keep_dims="true"),
    row("ReduceL2", [A, c(np.zeros(0, "i8"))], np.abs(A), "opset4", keep_dims="true"),
    row("ReduceL2", [A, c([1])], np.sqrt((A**2).sum(1)), "opset4", keep_dims="false"),
    row("ReduceLogicalAnd", [A > -1, c([1])], (A > -1).all(1), keep_dims="false"),
    row("ReduceLogicalOr", [A > 1, c([1, 2])], (A > 1).any((1, 2)), keep_dims="false"),
    row("SoftMax", [A], np.exp(A) / np.exp(A).sum(1, keepdims=True), axis="1"),
    row("LogSoftmax", [A], A - np.log(np.exp(A).sum(2, keepdims=True)), "opset5", axis="-1"),
    row("CumSum", [A, c(1)], np.cumsum(A, 1), "opset3"),
    row(
        "CumSum",
        [A, c(1)],
        np.flip(np.cumsum(np.flip(A, 1), 1), 1) - A,
        "opset3",
        "back",
        exclusive="true",
        reverse="true",
    ),
    row(
        "MVN",
        [A, c([2])],
        mvn(A, (2,), 1e-3, True),
        "opset6",
        normalize_variance="true",
        eps="0.001",
        eps_mode="INSIDE_SQRT",
    ),
    row(
        "MVN",
        [A, c([1, 2])],
        mvn(A, (1, 2), 1e-1, False),
        "opset6",
        "outside",
        normalize_variance="true",
        eps="0.1",
        eps_mode="OUTSIDE_SQRT",
    ),
    row(
        "NormalizeL2", [A, c([1])], A / np.sqrt((A**2).sum(1, keepdims=True) + 0.1), eps="0.1", eps_mode="add"
    ),
    row(
        "BatchNormInference",
        [IMAGE, *(c(p, np.float32) for p in CHANNELS)],
        batch_norm(),
        "opset5",
        epsilon="0.01",
    ),
    row("FakeQuantize", [A, *(c(v, np.float32) for v in (-1, 1, -2, 2))], quantized(), levels="16"),
    row("MatMul", [A, A], np.matmul(A, A.transpose(0, 2, 1)), transpose_b="true"),
    row("MatMul", [A, B], np.matmul(A.transpose(0, 2, 1), B), label="first", transpose_a="true"),
    row("MatMul", [A, B[:, 0]], np.matmul(A.transpose(0, 2, 1), B[:, 0]), label="vector", transpose_a="true"),
    row(
        "Convolution",
        [IMAGE, c(KERNEL, np.float32)],
        F.conv2d(F.pad(t(IMAGE), (0, 1, 1, 2)), t(KERNEL), stride=(2, 1), dilation=(1, 2)).numpy(),
        strides="2, 1",
        dilations="1, 2",
        pads_begin="1, 0",
        pads_end="2, 1",
        auto_pad="explicit",
    ),
    row(
        "Convolution",
        [IMAGE, c(KERNEL, np.float32)],
        F.conv2d(F.pad(t(IMAGE), (0, 1, 1, 1)), t(KERNEL)).numpy(),
        label="same",
        strides="1, 1",
        dilations="1, 1",
        auto_pad="same_upper",
    ),
    row(
        "GroupConvolution",
        [IMAGE, c(KERNEL[:3, :1, None].transpose(0, 2, 1, 3, 4), np.float32)],
        F.conv2d(t(IMAGE), t(KERNEL[:3, :1]), groups=3).numpy(),
        strides="1, 1",
        dilations="1, 1",
        pads_begin="0, 0",
        pads_end="0, 0",
    ),
    row(
        "MaxPool",
        [IMAGE],
        padded_max_pool(IMAGE),
        strides="2, 2",
        kernel="3, 2",
        pads_begin="1, 0",
        pads_end="0, 1",
        rounding_type="floor",
    ),
    row(
        "MaxPool",
        [IMAGE],
        F.max_pool2d(t(IMAGE), 2, 2, ceil_mode=True).numpy(),
        label="ceil",
        strides="2, 2",
        kernel="2, 2",
        pads_begin="0, 0",
        pads_end="0, 0",
        rounding_type="ceil",
    ),
    row(
        "AvgPool",
        [IMAGE],
        F.avg_pool2d(t(IMAGE), 3, 2, 1, count_include_pad=False).numpy(),
        strides="2, 2",
        kernel="3, 3",
        pads_begin="1, 1",
        pads_end="1, 1",
        rounding_type="floor",
        **{"exclude-pad": "true"},
    ),
    row(
        "AvgPool",
        [IMAGE],
        F.avg_pool2d(t(IMAGE), 3, 2, 1).numpy(),
        label="with pads",
        strides="2, 2",
        kernel="3, 3",
        pads_begin="1, 1",
        pads_end="1, 1",
        rounding_type="floor",
        **{"exclude-pad": "false"},
    ),
]
ROWS += [  # what a version has not yet, and what may be left out
    row("ShapeOf", [A], np.array([2, 3, 5]), "opset2", output_type="i32"),
    row("OneHot", [c([-1, 1]), c(2), c(5), c(2)], np.array([[2, 2], [2, 5]]), "opset15", axis="-1",
        negative_indices_mode="normalize"),
    row("ScatterNDUpdate", [I[0, 0], c([[1], [4]]), c([7, 9])],
        np.array([I[0, 0, 0], 7, *I[0, 0, 2:4], 9]), "opset14", reduction="sum"),
    row("ScatterElementsUpdate", [A[0, 0], c([1, 4]), A[1, 0, :2], c(0)],
        np.array([A[0, 0, 0], A[1, 0, 0], *A[0, 0, 2:4], A[1, 0, 1]]), "opset11", reduction="sum"),
    row("GatherND", [A, c(np.zeros((2, 3, 1)))], A[..., 0].reshape(6), "opset7", batch_dims="2"),
    row("Interpolate", [A[:, :, :2], c([4])], A[:, :, :2].repeat(2, 2), "opset3", axes="2", mode="nearest",
        align_corners="false"),
    row("Interpolate", [A[:, :, :2], c([4]), c([2.0], np.float32), c([2])], A[:, :, :2].repeat(2, 2),
        "opset10", mode="nearest", shape_calculation_mode="scales"),
    row("Convolution", [IMAGE, KERNEL], F.conv2d(t(IMAGE), t(KERNEL)).numpy()),
    row("MaxPool", [IMAGE], F.max_pool2d(t(IMAGE), 2, 1).numpy(), kernel="2, 2"),
]  # fmt: skip
ROWS += [pytest.param(*case, id=f"{case[0]}-{number}") for number, case in enumerate(openvino_rows.CASES)]
ELSEWHERE = {"ReadValue", "Assign", "LSTMCell", "GRUCell", "RNNCell", "LSTMSequence", "GRUSequence",
             "RNNSequence", "TensorIterator", "Loop", "If", "Parameter", "Result", "Const"}  # fmt: skip


@pytest.mark.parametrize("kind", sorted({param.values[0] for param in ROWS}))
def test_layers(tmp_path, kind):
    rows = {f"{row.id}, {at}": row.values for at, row in enumerate(ROWS) if row.values[0] == kind}
    for dynamic in (False, True):
        holds(functools.partial(check, tmp_path, dynamic), rows)


def check(tmp_path, dynamic, *row):
    path, given, outputs = write_layer(tmp_path, *row, dynamic=dynamic)
    found = load(path)(*given)
    for ours, theirs in zip(found, outputs, strict=True):
        theirs = np.asarray(theirs)
        assert tuple(ours.shape) == theirs.shape
        assert ours.dtype.is_floating_point == np.issubdtype(theirs.dtype, np.floating) or not given
        np.testing.assert_allclose(ours.double().numpy(), theirs.astype(np.float64), rtol=2e-5, atol=2e-6)


ONES = np.ones(40, np.float32)
PARTLY_OPEN = {  # lengths beyond those that are tried as a file is read
    "a bias": ("GroupNormalization", [A[:, :, 0] * 0, c([1, 1, 1], np.float32), ONES[:3]],
        np.ones((2, 3)), "opset12", {"num_groups": "3", "epsilon": "1"}, (2,)),
    "frequencies": ("ISTFT", [np.ones((16, 1, 2), np.float32) * 0, ONES[:30], c(30), c(10)], np.zeros(30),
        "opset16", {"center": "false", "normalized": "false"}, (0,)),
    "a signal": ("STFT", [ONES, ONES[:30], c(30), c(10)],
        np.array([[[30.0, 0], *[[0, 0]] * 15]] * 2), "opset15",
        {"transpose_frames": "false"}, (0,)),
    "what is cut off": ("Pad", [np.arange(40.0, dtype=np.float32), c([-30]), c([0])], np.arange(30.0, 40.0),
        "opset12", {"pad_mode": "constant"}, (0,)),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTLY_OPEN)
def test_sizes_that_are_open_beside_others_that_are_not(tmp_path, name):
    *row, is_open = PARTLY_OPEN[name]
    check(tmp_path, is_open, *row)


def of_type(value, kind):
    """As an input of a row, of another element type."""
    constant = isinstance(value, tuple)
    ones = np.ones(np.shape(value[1] if constant else value), kind)
    return ("const", ones) if constant else ones


def test_inputs_of_element_types_that_a_layer_does_not_take_are_refused(tmp_path):
    rows = {row.values[0]: row.values for row in reversed(ROWS)}
    tried = [kind for kind in rows if TABLE[kind.lower()].takes or TABLE[kind.lower()].values]
    assert len(tried) > 100
    for kind, (_, inputs, *more) in ((kind, rows[kind]) for kind in tried):
        row = TABLE[kind.lower()]
        for at, value in enumerate(inputs):
            for name, dtype in {"float32": torch.float32, "uint8": torch.uint8, "bool": torch.bool}.items():
                changed = [*inputs[:at], of_type(value, name), *inputs[at + 1 :]]
                path, _, _ = write_layer(tmp_path, kind, changed, *more)
                wanted, said = row.refused(at, dtype), ""
                try:
                    load(path)
                except IRError as error:
                    said = str(error)
                assert (f"input {at} is of" in said) == (wanted is not None), (kind, at, name, said)
                assert wanted is None or f"expected: {wanted}" in said


def test_every_type_has_a_row_here_or_tests_of_its_own():
    assert {param.values[0] for param in ROWS} | ELSEWHERE == set(supported_types())


def test_unknown_types_are_all_in_one_error(tmp_path):
    net = Net()
    x = net.parameter("x", "2")
    net.result(net.add("Frobnicate", [net.add("Whirl", [x], version="opset3")], name="f"))
    with pytest.raises(IRError) as error:
        load(net.write(tmp_path))
    text = str(error.value)
    assert "2 unsupported layer(s), of type Frobnicate@opset1, Whirl@opset3" in text
    assert "Whirl layer 1" in text
    assert "Frobnicate layer 2 'f'" in text


if __name__ == "__main__":  # the files, for other readers: test_layers.py FOLDER
    for number, param in enumerate(ROWS):
        place = Path(sys.argv[1]) / f"{number}_{param.id}"
        place.mkdir(parents=True)
        _, arrays, wanted = write_layer(place, *param.values)
        np.savez(place / "in.npz", *arrays)
        np.savez(place / "out.npz", *[np.asarray(w) for w in wanted])
