"""A loop's port map with the names of what it connects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepnet.openvino.records import Layer, Net, PortRow

from .inspection import PortMapping, Way


def inputs_of(layer: Layer, prefix: str, net: Net) -> Iterator[PortMapping]:
    """What enters a body; `net` is what contains the loop."""
    inner = layer.bodies[prefix].layers
    states = {parameter for _, parameter in layer.back_edges}
    places = {port.id: i for i, port in enumerate(layer.inputs)}
    for row in layer.maps[prefix].inputs:
        source = None if row.external < 0 else layer.sources[places[row.external]]
        outer = "" if source is None else net.layers[source[0]].name
        way: Way = "slice" if row.axis is not None else "state" if row.internal in states else "whole"
        way = "iteration" if row.purpose else "given" if layer.type == "If" else way
        yield _mapping(outer, inner[row.internal].name, way, row, source=source)


def outputs_of(layer: Layer, prefix: str, net: Net, outputs: Mapping[int, str]) -> Iterator[PortMapping]:
    """What leaves a body; `outputs` are the model's names for Results of the net that contains the loop."""
    inner = layer.bodies[prefix].layers
    places = {port.id: i for i, port in enumerate(layer.outputs)}
    readers: dict[int, list[str]] = {}
    for user in net.layers.values():
        for source, index in user.sources:
            if source == layer.id:
                readers.setdefault(index, []).append(outputs.get(user.id, user.name))
    for row in layer.maps[prefix].outputs:
        place = places.get(row.external)
        outer = "" if place is None else ", ".join(readers.get(place, ()))
        way: Way = "joined" if row.axis is not None else "condition" if row.external < 0 else "last"
        way = "result" if layer.type == "If" else way
        yield _mapping(outer, inner[row.internal].name, way, row, output=place)


def _mapping(
    outer: str, inner: str, way: Way, row: PortRow, *,
    source: tuple[int, int] | None = None, output: int | None = None,
) -> PortMapping:  # fmt: skip
    cut = (row.axis, row.start, row.end, row.stride, row.part_size)
    return PortMapping(outer, inner, way, *cut, row.internal, source, output)
