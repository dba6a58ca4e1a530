"""Elements picked from a slice.

OpenVINO (2026.4, CPU) leaves out a slice before GatherElements, which then finds a table of other sizes.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor


def kept_cut(edit: Editor, layer: Layer) -> None:
    """Pick from the larger of the slice and itself, in place."""
    if layer.type.lower() != "gatherelements":
        return
    if edit.net.layers[layer.sources[0][0]].type.lower() in ("slice", "stridedslice"):
        edit.rewire(layer, 0, edit.twice(layer.sources[0], layer))
