"""Shapes of what loops join and cut, which files may leave out: other files here ask for them."""

from __future__ import annotations

from stepnet.openvino.records import Layer, Net
from stepnet.openvino.writing.completion import Known, inferred
from stepnet.openvino.writing.edit import Source, all_nets


def with_shapes(net: Net) -> None:
    """Fill in those that the inputs of the net tell, in place."""
    known: Known | None = None
    for loop in [layer for inner in all_nets(net) for layer in inner.layers.values()]:
        if not loop.bodies or loop.type == "If":
            continue
        layers = loop.bodies[""].layers
        for number, index in _parts(loop):
            layer = layers[number]
            if layer.outputs[index].shape:
                continue
            known = inferred(net) if known is None else known
            found = known.get(id(layer), ())
            if index < len(found) and found[index] is not None:
                layer.change_output(index, shape=found[index][1])


def _parts(loop: Layer) -> list[Source]:
    """The outputs of layers of the body that rows with an axis give or take."""
    layers, maps = loop.bodies[""].layers, loop.maps[""]
    sources = [(row.internal, 0) for row in maps.inputs if row.axis is not None]
    return sources + [layers[row.internal].sources[0] for row in maps.outputs if row.axis is not None]
