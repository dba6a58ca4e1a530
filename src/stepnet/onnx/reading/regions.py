"""Operators on places in images: samples at them, regions of them, boxes, blocks put back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import Aligning, Misfit, not_in_recordings, put_back, suppressed

from .info import Info, Run, check_size, dtype_of, given, op

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic",
          "bicubic": "bicubic"}  # fmt: skip


@op("GridSample", inputs=(2, 2))
def _grid_sample(node: Info) -> Run:
    mode = _MODES[node.choice("mode", _MODES, "linear")]
    padding = node.choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    corners = bool(node.get("align_corners", 0))
    return lambda x, grid: F.grid_sample(x, grid.to(x.dtype), mode, padding, corners)


@op("AffineGrid", inputs=(2, 2))
def _affine_grid(node: Info) -> Run:
    corners, sizes = bool(node.get("align_corners", 0)), node.listed(1)

    def affine_grid(*inputs: Any) -> Tensor:
        theta, image = inputs[0], (sizes(inputs) or [])[2:]
        space = len(image)
        if space not in (2, 3) or theta.dim() != 3 or [*theta.shape[1:]] != [space, space + 1]:
            got = f"{given([theta])} and {space + 2} sizes"
            expected = "[batch, 2, 3] and the sizes of images, or [batch, 3, 4] and those of volumes"
            raise Misfit("the matrices do not fit the sizes", got, expected)
        check_size(image)
        along = [_from_edge_to_edge(size, theta, corners) for size in image]
        y = theta[:, :, space].reshape(-1, *[1] * space, space)
        for axis, places in enumerate(along):  # the last axis of the images is the first of the places
            column = theta[:, :, space - 1 - axis].reshape(-1, *[1] * space, space)
            y = y + column * places.reshape(*[-1 if k == axis else 1 for k in range(space)], 1)
        return y

    return affine_grid


def _from_edge_to_edge(size: Any, like: Tensor, corners: bool) -> Tensor:
    """Places from -1 to 1, of the middles of the first and last number or of their outer edges."""
    k, whole = torch.arange(size, device=like.device).to(like.dtype), torch.scalar_tensor(size)
    if corners:
        return k * (2 / (whole - 1).clamp(min=1)).to(like.dtype) - torch.sym_min(size - 1, 1)
    return (2 * k + 1) / whole.to(like.dtype) - 1


@op("MaxUnpool", inputs=(2, 3))
def _max_unpool(node: Info) -> Run:
    kernel, sizes = node.get("kernel_shape", []), node.listed(2)
    rank = len(kernel)
    strides, pads = node.get("strides", [1] * rank), node.get("pads", [0] * 2 * rank)

    def unpool(*inputs: Any) -> Tensor:
        x, places = inputs[:2]
        if places.shape != x.shape or x.dim() != rank + 2 or len(strides) != rank or len(pads) != 2 * rank:
            what = "kernel, strides, pads and indices do not fit the numbers"
            raise Misfit(what, given([x, places]), f"data of rank {rank + 2}, indices of its shape")
        own = [
            (n - 1) * step + size - a - b
            for n, step, size, a, b in zip(
                x.shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True
            )
        ]
        shape = sizes(inputs) or [*x.shape[:2], *own]
        if len(shape) != x.dim():
            raise Misfit("output_shape needs a size for each axis", shape, f"{x.dim()} sizes")
        count = math.prod(check_size(shape))
        flat = torch.zeros(count, dtype=x.dtype, device=x.device)
        return flat.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)

    return unpool


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
