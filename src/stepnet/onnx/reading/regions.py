"""Operators on places in images: samples at them, regions of them, boxes, blocks put back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import Aligning, not_in_recordings, put_back, suppressed

from .info import Info, Run, check_size, dtype_of, op

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic",
          "bicubic": "bicubic"}  # fmt: skip


@op("GridSample", inputs=(2, 2))
def _grid_sample(node: Info) -> Run:
    mode = _MODES[node.choice("mode", _MODES, "linear")]
    padding = node.choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    corners = bool(node.get("align_corners", 0))
    return lambda x, grid: F.grid_sample(x, grid.to(x.dtype), mode, padding, corners)


@op("Col2Im", inputs=(3, 3))
def _col2im(node: Info) -> Run:
    images, blocks = node.listed(1), node.listed(2)

    def col2im(*inputs: Any) -> Tensor:
        x, image, block = inputs[0], images(inputs) or [], blocks(inputs) or []
        rank = len(image)
        strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
        pads = node.get("pads", [0] * 2 * rank)
        return put_back(x, image, block, strides, dilations, pads[:rank], pads[rank:])

    return col2im


@op("RoiAlign", inputs=(3, 3))
def _roi_align(node: Info) -> Run:
    old = "output_half_pixel" if node.opset < 16 else "half_pixel"
    where = node.choice("coordinate_transformation_mode", ("half_pixel", "output_half_pixel"), old)
    mode, scale = node.choice("mode", ("avg", "max"), "avg"), node.get("spatial_scale", 1.0)
    sizes, ratio = [node.get("output_height", 1), node.get("output_width", 1)], node.get("sampling_ratio", 0)
    moved, short = (-0.5, -math.inf) if where == "half_pixel" else (0.0, 1.0)
    return Aligning(sizes, ratio, scale, 0.0, moved, short, "avg" if mode == "avg" else "corners").run


@op("NonMaxSuppression", inputs=(2, 5))
def _non_max_suppression(node: Info) -> Run:
    centred = bool(node.get("center_point_box", 0))
    most, overlap, least = node.listed(2), node.listed(3), node.listed(4)

    def suppress(*inputs: Any) -> Tensor:
        not_in_recordings()
        (count,), (share,) = most(inputs) or [0], overlap(inputs) or [0.0]
        (known,) = least(inputs) or [None]
        return suppressed(inputs[0], inputs[1], count, share, known, centred=centred)[0]

    return suppress


@op("MelWeightMatrix", inputs=(5, 5))
def _mel_weights(node: Info) -> Run:
    dtype = dtype_of(node.get("output_datatype", 1))

    def weights(*inputs: Tensor) -> Tensor:
        bins, length, rate, low, high = (value.reshape(()).item() for value in inputs)
        (rows, columns) = check_size([int(length) // 2 + 1, int(bins)])
        ends = [2595 * math.log10(1 + hertz / 700) for hertz in (low, high)]
        step = (ends[1] - ends[0]) / (bins + 2)
        mels = torch.arange(columns + 2, dtype=torch.float64) * step + ends[0]
        edges = ((length + 1) * 700 * (10 ** (mels / 2595) - 1)) // rate
        left, centre, right = edges[:-2], edges[1:-1], edges[2:]
        k = torch.arange(rows, dtype=torch.float64).unsqueeze(1)
        rising = torch.where(left == centre, (k == centre).double(), (k - left) / (centre - left))
        falling = (right - k) / (right - centre)
        made = torch.where((k >= left) & (k <= centre), rising, 0.0)
        return torch.where((k >= centre) & (k < right), falling, made).to(dtype)

    return weights
