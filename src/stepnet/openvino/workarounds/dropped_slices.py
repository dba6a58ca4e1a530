"""Loops that only count along an input.

OpenVINO (2026.4, CPU) drops outputs that nobody reads, then inputs that a body does not need, and with the
last that is sliced the number of steps. What nobody reads is gone by now (see `unread`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from stepnet.export.emit import END
from stepnet.openvino.element_types import by_name
from stepnet.openvino.records import Layer, Port, PortMap, PortRow
from stepnet.openvino.writing.edit import Editor

_INT64 = by_name("i64", "")


def told_count(edit: Editor, layer: Layer) -> None:
    """Make a TensorIterator whose body needs none of its slices a Loop, in place. Cuts are plain by now."""
    body = Editor(layer.bodies[""])
    rows = layer.maps[""]
    sliced = [row for row in rows.inputs if row.axis is not None]
    if not sliced or any(row.internal in body.needed() for row in sliced):
        return
    trips = _count(edit, layer, sliced[0])
    goes_on = edit.constant(torch.tensor(True), near=layer)
    _drop(layer, body, sliced)
    first = 1 + max(port.id for port in (*layer.inputs, *layer.outputs))
    ports = [Port(first + i, edit.port(s).type, edit.port(s).shape) for i, s in enumerate((trips, goes_on))]
    layer.inputs = (*ports, *layer.inputs)
    layer.sources = (trips, goes_on, *layer.sources)
    result = body.result(body.constant(torch.tensor(True), near=layer), near=layer)
    condition = PortRow(-1, result, None, 0, -1, 1, 1, "execution_condition")
    kept = tuple(row for row in rows.inputs if row.axis is None)
    layer.maps[""] = PortMap(kept, (*(_by_ones(edit, layer, body, row) for row in rows.outputs), condition))
    layer.type, layer.version = "Loop", "opset5"
    body.done()


def _drop(layer: Layer, body: Editor, rows: Sequence[PortRow]) -> None:
    """Take inputs away from a loop, and what they feed: OpenVINO refuses a Loop that cuts them backwards."""
    ports = {row.external for row in rows}
    kept = [i for i, port in enumerate(layer.inputs) if port.id not in ports]
    layer.inputs = tuple(layer.inputs[i] for i in kept)
    layer.sources = tuple(layer.sources[i] for i in kept)
    body.drop_dead()
    body.net.parameters = tuple(i for i in body.net.parameters if i not in {row.internal for row in rows})
    body.drop_dead()


def _by_ones(edit: Editor, layer: Layer, body: Editor, row: PortRow) -> PortRow:
    """An output joined of parts, or from the back, joined of ones from the front: OpenVINO has no other Loop.
    Parts get an axis of their own, along which they are joined; then both axes become one."""
    if row.axis is None or row.stride == 1:
        return row
    axis = row.axis
    index, part = [port.id for port in layer.outputs].index(row.external), abs(row.stride)
    source, port = (layer.id, index), layer.outputs[index]
    readers = [
        (other, k) for other in edit.net.layers.values() for k, of in enumerate(other.sources) if of == source
    ]
    shape = port.shape
    if part > 1:
        if shape:
            steps = shape[axis]
            shape = (*shape[:axis], steps // part if steps > 0 else steps, part, *shape[axis + 1 :])
        row = replace(row, internal=_with_axis(layer, body, row))
    layer.change_output(index, shape=shape, names=())
    made = source
    if row.stride < 0:
        made = edit.slice(made, -1, -END, -1, axis, shape, near=layer)
    if part > 1:
        made = _merged(edit, layer, made, axis, part, port)
    for other, k in readers:
        edit.rewire(other, k, made)
    edit.net.layers[made[0]].change_output(made[1], names=port.names)
    return replace(row, start=0, end=-1, stride=1, part_size=1)


def _with_axis(layer: Layer, body: Editor, row: PortRow) -> int:
    """A Result of what one is of, with an axis in front of the one that is joined."""
    assert row.axis is not None
    source = body.net.layers[row.internal].sources[0]
    port = body.port(source)
    shape = (*port.shape[: row.axis], 1, *port.shape[row.axis :]) if port.shape else None
    axis = body.numbers([row.axis], near=layer)
    apart = body.add("Unsqueeze", [source, axis], [(port.type, shape)], near=layer)
    if row.internal not in {result for result, _ in layer.back_edges}:
        body.net.results = tuple(i for i in body.net.results if i != row.internal)
    return body.result((apart.id, 0), near=layer)


def _merged(
    edit: Editor, layer: Layer, source: tuple[int, int], axis: int, part: int, port: Port
) -> tuple[int, int]:
    """An axis and the one behind it as one."""
    rank = len(edit.port(source).shape or ()) or -1
    shape = edit.add(
        "ShapeOf", [source], [(_INT64, (rank,))], {"output_type": "i64"}, version="opset3", near=layer
    )
    sizes = [
        edit.slice((shape.id, 0), start, stop, 1, 0, size, near=layer)
        for start, stop, size in (
            (0, axis, (axis,)),
            (axis, axis + 1, (1,)),
            (axis + 2, END, (rank - axis - 2 if rank > 0 else -1,)),
        )
    ]
    told = {"auto_broadcast": "numpy"}
    whole = edit.add(
        "Multiply", [sizes[1], edit.numbers([part], near=layer)], [(_INT64, (1,))], told, near=layer
    )
    sizes[1] = whole.id, 0
    wanted = edit.add("Concat", sizes, [(_INT64, (rank - 1 if rank > 0 else -1,))], {"axis": "0"}, near=layer)
    made = edit.add(
        "Reshape", [source, (wanted.id, 0)], [(port.type, port.shape)], {"special_zero": "false"}, near=layer
    )
    return made.id, 0


def _count(edit: Editor, layer: Layer, row: PortRow) -> tuple[int, int]:
    """The number of steps, as a scalar: the length of a range over its stride."""
    ids = [port.id for port in layer.inputs]
    source = layer.sources[ids.index(row.external)]
    rank = len(edit.port(source).shape or ()) or -1

    def one(type: str, sources: list[tuple[int, int]], version: str = "opset1", **attributes: str):
        outputs = [(_INT64, (rank,) if type == "ShapeOf" else ())]
        return edit.add(type, sources, outputs, attributes, version=version, near=layer).id, 0

    assert row.axis is not None
    low, high = (row.start, row.end) if row.stride > 0 else (row.end, row.start)
    sizes = (high < 0) - (low < 0)  # how often the size counts: what is negative counts from behind the last
    rest = edit.numbers(high - low + sizes, near=layer)
    if sizes:
        shape = one("ShapeOf", [source], "opset3", output_type="i64")
        numbers = [edit.numbers(n, near=layer) for n in (row.axis, 0)]
        size = one("Gather", [shape, *numbers], "opset8", batch_dims="0")
        pair = [size, rest] if sizes > 0 else [rest, size]
        rest = one("Add" if sizes > 0 else "Subtract", pair, auto_broadcast="numpy")
    if abs(row.stride) > 1:
        rest = one("Divide", [rest, edit.numbers(abs(row.stride), near=layer)], auto_broadcast="numpy")
    return rest
