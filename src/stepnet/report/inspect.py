"""A model read from a file as records: its layers and loops, what runs how often, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepnet.openvino import load
from stepnet.openvino import records as ir
from stepnet.openvino.graph import Graph, Node
from stepnet.openvino.table import is_constant

from .cost import GATES, cell_flops, layer_cost, tensor_bytes
from .inspection import BackEdge, Inspection, Layer, LayerLoop, Net, Socket, When
from .loop_layers import inputs_of, outputs_of, steps
from .records import Cost, Value
from .schedule import when
from .sizes import Sizes, declared, sizes
from .trial import trial

_INDICES = (torch.int64, torch.int32, torch.bool)  # constants of these types are no parameters
_BODIES = {"": "body", "then_": "then", "else_": "else"}


def inspect_model(
    xml: str | os.PathLike[str],
    bin: str | os.PathLike[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inspection:
    """Read a model and describe its layers, its loops, what runs how often, and what that costs.

    Args:
        xml: the .xml file, or an .onnx file.
        bin: the file of weights; None: the .bin beside it.
        shapes: of inputs by name, for which steps and costs are counted. A dynamic dimension of another
            input is 1 if the model takes that.

    Raises:
        IRError: the files are no model, or a shape does not fit.
    """
    if Path(xml).suffix.lower() == ".onnx":
        from .inspect_onnx import inspect_onnx  # which needs an extra

        return inspect_onnx(Path(xml), shapes or {})
    model = load(xml, bin)
    at, graph = sizes(model, shapes or {}), model.graph
    outputs = dict(zip(graph.net.results, (s.name for s in model.outputs), strict=True))
    top = _Describer(at, graph, outputs)
    net = top.net()
    return Inspection(
        name=model.name,
        file=Path(xml).name,
        version=graph.net.version,
        inputs=tuple(Socket(s.name, declared(s)) for s in model.inputs),
        outputs=tuple(Socket(name, top.result(i)) for i, name in outputs.items()),
        counted_at=at.inputs,
        net=net,
        parameters=sum(top.weights.values()),
        weight_bytes=sum(top.places.values()),
        cost=net.cost,
    )


@dataclass(frozen=True)
class _Describer:
    """Describes the model or a body.

    Attributes:
        at: shapes of all values.
        graph: of the model or body.
        outputs: names of the model's outputs, by the ids of Results.
        path: names of the loops around it.
        frequencies: how often each layer of a body runs.
        weights: how many numbers each constant holds that layers compute with, in the whole model.
        places: bytes at each place in the file.
    """

    at: Sizes
    graph: Graph
    outputs: Mapping[int, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    frequencies: Mapping[int, When] | None = None
    weights: dict[int, int] = field(default_factory=dict)
    places: dict[tuple[str, str], int] = field(default_factory=dict)

    @cached_property
    def inside(self) -> frozenset[int]:
        """The ids of its layers, constants excepted."""
        return frozenset(node.layer.id for node in self.graph.nodes) | set(self.graph.net.parameters)

    def net(self) -> Net:
        net = self.graph.net
        nodes = {node.layer.id: node for node in self.graph.nodes}
        for layer in net.layers.values():
            if is_constant(layer):
                at = (layer.attributes.get("offset", ""), layer.attributes.get("size", "0"))
                self.places[at] = int(at[1])
        layers = [
            self._layer(nodes.get(i), net.layers[i])
            for i in net.order
            if i in nodes or net.layers[i].type in ("Parameter", "Result")
        ]
        return Net(tuple(layers), sum(layer.parameters for layer in layers))

    def result(self, result: int) -> Value:
        """Type and shape of what a Result reads."""
        layers = self.graph.net.layers
        source, index = layers[result].sources[0]
        return self.at.outputs(layers[source])[index]

    def _layer(self, node: Node | None, layer: ir.Layer) -> Layer:
        layers, inside = self.graph.net.layers, self.inside
        loop, parameters, cost = None, 0, Cost()
        if node is not None:
            parameters = self._parameters(node)
            if layer.bodies or hasattr(node.run, "reports"):
                loop = self._loop(node)
                parameters += sum(body.parameters for body in loop.bodies.values())
                cost = loop.cost
            else:
                cost = layer_cost(layer.type, layer.attributes, *self._values(layer))
        return Layer(
            id=layer.id,
            name=layer.name,
            type=layer.type,
            reads=tuple(source for source in layer.sources if source[0] in inside),
            constants=tuple(layers[s].name for s, _ in layer.sources if s not in inside),
            outputs=self.at.outputs(layer) if layer.outputs else (self.result(layer.id),),
            parameters=parameters,
            cost=cost,
            when=None if self.frequencies is None else self.frequencies[layer.id],
            loop=loop,
        )

    def _values(self, layer: ir.Layer) -> tuple[Sequence[Any], Sequence[Any]]:
        """The inputs and results of a layer at the sizes that are counted."""
        counted = self.at.counted
        return counted.given.get(id(layer), ()), counted.seen.get(id(layer), ())

    def _parameters(self, node: Node) -> int:
        """How many numbers the constant inputs of a layer hold."""
        total, names = 0, dict(self.graph.constant_slots)
        for i, (source, _) in enumerate(node.layer.sources):
            if source not in self.inside and i not in node.values:
                constant: Tensor = getattr(self.graph, names[node.inputs[i]])
                if constant.dtype not in _INDICES:
                    self.weights[id(constant)] = constant.numel()
                    total += constant.numel()
        return total

    def _loop(self, node: Node) -> LayerLoop:
        layer, net, path = node.layer, self.graph.net, (*self.path, node.layer.name)
        takes = {_BODIES[p]: tuple(inputs_of(layer, p, net)) for p in layer.bodies}
        gives = {_BODIES[p]: tuple(outputs_of(layer, p, net, self.outputs)) for p in layer.bodies}
        if layer.type == "If":
            bodies = {_BODIES[p]: self._body(layer, p) for p in layer.bodies}
            most = max((body.cost for body in bodies.values()), key=lambda cost: cost.flops)
            return LayerLoop(
                path, "If", 1, True, "one of two bodies", takes, gives, (), bodies, None, None, Cost(), most
            )
        count = steps(node, net, self.at)
        inputs, results = self._values(layer)
        known = any(isinstance(value, Tensor) for value in results)
        tried = trial(node, inputs if known or layer.bodies else (), count.count)
        bodies, edges, hoisted = {}, (), (layer.name,)
        if not layer.bodies:
            once, step = self._sequence(layer, count.count)
        else:
            by_edges = when(layer)
            every_step: dict[int, When] = dict.fromkeys(by_edges, "step")
            body = self._body(layer, "", by_edges if tried.compiled else every_step)
            once, step, hoisted = Cost(), body.cost, ()
            if tried.compiled:
                once, step, hoisted = self._split(layer.bodies[""], body, count.count)
            inner = layer.bodies[""].layers
            edges = tuple(BackEdge(inner[a].name, inner[b].name, a, b) for a, b in layer.back_edges)
            bodies = {"body": body}
        if tried.once is not None and tried.step is not None:
            once, step = tried.once, tried.step
        return LayerLoop(
            path, layer.type, count.count, count.static, count.words, takes, gives, edges, bodies,
            tried.compiled, tried.reason, once, step, hoisted,
        )  # fmt: skip

    def _body(self, layer: ir.Layer, prefix: str, frequencies: Mapping[int, When] | None = None) -> Net:
        graph = self.graph.bodies[f"{prefix}{layer.id}"]
        assert isinstance(graph, Graph)
        inner = replace(self, graph=graph, outputs={}, path=(*self.path, layer.name), frequencies=frequencies)
        return inner.net()

    def _split(self, net: ir.Net, body: Net, count: int | None) -> tuple[Cost, Cost, tuple[str, ...]]:
        """The cost of what runs once for all steps, that of each step, and the cells that are in both."""
        times = 1 if count is None else count
        once, step = body.cost_by_step(times)
        per_step = [layer.id for layer in body.layers if layer.when == "step"]
        hoisted = []
        for cell in (net.layers[i] for i in per_step):
            if cell.type.lower() in GATES and cell.sources[0][0] not in per_step:
                hoisted.append(cell.name)
                inputs, _ = self._values(cell)
                if inputs and all(isinstance(value, Tensor) for value in inputs):
                    product = Cost(_cell_flops(cell, inputs)[0])
                    once, step = once + product.times(times), step + product.times(-1)
        return once, step, tuple(hoisted)

    def _sequence(self, layer: ir.Layer, count: int | None) -> tuple[Cost, Cost]:
        """The cost of a sequence layer's products with the input, and of each step."""
        inputs, results = self._values(layer)
        if not results or not all(isinstance(value, Tensor) for value in (*inputs, *results)):
            return Cost(unknown=1), Cost()
        directions = inputs[1].shape[1]
        product, rest = _cell_flops(layer, inputs)
        once_bytes = tensor_bytes(inputs[0], inputs[-3], results[0])
        step_bytes = tensor_bytes(*inputs[-2:]) + 2 * tensor_bytes(*results[1:])
        times = 1 if count is None else count
        return Cost(product * directions * times, once_bytes), Cost(rest * directions, step_bytes)


def _cell_flops(layer: ir.Layer, inputs: Sequence[Tensor]) -> tuple[int, int]:
    x, h = inputs[:2]
    return cell_flops(layer.type, x.shape[0], x.shape[-1], h.shape[-1])
