"""A model read from a file as records: its layers and loops, what runs how often, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepnet.openvino import OpenVINOModel, load
from stepnet.openvino import records as ir
from stepnet.openvino.graph import Graph, Node
from stepnet.openvino.table import is_constant

from .cost import GATES, cell_flops, layer_cost, tensor_bytes
from .inspection import BackEdge, Inspection, Layer, LayerLoop, Net, Socket, When
from .ports import inputs_of, outputs_of
from .records import Cost, Value
from .schedule import when
from .sizes import Sizes, sizes
from .steps import steps
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
        xml: the .xml file.
        bin: the file of weights; None: the .bin beside it.
        shapes: of inputs by name, for which steps and costs are counted. A dynamic dimension of another
            input is 1 if the model takes that.

    Raises:
        IRError: the files are no model, or a shape does not fit.
    """
    model = load(xml, bin)
    at = sizes(model, shapes or {})
    return _Describer(at).model(model, Path(xml))


@dataclass(frozen=True)
class _Scope:
    """The model or a body: its graph, the path of the loops around it, and names of its outputs.

    `inside` are the ids of its layers, constants excepted; `constants` are those by slot. `frequencies` are
    how often each layer of a body runs.
    """

    graph: Graph
    path: tuple[str, ...]
    outputs: Mapping[int, str]
    inside: frozenset[int]
    constants: dict[int, Tensor]
    frequencies: Mapping[int, When] | None


