"""A FakeQuantize with one range for all of one end of its output and a range for each channel of the other.

OpenVINO (2026.4, CPU) reads only the first channel's number of the latter.
"""

from __future__ import annotations

import torch

from stepnet.openvino.records import Layer
from stepnet.openvino.table import is_constant
from stepnet.openvino.writing.edit import Editor


def of_one_shape(edit: Editor, layer: Layer) -> None:
    """Give both ends of the output as many numbers, in place."""
    if layer.type.lower() != "fakequantize":
        return
    ends = [edit.net.layers[source] for source, _ in layer.sources[3:5]]
    low, high = (end.value if is_constant(end) else None for end in ends)
    if low is None or high is None or low.numel() == high.numel():
        return
    for index, value in enumerate(torch.broadcast_tensors(low, high), 3):
        edit.rewire(layer, index, edit.constant(value.contiguous(), near=layer))
