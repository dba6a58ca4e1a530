"""What loops make that nobody reads.

OpenVINO (2026.4, CPU) takes it away with the states and inputs that only it needs, loop after loop; what is
left tells which loops lose their last slice with that (see `dropped_slices`).
"""

from __future__ import annotations

from stepnet.openvino.records import Layer, Net, PortMap
from stepnet.openvino.writing.edit import Editor, all_nets


def drop_unread(net: Net) -> None:
    """Take away outputs that nobody reads, with the states and inputs that only they need, in place. A
    loop of which no slice is left keeps one, which counts its steps."""
    changed = True
    while changed:
        changed = False
        for inner in all_nets(net):
            changed |= _dropped(Editor(inner))


def _dropped(edit: Editor) -> bool:
    """Whether there was something to take away from the loops of a net."""
    changed = False
    for number in reversed(edit.net.order):
        layer = edit.net.layers.get(number)
        if layer is not None and layer.bodies and layer.type != "If":
            changed |= _of_loop(edit, layer)
    return changed


def _of_loop(edit: Editor, layer: Layer) -> bool:
    alive = edit.needed()
    readers = [other for i, other in edit.net.layers.items() if i in alive]
    read = {index for other in readers for of, index in other.sources if of == layer.id}
    if not read:
        return False  # the whole loop goes
    body, rows = Editor(layer.bodies[""]), layer.maps[""]
    ports = {layer.outputs[k].id for k in read}
    results = {row.internal for row in rows.outputs if row.external in ports or row.purpose is not None}
    while True:
        needed = body.behind(results)
        more = results | {result for result, to in layer.back_edges if to in needed}
        if more == results:
            break
        results = more
    sliced = [row for row in rows.inputs if row.axis is not None]
    counts = sliced and not any(row.internal in needed for row in sliced)
    last = {row.internal for row in rows.outputs if row.external in ports and row.axis is None}
    kept = needed | {to for result, to in layer.back_edges if result in last}  # given where there is no step
    kept |= {sliced[0].internal} if counts else set()
    inputs = tuple(row for row in rows.inputs if row.internal in kept)
    outputs = tuple(row for row in rows.outputs if row.external in ports or row.purpose is not None)
    if len(inputs) == len(rows.inputs) and len(outputs) == len(rows.outputs):
        return False
    edit.drop_dead()
    lead = 2 if layer.type == "Loop" else 0  # the number of trips, and whether to begin
    fed = {row.external for row in inputs}
    places = [k for k, port in enumerate(layer.inputs) if k < lead or port.id in fed]
    layer.inputs = tuple(layer.inputs[k] for k in places)
    layer.sources = tuple(layer.sources[k] for k in places)
    layer.back_edges = tuple(pair for pair in layer.back_edges if pair[1] in kept)
    layer.maps[""] = PortMap(inputs, outputs)
    layer.outputs = tuple(layer.outputs[k] for k in sorted(read))
    moved = {(layer.id, old): (layer.id, new) for new, old in enumerate(sorted(read))}
    for other in edit.net.layers.values():
        other.sources = tuple(moved.get(source, source) for source in other.sources)
    parameters = {row.internal for row in inputs}
    body.net.results = tuple(i for i in body.net.results if i in results)
    body.net.parameters = tuple(i for i in body.net.parameters if i in parameters)
    body.drop_dead()
    body.done()
    return True
