"""Loops that only count along an input.

OpenVINO (2026.4, CPU) drops outputs that nobody reads, then inputs that a body does not need, and with the
last that is sliced the number of steps.
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
    _drop_unread(edit, layer, body)
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
    layer.maps[""] = PortMap(kept, (*(_forwards(edit, layer, row) for row in rows.outputs), condition))
    layer.type, layer.version = "Loop", "opset5"
    body.done()


def _drop_unread(edit: Editor, layer: Layer, body: Editor) -> None:
    """Take joined outputs away that nobody reads, with what only they need."""
    read = {index for other in edit.net.layers.values() for of, index in other.sources if of == layer.id}
    joined = {row.external for row in layer.maps[""].outputs if row.axis is not None}
    kept = [k for k, port in enumerate(layer.outputs) if k in read or port.id not in joined]
    if not read or len(kept) == len(layer.outputs):
        return
    ports = {layer.outputs[k].id for k in kept}
    rows = layer.maps[""]
    outputs = tuple(row for row in rows.outputs if row.external in ports)
    results = {row.internal for row in outputs} | {result for result, _ in layer.back_edges}
    layer.outputs = tuple(layer.outputs[k] for k in kept)
    layer.maps[""] = PortMap(rows.inputs, outputs)
    place = {(layer.id, old): (layer.id, new) for new, old in enumerate(kept)}
    for other in edit.net.layers.values():
        other.sources = tuple(place.get(source, source) for source in other.sources)
    body.net.results = tuple(i for i in body.net.results if i in results)
    body.drop_dead()
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


def _forwards(edit: Editor, layer: Layer, row: PortRow) -> PortRow:
    """An output joined from the back, joined from the front and turned: OpenVINO has no Loop that does the
    first."""
    if row.axis is None or row.stride != -1:
        return row
    index = [port.id for port in layer.outputs].index(row.external)
    source = layer.id, index
    turned = edit.slice(source, -1, -END, -1, row.axis, layer.outputs[index].shape, near=layer)
    edit.replace_outputs({source: turned})
    edit.rewire(edit.net.layers[turned[0]], 0, source)
    return replace(row, start=0, end=-1, stride=1)


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
