"""Element types of Parameters in bodies that a file leaves open: those of what feeds them."""

from __future__ import annotations

from dataclasses import replace

from .element_types import ElementType, by_name
from .records import Layer, Net, PortRow

_OPEN = ("dynamic", "undefined")


def take_types(net: Net) -> None:
    """Give each Parameter of a body whose element type is `dynamic`, as OpenVINO writes one made without a
    type, that of the output that feeds it; where that is open, too, the Parameter stays as it is."""
    for layer in net.layers.values():
        for prefix, body in layer.bodies.items():
            for row in layer.maps[prefix].inputs:
                parameter = body.layers[row.internal]
                if parameter.attributes.get("element_type", "").lower() in _OPEN:
                    _give(parameter, _fed(net, layer, row))
            take_types(body)


def _fed(net: Net, layer: Layer, row: PortRow) -> ElementType | None:
    if row.purpose is not None:  # the number of the step
        return by_name("i64", layer.where)
    at = next(i for i, port in enumerate(layer.inputs) if port.id == row.external)
    source, output = layer.sources[at]
    return net.layers[source].outputs[output].type


def _give(parameter: Layer, kind: ElementType | None) -> None:
    if kind is not None:
        parameter.attributes = {**parameter.attributes, "element_type": kind.name}
        parameter.outputs = (replace(parameter.outputs[0], type=kind),)
