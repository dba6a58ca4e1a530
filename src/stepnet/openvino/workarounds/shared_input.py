"""Loops over known cells that read one table.

OpenVINO (2026.4, CPU) makes sequence operators of them, and turns the table once, from steps first to batch
first, for all who read it. Where it then lets one run steps first (as what it gives is reshaped, say), the
others get the table as it was before it was turned: steps for batch.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor, Source


def tables_apart(edit: Editor) -> None:
    """Let each loop read a table of its own where several read one: the larger of the last loop's and itself,
    so that no two of them are computed alike."""
    last: dict[Source, Source] = {}
    for loop in [layer for layer in edit.net.layers.values() if layer.type == "TensorIterator"]:
        at = {port.id: k for k, port in enumerate(loop.inputs)}
        for row in loop.maps[""].inputs:
            if row.axis is None:
                continue
            source = loop.sources[at[row.external]]
            if source in last:
                last[source] = edit.twice(last[source], near=loop)
                edit.rewire(loop, at[row.external], last[source])
            else:
                last[source] = source
