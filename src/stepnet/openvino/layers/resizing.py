"""Interpolate: axes of other sizes. GridSample: values between places of images. Col2Im: blocks put back."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import ROUNDED, WHERE, Resizing, put_back, times
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import NUMBERS, Function, Misfit, Row, axis_in, by_data, check_size, listed, shape_text

_KINDS = {"nearest": "nearest", "linear": "linear", "linear_onnx": "linear", "cubic": "cubic"}
_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners")
assert set(_PLACES) < set(WHERE)


def _interpolate(layer: Layer, attributes: Attributes) -> Function:
    if layer.opset < 4:
        return _first(attributes)
    kind = attributes.choice("mode", tuple(_KINDS))
    by_scales = attributes.choice("shape_calculation_mode", ("sizes", "scales")) == "scales"
    where = attributes.choice("coordinate_transformation_mode", _PLACES, "half_pixel")
    rounding = attributes.choice("nearest_mode", tuple(ROUNDED), "round_prefer_floor")
    smooth = attributes.bool("antialias", False) and kind == "linear"
    cubic = attributes.float("cube_coeff", -0.75)
    resizing = Resizing(_KINDS[kind], where, rounding, cubic, smooth, inside=kind == "linear")
    pads = attributes.ints("pads_begin", []), attributes.ints("pads_end", [])
    together = layer.opset >= 11  # sizes and scales are one input since

    def interpolate(x: Tensor, *given: Any) -> Tensor:
        count = len(given)
        if together and count > 2:
            raise Misfit(
                "has an input too many", got=f"{count + 1} inputs", expected="2 or 3 from opset11 on"
            )
        numbers = given[0] if together or not by_scales else given[1]
        at = 1 if together else 2
        axes = listed(given[at]) if count > at else list(range(x.dim()))
        axes = [axis_in(axis, x.dim()) for axis in axes]
        said = listed(numbers)
        if len(said) != len(axes) or len(set(axes)) != len(axes):
            what = "scales" if by_scales else "sizes"
            raise Misfit(f"needs one of the {what} for each axis, each once", got=said, expected=axes,
                         dims=(len(said), str(axes)))  # fmt: skip
        x = _padded(x, *pads)
        old = [x.shape[axis] for axis in axes]
        scales = said if by_scales else [n / o if o else 1.0 for n, o in zip(said, old, strict=True)]
        if by_scales and not all(by_data((scale,)) or 0 < scale < 2**31 for scale in said):
            raise Misfit("scales must be above zero", got=said, dims=str(said))
        if smooth and min(scales, default=1) < 1 < max(scales, default=1):
            what = "antialias of axes that grow beside such that shrink is not read"
            raise Misfit(what, got=scales, dims=str(scales))
        sizes = [times(n, s, 1e-6) for n, s in zip(old, said, strict=True)] if by_scales else said
        return resizing.run(x, axes, sizes, scales)

    return interpolate


def _first(attributes: Attributes) -> Function:
    """The first version, whose places OpenVINO chooses by the rank, the axes and the padding."""
    kind, axes = attributes.choice("mode", ("nearest", "linear", "cubic")), attributes.ints("axes")
    aligned, smooth = attributes.bool("align_corners", True), attributes.bool("antialias", False)
    pads = attributes.ints("pads_begin", []), attributes.ints("pads_end", [])

    def interpolate(x: Tensor, said: Any) -> Tensor:
        sizes, own = listed(said), [axis_in(axis, x.dim(), "axes:") for axis in axes]
        if len(sizes) != len(own):
            raise Misfit("needs one of the sizes for each axis", got=sizes, expected=own, dims=len(sizes))
        x = _padded(x, *pads)
        plain = (x.dim() == 4 and {*own} == {2, 3}) or any(map(any, pads))
        other = "half_pixel" if kind == "linear" and not plain else "asymmetric"
        how = Resizing(kind, "align_corners" if aligned else other, "simple", antialias=smooth)
        return how.run(x, own, sizes, [n / (x.shape[axis] or 1) for n, axis in zip(sizes, own, strict=True)])

    return interpolate


def _grid_sample(layer: Layer, attributes: Attributes) -> Function:
    corners = attributes.bool("align_corners", False)
    mode = attributes.choice("mode", ("bilinear", "bicubic", "nearest"), "bilinear")
    padding = attributes.choice("padding_mode", ("zeros", "border", "reflection"), "zeros")

    def grid_sample(x: Tensor, grid: Tensor) -> Tensor:
        if x.dim() != 4 or grid.dim() != 4 or grid.shape[3] != 2 or len(x) != len(grid):
            raise Misfit(
                "needs images [batch, channels, height, width] and places [batch, height, width, 2]",
                got=f"{shape_text(x)} and {shape_text(grid)}",
                dims=str((x.shape, grid.shape)),
            )
        return F.grid_sample(x, grid.to(x.dtype), mode, padding, corners)

    return grid_sample


def _col2im(layer: Layer, attributes: Attributes) -> Function:
    strides, dilations, begin, end = (
        attributes.ints(name, [default] * 2)
        for name, default in (("strides", 1), ("dilations", 1), ("pads_begin", 0), ("pads_end", 0))
    )

    def col2im(x: Tensor, image: Any, block: Any) -> Tensor:
        if x.dim() not in (2, 3) or len(listed(image)) != 2:
            raise Misfit(
                "needs blocks [batch, channels * size, count] or without a batch, and height and width",
                got=f"{shape_text(x)} and {image}",
                dims=str((x.shape, image)),
            )
        rows = x if x.dim() == 3 else x.unsqueeze(0)
        out = put_back(rows, listed(image), listed(block), strides, dilations, begin, end)
        return out if x.dim() == 3 else out.squeeze(0)

    return col2im


def _padded(x: Tensor, begin: list[int], end: list[int]) -> Tensor:
    """x with zeros around; no number stands for no padding."""
    sizes = [(*part, *[0] * (x.dim() - len(part))) for part in (begin, end)]
    if any(len(part) > x.dim() for part in sizes) or any(not 0 <= n < 2**31 for n in (*sizes[0], *sizes[1])):
        raise Misfit("pads must be sizes, one for each axis", got=f"{begin}, {end}", dims=str((begin, end)))
    flat = [n for pair in zip(*(part[::-1] for part in sizes), strict=True) for n in pair]
    check_size([n + a + b for n, a, b in zip(x.shape, *sizes, strict=True)])
    return F.pad(x, flat) if any(flat) else x


ROWS = (
    Row("Interpolate", _interpolate, (2, 4), values=(1, 2, 3), kinds=dict.fromkeys((1, 2), NUMBERS)),
    Row("GridSample", _grid_sample, (2, 2)),
    Row("Col2Im", _col2im, (3, 3), values=(1, 2)),
)
