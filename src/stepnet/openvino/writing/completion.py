"""Types and shapes of ports that a net does not say, from those of its inputs."""

from __future__ import annotations

from dataclasses import replace

from stepnet.errors import IRError
from stepnet.openvino.element_types import by_dtype
from stepnet.openvino.graph import Graph, Making
from stepnet.openvino.inference import infer
from stepnet.openvino.loops import RUNNERS
from stepnet.openvino.model import check_parameters, parameter_type
from stepnet.openvino.records import Layer, Net, Port
from stepnet.openvino.table import check_supported
from stepnet.openvino.weights import Weights

Known = dict[int, list]


def complete(net: Net) -> Net:
    """Fill in the ports of a net whose constants have values; what its layers say already stays.

    Raises:
        IRError: layers of unknown types, inputs of a layer that do not fit, or an output whose type cannot
            be inferred.
    """
    check_supported(net)
    check_parameters(net)
    _fill(net, inferred(net))
    return net


def is_open(net: Net) -> bool:
    """Whether a port does not say its type."""
    return any(
        any(port.type is None for port in layer.outputs) or any(map(is_open, layer.bodies.values()))
        for layer in net.layers.values()
    )


def inferred(net: Net) -> Known:
    """Types and shapes of the outputs of all layers, those in bodies too, by the identity of the layers; None
    for a shape that is open."""
    graph = Graph(net, Making(Weights(None), RUNNERS))
    kinds = [parameter_type(net.layers[i]) for i in net.parameters]
    return infer(graph, [shape or () for _, shape in kinds], [kind.dtype for kind, _ in kinds])


def _fill(net: Net, known: Known) -> None:
    for i in net.order:
        layer = net.layers[i]
        for body in layer.bodies.values():
            if any(id(inner) not in known for inner in body.layers.values() if inner.outputs):
                # No size of a dynamic dimension that was tried can be cut: the body says what it knows.
                known = inferred(body) | known
            _fill(body, known)
        found = [net.layers[source].outputs[index] for source, index in layer.sources]
        layer.inputs = tuple(
            replace(port, type=source.type, shape=source.shape)
            for port, source in zip(layer.inputs, found, strict=True)
        )
        layer.outputs = tuple(
            _filled(layer, k, port, known.get(id(layer), ())) for k, port in enumerate(layer.outputs)
        )


def _filled(layer: Layer, index: int, port: Port, known: list | tuple) -> Port:
    inferred = known[index] if index < len(known) else None
    kind, shape = port.type, port.shape
    if inferred is not None:
        dtype, inferred_shape = inferred
        kind, shape = kind or by_dtype(dtype), inferred_shape if shape is None else shape
    elif layer.type.lower() == "convert":  # of a constant, which is done when a model is read
        kind = kind or layer.said.element_type("destination_type")
        shape = layer.inputs[0].shape if shape is None else shape
    elif kind is None and layer.bodies:
        kind = _of_body(layer, port)
    if kind is None:
        raise IRError(
            f"{layer.where}: the type of output {index} cannot be inferred",
            expected="outputs=[dtype] when the layer is made",
            got="no dtype",
            remedy="name the dtype there",
        )
    return replace(port, type=kind, shape=shape)


def _of_body(layer: Layer, port: Port):
    """The type of a loop's output is that of the Result of its body."""
    prefix, body = next(iter(layer.bodies.items()))
    row = next(row for row in layer.maps[prefix].outputs if row.external == port.id)
    return body.layers[row.internal].inputs[0].type
