"""Sums and other reductions of whole numbers.

OpenVINO (2026.4, CPU) makes a product with a constant, so also what is subtracted, part of the reduction
before it, which then gives other numbers where they are whole ones.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor

_KINDS = frozenset({"reducesum", "reducemean", "reducemax", "reducemin", "reduceprod"})


def apart_from_products(edit: Editor, layer: Layer) -> None:
    """Let all who read such a reduction read the larger of it and itself, which is no part of it."""
    port = layer.outputs[0] if layer.type.lower() in _KINDS else None
    if port is not None and port.type is not None and not port.type.dtype.is_floating_point:
        edit.read_apart((layer.id, 0), lambda reader: reader.type != "Result")
