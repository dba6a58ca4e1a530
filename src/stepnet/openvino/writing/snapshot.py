"""A model that was read, as a net again: its records, with the constants as they are now."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepnet.data.storage import same_bits
from stepnet.openvino.element_types import ElementType, by_dtype
from stepnet.openvino.graph import Graph
from stepnet.openvino.layers.elementwise import convert
from stepnet.openvino.model import OpenVINOModel, parameter_type
from stepnet.openvino.reader import declared_type, shape_text
from stepnet.openvino.records import Layer, Net
from stepnet.openvino.states import closed_states
from stepnet.openvino.table import is_constant

from .naming import name_ends


def snapshot(model: OpenVINOModel) -> Net:
    """The net of a model. Its layers are copies, its tensors are not.

    A constant is in the type that the file declares, whatever `model.double()` made of it. A Convert of a
    constant stays where it still gives the value in use; where that was trained, it is the constant now.
    """
    net = closed_states(_Snapshot().net(model.graph))
    net.rt_info = dict(model.graph.net.rt_info)
    name_ends(net, [output.name for output in model.outputs][: len(net.results)])
    return net


class _Snapshot:
    """Constants that share a tensor in the model share one in the net."""

    def __init__(self) -> None:
        self._cast: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def net(self, graph: Graph) -> Net:
        layers: dict[int, Layer] = {}
        values: dict[int, Tensor] = {}  # of constants, and of Converts of constants
        for i in graph.net.order:
            layers[i] = self._layer(graph, graph.net.layers[i], values)
        needed = {source for layer in layers.values() for source, _ in layer.sources}
        for i in reversed(graph.net.order):
            if i in graph.folded and i not in needed:  # trained values took its place, or nothing reads it
                del layers[i]
                needed = {source for layer in layers.values() for source, _ in layer.sources}
        kept = {i: layers[i] for i in graph.net.layers if i in layers}
        return replace(graph.net, layers=kept, order=tuple(i for i in graph.net.order if i in kept))

    def _layer(self, graph: Graph, layer: Layer, values: dict[int, Tensor]) -> Layer:
        if layer.type == "Parameter":
            return _typed(layer)
        value = getattr(graph, f"constant_{layer.id}", graph.folded.get(layer.id))
        if value is None:
            bodies: dict[str, Net] = {}
            for prefix in layer.bodies:
                inner = graph.bodies[f"{prefix}{layer.id}"]
                assert isinstance(inner, Graph)
                bodies[prefix] = self.net(inner)
            return replace(layer, bodies=bodies)
        kind = _declared(layer)
        value = values[layer.id] = self._in(value, kind.dtype)
        if is_constant(layer):
            port = replace(layer.outputs[0], type=by_dtype(value.dtype))  # numbers of 4 bits become bytes
            return replace(layer, value=value, outputs=(port,))
        if same_bits(convert(values[layer.sources[0][0]], kind.dtype).cpu(), value.cpu()):
            return replace(layer)
        port = replace(layer.outputs[0], type=kind, shape=tuple(value.shape))
        return replace(
            layer,
            type="Const",
            attributes={},
            inputs=(),
            sources=(),
            outputs=(port,),
            rt_info=(),
            value=value,
        )

    def _in(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        key = (id(tensor), dtype)
        if key not in self._cast:
            self._cast[key] = (tensor, tensor.detach().to(dtype))
        return self._cast[key][1]


def _typed(layer: Layer) -> Layer:
    """A Parameter that says its type and shape, as OpenVINO demands; a file may leave both to the port."""
    kind, shape = parameter_type(layer)
    return replace(
        layer, attributes={"shape": shape_text(shape), "element_type": kind.name} | dict(layer.attributes)
    )


def _declared(layer: Layer) -> ElementType:
    """The type of a constant, or of a Convert of one."""
    return declared_type(layer, "element_type" if is_constant(layer) else "destination_type")
