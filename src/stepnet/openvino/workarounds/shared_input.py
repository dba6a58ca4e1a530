"""Loops over known cells that read one table.

OpenVINO (2026.4, CPU) makes sequence operators of them, and turns the table once, from steps first to batch
first, for all. Where the rows that one gives go on as [steps, 1, batch, features], it lets that one run steps
first, and gives the others the table as it was before it was turned: steps for batch.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor

_ADDS = {"unsqueeze", "reshape"}


def not_seen_as_turned(edit: Editor, loop: Layer) -> None:
    """Let what makes such rows of those of a loop read the larger of them and themselves."""
    at = {port.id: source for port, source in zip(loop.inputs, loop.sources, strict=True)}
    tables = {at[row.external] for row in loop.maps[""].inputs if row.axis is not None}
    others = [it for it in edit.net.layers.values() if it.type == loop.type and it is not loop]
    if all(tables.isdisjoint(other.sources) for other in others):
        return
    given = [port.id for port in loop.outputs]
    for row in loop.maps[""].outputs:
        if row.axis == 0:
            source = loop.id, given.index(row.external)
            edit.read_apart(source, lambda it: it.type.lower() in _ADDS and _has_one_second(it))


def _has_one_second(layer: Layer) -> bool:
    return (layer.outputs[0].shape or ())[1:2] == (1,)
