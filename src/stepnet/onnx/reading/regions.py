"""Operators on places in images: samples at them, regions of them, boxes, blocks put back."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import not_in_recordings, put_back, same_types

from .info import Info, Misfit, Run, check_size, dtype_of, op

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
    half = where == "half_pixel"

    def region(image: Tensor, box: list[float]) -> Tensor:
        x0, y0, x1, y1 = (v * scale - half / 2 for v in box)
        ways = []
        for low, high, count, size in zip((y0, x0), (y1, x1), sizes, image.shape[1:], strict=True):
            length = high - low if half else max(high - low, 1.0)
            ratios = ratio if ratio > 0 else math.ceil(length / count)
            (samples,) = check_size([count * max(ratios, 0)])
            at = low + (torch.arange(samples, dtype=image.dtype) + 0.5) * (length / max(samples, 1))
            ways.append(_between(at, size))
        check_size([image.shape[0], len(ways[0][0][0]), len(ways[1][0][0])])
        corners = [image[:, y][:, :, x] * wy.unsqueeze(1) * wx for y, wy in ways[0] for x, wx in ways[1]]
        values = torch.stack(corners)
        values = values.sum(0) if mode == "avg" else values.amax(0)
        values = values.unflatten(2, (sizes[1], -1)).unflatten(1, (sizes[0], -1))
        return values.mean((2, 4)) if mode == "avg" else values.amax((2, 4))

    def roi_align(x: Tensor, boxes: Tensor, which: Tensor) -> Tensor:
        same_types([x, boxes])
        if x.dim() != 4 or boxes.dim() != 2 or boxes.shape[1] != 4 or which.shape != boxes.shape[:1]:
            shapes = f"{list(x.shape)}, {list(boxes.shape)}, {list(which.shape)}"
            raise Misfit("images, boxes and their images do not fit", shapes, "[N, C, H, W], [n, 4], [n]")
        places = zip(which.tolist(), boxes.tolist(), strict=True)
        found = [region(x[k], box) for k, box in places]
        return torch.stack(found) if found else x.new_zeros(check_size([0, x.shape[1], *sizes]))

    return roi_align


def _between(at: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """The two numbers of an axis that each place lies between, and their weights; none outside of it."""
    inside = (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    low = at.floor()
    far = at - low
    ends = (low, 1 - far), ((low + 1).clamp(max=size - 1), far)
    return [(place.long(), weight * inside) for place, weight in ends]


@op("NonMaxSuppression", inputs=(2, 5))
def _non_max_suppression(node: Info) -> Run:
    centred = node.get("center_point_box", 0)
    most, overlap, least = node.listed(2), node.listed(3), node.listed(4)

    def suppress(*inputs: Any) -> Tensor:
        not_in_recordings()
        boxes, scores = inputs[:2]
        if (
            boxes.dim() != 3
            or boxes.shape[2] != 4
            or scores.shape != (len(boxes), *scores.shape[1:2], *boxes.shape[1:2])
        ):
            shapes = f"{list(boxes.shape)}, {list(scores.shape)}"
            raise Misfit("boxes and scores do not fit", shapes, "[batch, boxes, 4], [batch, classes, boxes]")
        (count,), (share,) = most(inputs) or [0], overlap(inputs) or [0.0]
        known = least(inputs)
        a, b = boxes[..., :2], boxes[..., 2:]
        low, high = (a - b / 2, a + b / 2) if centred else (torch.minimum(a, b), torch.maximum(a, b))
        kept: list[list[int]] = []
        for k, c in itertools.product(*map(range, scores.shape[:2])):
            of_class = scores[k, c]
            order = of_class.argsort(descending=True, stable=True)
            order = order if known is None else order[of_class[order] > known[0]]
            taken = 0
            while len(order) and taken < count:
                best, order = order[0], order[1:]
                kept.append([k, c, int(best)])
                taken += 1
                order = order[_shared(low[k], high[k], best, order) <= share]
        return torch.tensor(kept, dtype=torch.int64).reshape(-1, 3)

    return suppress


def _shared(low: Tensor, high: Tensor, one: Tensor, others: Tensor) -> Tensor:
    """How much of a box and each of some others is in both."""
    both = (torch.minimum(high[one], high[others]) - torch.maximum(low[one], low[others])).clamp(min=0)
    both, areas = both.prod(-1), (high - low).prod(-1)
    return torch.where(both > 0, both / (areas[one] + areas[others] - both), 0.0)


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
