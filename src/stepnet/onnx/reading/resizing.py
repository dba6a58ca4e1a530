"""Resize and Upsample: axes of other sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from stepnet.file_model import ROUNDED, WHERE, Misfit, Resizing, axis_in, by_data, times

from .info import Info, Run, op

_KINDS = {"nearest": "nearest", "linear": "linear", "cubic": "cubic"}
_POLICIES = ("stretch", "not_larger", "not_smaller")


@op("Upsample", inputs=(1, 2))
def _upsample(node: Info) -> Run:
    how = Resizing(node.choice("mode", ["nearest", "linear"], "nearest"), "asymmetric", "floor")
    scales = node.numbers(1, "scales")

    def upsample(*inputs: Any) -> Tensor:
        return _scaled(how, inputs[0], list(range(inputs[0].dim())), scales(inputs))

    return upsample


@op("Resize", inputs=(1, 4))
def _resize(node: Info) -> Run:
    if node.opset < 11:
        return _upsample(node)
    kind = node.choice("mode", _KINDS, "nearest")
    where = node.choice("coordinate_transformation_mode", [*WHERE, "tf_crop_and_resize"], "half_pixel")
    rounding = node.choice("nearest_mode", ROUNDED, "round_prefer_floor")
    policy = node.choice("keep_aspect_ratio_policy", _POLICIES, "stretch")
    smooth, inside = bool(node.get("antialias", 0)), bool(node.get("exclude_outside", 0))
    if where == "tf_crop_and_resize":
        raise Misfit("attribute 'coordinate_transformation_mode' is not read", where, ", ".join(WHERE))
    how = Resizing(_KINDS[kind], where, rounding, node.get("cubic_coeff_a", -0.75), smooth, inside)
    own, scales, sizes = node.get("axes"), node.numbers(2), node.listed(3)

    def resize(*inputs: Any) -> Tensor:
        x = inputs[0]
        axes = [axis_in(axis, x.dim()) for axis in (range(x.dim()) if own is None else own)]
        new, factors = sizes(inputs), scales(inputs)
        if not new:
            return _scaled(how, x, axes, factors)
        if factors:
            raise Misfit(
                "scales and sizes are both given", got=f"{factors} and {new}", expected="one of them"
            )
        if len(new) != len(axes):
            raise Misfit("needs one of the sizes for each axis", new, f"{len(axes)} numbers")
        by = [n / (x.shape[axis] or 1) for n, axis in zip(new, axes, strict=True)]
        if policy != "stretch":
            same = min(by) if policy == "not_larger" else max(by)
            new = [math.floor(same * x.shape[axis] + 0.5) for axis in axes]
            by = [same] * len(axes)
        return how.run(x, axes, new, by)

    return resize


def _scaled(how: Resizing, x: Tensor, axes: Sequence[int], scales: Any) -> Tensor:
    scales = scales if isinstance(scales, list) else []
    known = all(by_data((scale,)) or 0 < scale < 2**31 for scale in scales)
    if len(scales) != len(axes) or not known:
        raise Misfit("needs a scale above zero for each axis", scales, f"{len(axes)} numbers")
    sizes = [times(x.shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)]
    return how.run(x, axes, sizes, scales)
