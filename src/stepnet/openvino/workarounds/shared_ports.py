"""A port of a loop that feeds several Parameters.

OpenVINO (2026.4, CPU) looks an input of a loop up by its position among the rows of the port map.
"""

from __future__ import annotations

from dataclasses import replace

from stepnet.openvino.records import Layer, Port, PortMap, PortRow
from stepnet.openvino.writing.edit import Editor


def one_port_each(edit: Editor, layer: Layer) -> None:
    """Give each row of a loop's port map a port of its own, in place."""
    for prefix, rows in layer.maps.items():
        seen: set[int] = set()
        inputs: list[PortRow] = []
        for row in rows.inputs:
            if row.external in seen and row.purpose is None:
                places = [port.id for port in layer.inputs]
                fresh = 1 + max(port.id for port in (*layer.inputs, *layer.outputs))
                source = layer.sources[places.index(row.external)]
                port = edit.port(source)
                layer.inputs = (*layer.inputs, Port(fresh, port.type, port.shape))
                layer.sources = (*layer.sources, source)
                row = replace(row, external=fresh)
            seen.add(row.external)
            inputs.append(row)
        layer.maps[prefix] = PortMap(tuple(inputs), rows.outputs)
