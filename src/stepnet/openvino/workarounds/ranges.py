"""Ranges of loops that are cut or counted wrongly.

OpenVINO (2026.4, CPU) cuts a slice from the first or last element wherever its range starts, counts the steps
of a range that ends at a positive number in two ways that differ, and takes no axis counted from the back.
"""

from __future__ import annotations

from dataclasses import replace

from stepnet.export.emit import END
from stepnet.openvino.records import Layer, Port, PortMap, PortRow, Shape
from stepnet.openvino.writing.edit import Editor


def whole_ranges(edit: Editor, layer: Layer) -> None:
    """Let each cut of a loop begin at the first or last element, in place: the rest of a range is a Slice in
    front of it."""
    body = Editor(layer.bodies[""])
    rows = PortMap(
        tuple(_axis(row, body.port((row.internal, 0))) for row in layer.maps[""].inputs),
        tuple(
            _axis(row, body.port(body.net.layers[row.internal].sources[0])) for row in layer.maps[""].outputs
        ),
    )
    inputs = tuple(_input(edit, layer, row) for row in rows.inputs)
    counted = layer.type == "Loop" or any(row.axis is not None for row in inputs)
    layer.maps[""] = PortMap(inputs, tuple(_output(row, counted) for row in rows.outputs))


def _axis(row: PortRow, port: Port) -> PortRow:
    """An axis counted from the front: OpenVINO takes no other."""
    if row.axis is None or row.axis >= 0 or not port.shape:
        return row
    return replace(row, axis=row.axis + len(port.shape))


def _input(edit: Editor, layer: Layer, row: PortRow) -> PortRow:
    if row.stride > 0:
        plain = row.start == 0 and (row.end == -1 or (row.end < 0 and row.stride == 1))
    else:
        plain = row.start == -1 and (row.end == 0 or (row.end > 0 and row.stride == -1))
    if row.axis is None or plain:
        return row
    low, high = (row.start, row.end) if row.stride > 0 else (row.end, row.start)
    index = [port.id for port in layer.inputs].index(row.external)
    source = layer.sources[index]
    port = edit.port(source)
    size = port.shape[row.axis] if port.shape else -1
    if low < 0 <= high and size >= 0:
        low, high = low + size + 1, high if high < size else -1
    if (low, high) != (0, -1):
        # An end of -1 is behind the last element here, and the last element itself in a Slice.
        start, stop = (v if v >= 0 else v + 1 or END for v in (low, high))
        shape = _cut_shape(port.shape, row, low, high)
        edit.rewire(layer, index, edit.slice(source, start, stop, 1, row.axis, shape, near=layer))
    return _whole(row)


def _cut_shape(shape: Shape | None, row: PortRow, low: int, high: int) -> Shape | None:
    if not shape or row.axis is None:
        return shape
    sizes = list(shape)
    size = sizes[row.axis]
    ends = [v if v >= 0 else v + size + 1 for v in (low, high)]
    sizes[row.axis] = ends[1] - ends[0] if size >= 0 else -1
    return tuple(sizes)


def _output(row: PortRow, counted: bool) -> PortRow:
    """A joined output: only its direction matters, but where it counts the steps."""
    if row.axis is None:
        return row
    if not counted and row.start >= 0 and row.end >= 0:
        size = abs(row.end - row.start)
        return replace(row, start=0, end=size) if row.stride > 0 else replace(row, start=size, end=0)
    return _whole(row)


def _whole(row: PortRow) -> PortRow:
    return replace(row, start=0, end=-1) if row.stride > 0 else replace(row, start=-1, end=0)
