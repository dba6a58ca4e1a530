"""Whole numbers divided with `m_pythondiv`.

OpenVINO (2026.4, CPU) rounds the quotient towards zero all the same: -1 / 4 is 0 there, not -1.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor


def rounded_down(edit: Editor, layer: Layer) -> None:
    """Divide what is left after the rest is taken away, in place, which has one quotient."""
    if layer.type.lower() != "divide" or not layer.said.bool("m_pythondiv", True):
        return
    port = layer.outputs[0]
    if port.type is None or not port.type.dtype.is_signed or port.type.dtype.is_floating_point:
        return
    told = {name: value for name, value in layer.attributes.items() if name != "m_pythondiv"}
    x, y = layer.sources
    rest = edit.add("FloorMod", [x, y], [(port.type, port.shape)], told, near=layer)
    even = edit.add("Subtract", [x, (rest.id, 0)], [(port.type, port.shape)], near=layer)
    edit.rewire(layer, 0, (even.id, 0))
    layer.attributes = {**layer.attributes, "m_pythondiv": "false"}
