"""Loops whose constants say that they have no step.

OpenVINO (2026.4, CPU) takes the first size of all their outputs for 0, refuses those that have none, and,
where it does compile them, joins rows that are not there or divides by their number, which ends its process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepnet.openvino.records import Layer, PortRow
from stepnet.openvino.writing.edit import Editor, Source


def taken_out(edit: Editor, loop: Layer) -> None:
    """Let what reads such a Loop read what it begins with, in place; one that joins what has open sizes
    stays."""
    trips, goes_on = (edit.net.layers[source].value for source, _ in loop.sources[:2])
    if not (_is(trips, 0) or _is(goes_on, False)):
        return
    rows = {row.external: row for row in loop.maps[""].outputs if row.purpose is None}
    found = [_begins(edit, loop, rows[port.id]) for port in loop.outputs]
    if any(value is None for value in found):
        return
    moved = {(loop.id, k): value for k, value in enumerate(found) if value is not None}
    names: dict[Source, tuple[str, ...]] = {value: edit.port(value).names for value in moved.values()}
    for output, value in moved.items():
        names[value] += edit.port(output).names
    edit.replace_outputs(moved)
    for (number, index), called in names.items():
        edit.net.layers[number].change_output(index, names=called)
    edit.drop_dead()


def _is(value: Tensor | None, wanted: int) -> bool:
    return value is not None and value.numel() == 1 and value.item() == wanted


def _begins(edit: Editor, loop: Layer, row: PortRow) -> Source | None:
    """What an output is before the first step; None where that is not known."""
    if row.axis is None:
        to = dict(loop.back_edges).get(row.internal)
        first = {port.id: source for port, source in zip(loop.inputs, loop.sources, strict=True)}
        return next((first[i.external] for i in loop.maps[""].inputs if i.internal == to), None)
    body = Editor(loop.bodies[""])
    port = body.port(body.net.layers[row.internal].sources[0])
    if port.type is None or not port.shape or min(port.shape) < 0:
        return None
    sizes = [0 if axis == row.axis else size for axis, size in enumerate(port.shape)]
    return edit.constant(torch.zeros(sizes, dtype=port.type.dtype), near=loop)
