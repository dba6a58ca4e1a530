"""The ports of a loop, by the names of what they join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepnet.openvino.records import Layer, Net, PortRow

from .records import Port, Way


def takes(layer: Layer, prefix: str, net: Net) -> tuple[Port, ...]:
    """What enters a body; `net` is what the loop is in."""
    inner = layer.bodies[prefix].layers
    carried = {parameter for _, parameter in layer.back_edges}
    places = {port.id: i for i, port in enumerate(layer.inputs)}
    found = []
    for row in layer.maps[prefix].inputs:
        source = None if row.external < 0 else layer.sources[places[row.external]]
        outer = "" if source is None else net.layers[source[0]].name
        way: Way = "slice" if row.axis is not None else "state" if row.internal in carried else "whole"
        way = "given" if layer.type == "If" else way
        port = _port(outer, inner[row.internal].name, "iteration" if row.purpose else way, row)
        found.append(replace(port, source=source))
    return tuple(found)


def leaves(layer: Layer, prefix: str, net: Net, outputs: Mapping[int, str]) -> tuple[Port, ...]:
    """What leaves a body; `outputs` are the model's names for Results of the net that the loop is in."""
    inner = layer.bodies[prefix].layers
    places = {port.id: i for i, port in enumerate(layer.outputs)}
    readers: dict[int, list[str]] = {}
    for user in net.layers.values():
        for source, index in user.sources:
            if source == layer.id:
                readers.setdefault(index, []).append(outputs.get(user.id, user.name))
    found = []
    for row in layer.maps[prefix].outputs:
        place = places.get(row.external)
        outer = "" if place is None else ", ".join(readers.get(place, ()))
        way: Way = "joined" if row.axis is not None else "condition" if row.external < 0 else "last"
        way = "result" if layer.type == "If" else way
        found.append(replace(_port(outer, inner[row.internal].name, way, row), output=place))
    return tuple(found)


def _port(outer: str, inner: str, way: Way, row: PortRow) -> Port:
    return Port(outer, inner, way, row.axis, row.start, row.end, row.stride, row.part_size, row.internal)
