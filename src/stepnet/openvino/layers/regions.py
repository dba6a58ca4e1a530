"""ROIAlign: numbers pooled from boxes of images. NonMaxSuppression: boxes that no better one hides.

Source: the OpenVINO operation specifications ROIAlign-3 and -9, NonMaxSuppression-1, -3, -4, -5 and -9. As
OpenVINO's CPU plugin has it, the largest sample is not below zero, and a score that equals its threshold
does not count.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import Aligning, not_in_recordings, suppressed
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import NUMBERS, Function, Misfit, Row, number

_MOVED = {  # before and after the scale, and the least length of a box
    "asymmetric": (0.0, 0.0, 1.0),
    "half_pixel_for_nn": (0.0, -0.5, -math.inf),
    "half_pixel": (0.5, -0.5, -math.inf),
}


def _roi_align(layer: Layer, attributes: Attributes) -> Function:
    sizes, ratio = (
        [attributes.size(name) for name in ("pooled_h", "pooled_w")],
        attributes.size("sampling_ratio"),
    )
    if not all(sizes):
        raise Misfit("pooled_h and pooled_w must be > 0", got=sizes, expected="sizes > 0")
    mode = {"avg": "avg", "max": "positive"}[attributes.choice("mode", ("avg", "max"))]
    scale = attributes.float("spatial_scale")
    said = (
        attributes.choice("aligned_mode", tuple(_MOVED), "asymmetric") if layer.opset >= 9 else "asymmetric"
    )
    aligning = Aligning(sizes, ratio, scale, *_MOVED[said], mode)

    def roi_align(x: Tensor, boxes: Tensor, which: Tensor) -> Tensor:
        not_in_recordings(sized=True)
        return aligning.run(x, boxes, which)

    return roi_align


def _non_max_suppression(layer: Layer, attributes: Attributes) -> Function:
    centred = attributes.choice("box_encoding", ("corner", "center"), "corner") == "center"
    best_first = attributes.bool("sort_result_descending", True)
    dtype = torch.int64 if layer.opset < 3 else attributes.index_type("output_type", "i64").dtype
    most = 6 if layer.opset >= 5 else 5  # a sigma, scores and a count came with the fifth
    outputs = 3 if layer.opset >= 5 else 1
    if len(layer.inputs) > most or len(layer.outputs) != outputs:
        raise Misfit(
            "its version has other inputs or outputs",
            got=f"{len(layer.inputs)} inputs, {len(layer.outputs)} outputs of {layer.version}",
            expected=f"2 to {most} inputs, {outputs} outputs",
        )

    def suppress(
        boxes: Tensor, scores: Tensor, most: Any = 0, overlap: Any = 0.0, least: Any = 0.0, sigma: Any = 0.0
    ) -> Any:
        not_in_recordings()
        said = (number(most, "max_output_boxes_per_class"), number(overlap, "iou_threshold"))
        limit, spread = number(least, "score_threshold"), number(sigma, "soft_nms_sigma")
        kept, found = suppressed(boxes, scores, *said, limit, centred=centred, sigma=spread)
        if best_first:
            order = found.argsort(descending=True, stable=True)
            kept, found = kept[order], found[order]
        if outputs == 1:
            return kept.to(dtype)
        count = torch.tensor([len(kept)], dtype=dtype)
        return kept.to(dtype), torch.cat([kept[:, :2].to(found.dtype), found.unsqueeze(1)], 1), count

    return suppress


ROWS = (
    Row("ROIAlign", _roi_align, (3, 3)),
    Row(
        "NonMaxSuppression",
        _non_max_suppression,
        (2, 6),
        (1, 3),
        values=(2, 3, 4, 5),
        kinds=dict.fromkeys((3, 4, 5), NUMBERS),
    ),
)
