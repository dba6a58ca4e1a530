"""States that the body of a Loop does not use.

Such a state is what the Loop gives where it has no step. OpenVINO (2026.4, CPU) takes it for an input that
nobody needs, gives an empty tensor instead, and its process may end.
"""

from __future__ import annotations

from stepnet.openvino.element_types import by_name
from stepnet.openvino.records import Layer, PortMap, PortRow
from stepnet.openvino.writing.edit import Editor

_INT64, _TRUTH = by_name("i64", ""), by_name("boolean", "")


def states_needed(edit: Editor, loop: Layer) -> None:
    """Let a body choose between a state and its next value, always the next, by what is not constant, in
    place."""
    trips, goes_on = (edit.net.layers[source].value for source, _ in loop.sources[:2])
    if trips is not None and goes_on is not None and bool(goes_on) and int(trips) != 0:
        return
    body = Editor(loop.bodies[""])
    needed, rows = body.needed(), loop.maps[""]
    given = {row.internal for row in rows.outputs if row.axis is None and row.purpose is None}
    for result, state in loop.back_edges:
        if state in needed or result not in given:
            continue
        near, told = body.net.layers[result], {"auto_broadcast": "numpy"}
        number = _number(body, loop, near), 0
        early = body.add("Less", [number, body.numbers(0, near=near)], [(_TRUTH, ())], told, near=near)
        value = near.sources[0]
        port = body.port(value)
        chosen = body.add(
            "Select", [(early.id, 0), (state, 0), value], [(port.type, port.shape)], told, near=near
        )
        body.rewire(near, 0, (chosen.id, 0))
    body.done()


def _number(body: Editor, loop: Layer, near: Layer) -> int:
    """The Parameter that is the number of the step."""
    rows = loop.maps[""]
    for row in rows.inputs:
        if row.purpose == "current_iteration":
            return row.internal
    how = {"element_type": "i64", "shape": ""}
    number = body.add("Parameter", [], [(_INT64, ())], how, near=near).id
    body.net.parameters = (*body.net.parameters, number)
    row = PortRow(-1, number, None, 0, -1, 1, 1, "current_iteration")
    loop.maps[""] = PortMap((*rows.inputs, row), rows.outputs)
    return number
