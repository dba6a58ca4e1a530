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
    if port is None or port.type is None or port.type.dtype.is_floating_point:
        return
    source = layer.id, 0
    readers = [
        (reader, k)
        for reader in edit.net.layers.values()
        for k, of in enumerate(reader.sources)
        if of == source and reader.type != "Result"
    ]
    if readers:
        told = {"auto_broadcast": "numpy"}
        made = edit.add("Maximum", [source, source], [(port.type, port.shape)], told, near=layer)
        for reader, k in readers:
            edit.rewire(reader, k, (made.id, 0))