class _Describer:
    def __init__(self, at: Sizes) -> None:
        self.at = at
        self.weights: dict[int, int] = {}  # numbers in each constant that layers compute with
        self.places: dict[tuple[str, str], int] = {}  # bytes at each place in the file

    def model(self, model: OpenVINOModel, path: Path) -> Inspection:
        graph = model.graph
        outputs = dict(zip(graph.net.results, (s.name for s in model.outputs), strict=True))
        net = self._net(graph, (), outputs)
        return Inspection(
            name=model.name,
            file=path.name,
            version=graph.net.version,
            inputs=tuple(
                Socket(s.name, Value(str(s.dtype).removeprefix("torch."), s.shape)) for s in model.inputs
            ),
            outputs=tuple(Socket(name, self._result(graph.net, i)) for i, name in outputs.items()),
            counted_at=self.at.inputs,
            net=net,
            parameters=sum(self.weights.values()),
            weight_bytes=sum(self.places.values()),
            cost=net.cost,
        )

    def _result(self, net: ir.Net, result: int) -> Value:
        source, index = net.layers[result].sources[0]
        return self.at.outputs(net.layers[source])[index]

    def _net(
        self,
        graph: Graph,
        path: tuple[str, ...],
        outputs: Mapping[int, str],
        frequencies: Mapping[int, When] | None = None,
    ) -> Net:
        net = graph.net
        nodes = {node.layer.id: node for node in graph.nodes}
        for layer in net.layers.values():
            if is_constant(layer):
                at = (layer.attributes.get("offset", ""), layer.attributes.get("size", "0"))
                self.places[at] = int(at[1])
        constants = {slot: getattr(graph, name) for slot, name in graph.constant_slots}
        inside = frozenset(nodes) | set(net.parameters)
        scope = _Scope(graph, path, outputs, inside, constants, frequencies)
        layers = [
            self._layer(nodes.get(i), net.layers[i], scope)
            for i in net.order
            if i in nodes or net.layers[i].type in ("Parameter", "Result")
        ]
        return Net(tuple(layers), sum(layer.parameters for layer in layers))

    def _layer(self, node: Node | None, layer: ir.Layer, scope: _Scope) -> Layer:
        net, inside = scope.graph.net, scope.inside
        loop, parameters, cost = None, 0, Cost()
        if node is not None:
            parameters = self._parameters(node, scope)
            if layer.bodies or hasattr(node.run, "reports"):
                loop = self._loop(node, scope)
                parameters += sum(body.parameters for body in loop.bodies.values())
                cost = loop.cost
            else:
                cost = layer_cost(layer, *self._values(layer))
        return Layer(
            id=layer.id,
            name=layer.name,
            type=layer.type,
            reads=tuple(source for source in layer.sources if source[0] in inside),
            constants=tuple(net.layers[s].name for s, _ in layer.sources if s not in inside),
            outputs=self.at.outputs(layer) if layer.outputs else (self._result(net, layer.id),),
            parameters=parameters,
            cost=cost,
            when=None if scope.frequencies is None else scope.frequencies[layer.id],
            loop=loop,
        )

    def _values(self, layer: ir.Layer) -> tuple[Sequence[Any], Sequence[Any]]:
        """The inputs and results of a layer at the sizes that are counted."""
        counted = self.at.counted
        return counted.given.get(id(layer), ()), counted.seen.get(id(layer), ())

    def _parameters(self, node: Node, scope: _Scope) -> int:
        """How many numbers the constant inputs of a layer hold."""
        total = 0
        for i, (source, _) in enumerate(node.layer.sources):
            if source not in scope.inside and i not in node.values:
                constant = scope.constants[node.inputs[i]]
                if constant.dtype not in _INDICES:
                    self.weights[id(constant)] = constant.numel()
                    total += constant.numel()
        return total

    def _loop(self, node: Node, scope: _Scope) -> LayerLoop:
        layer, net, path = node.layer, scope.graph.net, (*scope.path, node.layer.name)
        takes = {_BODIES[p]: tuple(inputs_of(layer, p, net)) for p in layer.bodies}
        gives = {_BODIES[p]: tuple(outputs_of(layer, p, net, scope.outputs)) for p in layer.bodies}
        if layer.type == "If":
            bodies = {_BODIES[p]: self._body(scope, layer, p, path) for p in layer.bodies}
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
            frequencies = by_edges if tried.compiled else every_step
            body = self._body(scope, layer, "", path, frequencies)
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

    def _body(
        self,
        scope: _Scope,
        layer: ir.Layer,
        prefix: str,
        path: tuple[str, ...],
        frequencies: Mapping[int, When] | None = None,
    ) -> Net:
        inner = scope.graph.bodies[f"{prefix}{layer.id}"]
        assert isinstance(inner, Graph)
        return self._net(inner, path, {}, frequencies)

    def _split(self, net: ir.Net, body: Net, count: int | None) -> tuple[Cost, Cost, tuple[str, ...]]:
        """The cost of what runs once for all steps, that of each step, and the cells that are in both."""
        times = 1 if count is None else count
        once, step, hoisted = Cost(), Cost(), []
        per_step = {layer.id for layer in body.layers if layer.when == "step"}
        for layer in body.layers:
            if layer.when != "step":
                once += layer.cost if layer.when == "once" else layer.cost.times(times)
                continue
            step += layer.cost
            cell = net.layers[layer.id]
            if layer.type.lower() in GATES and cell.sources[0][0] not in per_step:
                hoisted.append(layer.name)
                inputs, _ = self._values(cell)
                if inputs and all(isinstance(value, Tensor) for value in inputs):
                    product = Cost(cell_flops(cell, inputs)[0])
                    once, step = once + product.times(times), step + product.times(-1)
        return once, step, tuple(hoisted)

    def _sequence(self, layer: ir.Layer, count: int | None) -> tuple[Cost, Cost]:
        """The cost of a sequence layer's products with the input, and of each step."""
        inputs, results = self._values(layer)
        if not results or not all(isinstance(value, Tensor) for value in (*inputs, *results)):
            return Cost(unknown=1), Cost()
        directions = inputs[1].shape[1]
        product, rest = cell_flops(layer, inputs)
        once_bytes = tensor_bytes(inputs[0], inputs[-3], results[0])
        step_bytes = tensor_bytes(*inputs[-2:]) + 2 * tensor_bytes(*results[1:])
        times = 1 if count is None else count
        return Cost(product * directions * times, once_bytes), Cost(rest * directions, step_bytes)
