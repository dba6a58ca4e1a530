"""From a model to what is told of it."""

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

from . import flops
from .ports import leaves, takes
from .records import BackEdge, Cost, Inspection, Layer, Loop, Net, Socket, Value, When
from .sizes import Sizes, sizes
from .steps import steps
from .trial import trial
from .turns import when

_POSITIONS = (torch.int64, torch.int32, torch.bool)  # constants of these types are no parameters
BODIES = {"": "body", "then_": "then", "else_": "else"}


def inspect_model(
    xml: str | os.PathLike[str],
    bin: str | os.PathLike[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inspection:
    """Read a model and tell its layers, its loops, what runs how often, and what that costs.

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
class _Place:
    """A graph, the ids of its layers that are no constants, and its constants by slot."""

    graph: Graph
    inside: frozenset[int]
    constants: dict[int, Tensor]


class _Describer:
    def __init__(self, at: Sizes) -> None:
        self.at = at
        self.weights: dict[int, int] = {}  # numbers in each constant that layers compute with
        self.places: dict[tuple[str, str], int] = {}  # bytes at each place in the file

    def model(self, model: OpenVINOModel, path: Path) -> Inspection:
        graph = model.graph
        outputs = dict(zip(graph.net.results, (s.name for s in model.outputs), strict=True))
        net = self.net(graph, (), outputs)
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
            cost=_total(net),
        )

    def _result(self, net: ir.Net, result: int) -> Value:
        source, index = net.layers[result].sources[0]
        return self.at.outputs(net.layers[source])[index]

    def net(
        self,
        graph: Graph,
        path: tuple[str, ...],
        outputs: Mapping[int, str],
        turns: Mapping[int, When] | None = None,
    ) -> Net:
        net = graph.net
        nodes = {node.layer.id: node for node in graph.nodes}
        for layer in net.layers.values():
            if is_constant(layer):
                at = (layer.attributes.get("offset", ""), layer.attributes.get("size", "0"))
                self.places[at] = int(at[1])
        slots = {slot: getattr(graph, name) for slot, name in graph.constant_slots}
        place = _Place(graph, frozenset(nodes) | set(net.parameters), slots)
        layers = [
            self.layer(nodes.get(i), net.layers[i], place, path, outputs, None if turns is None else turns[i])
            for i in net.order
            if i in nodes or net.layers[i].type in ("Parameter", "Result")
        ]
        return Net(tuple(layers), sum(layer.parameters for layer in layers))

    def layer(
        self, node: Node | None, layer: ir.Layer, place: _Place, path: tuple[str, ...],
        outputs: Mapping[int, str], turns: When | None,
    ) -> Layer:  # fmt: skip
        net, inside = place.graph.net, place.inside
        reads = tuple(source for source in layer.sources if source[0] in inside)
        constants = tuple(net.layers[s].name for s, _ in layer.sources if s not in inside)
        given = self.at.counted.given.get(id(layer), ())
        gave = self.at.counted.seen.get(id(layer), ())
        loop, parameters, cost = None, 0, Cost()
        gives = self.at.outputs(layer) if layer.outputs else (self._result(net, layer.id),)
        if node is not None:
            for i, (source, _) in enumerate(layer.sources):
                if source not in inside and i not in node.values:
                    constant = place.constants[node.inputs[i]]
                    if constant.dtype not in _POSITIONS:
                        self.weights[id(constant)] = constant.numel()
                        parameters += constant.numel()
            if layer.bodies or hasattr(node.run, "reports"):
                loop = self.loop(node, place.graph, (*path, layer.name), outputs)
                parameters += sum(body.parameters for body in loop.bodies.values())
                cost = loop.cost
            else:
                cost = flops.layer_cost(layer, given, gave)
        return Layer(
            layer.id, layer.name, layer.type, reads, constants, gives, parameters, cost, turns, loop
        )  # fmt: skip

    def loop(self, node: Node, graph: Graph, path: tuple[str, ...], outputs: Mapping[int, str]) -> Loop:
        layer = node.layer
        given = self.at.counted.given.get(id(layer), ())
        taken = {BODIES[p]: takes(layer, p, graph.net) for p in layer.bodies}
        given_out = {BODIES[p]: leaves(layer, p, graph.net, outputs) for p in layer.bodies}
        if layer.type == "If":
            bodies = {BODIES[p]: self._body(graph, layer, p, path, None) for p in layer.bodies}
            dearest = max((_total(body) for body in bodies.values()), key=lambda cost: cost.flops)
            return Loop(
                path, "If", 1, True, "one of two bodies", taken, given_out, (), bodies, None, None, Cost(),
                dearest,
            )  # fmt: skip
        count = steps(node, graph.net, self.at)
        gave = self.at.counted.seen.get(id(layer), ())
        fits = bool(gave) and any(isinstance(value, Tensor) for value in gave)
        tried = trial(node, given if fits or layer.bodies else (), count.count)
        if not layer.bodies:
            once, step = self._sequence(layer, given, count.count)
            if tried.once is not None and tried.step is not None:
                once, step = tried.once, tried.step
            return Loop(
                path, layer.type, count.count, count.static, count.words, {}, {}, (), {}, tried.compiled,
                tried.reason, once, step, (layer.name,),
            )  # fmt: skip
        depends = when(layer)
        step_by_step: dict[int, When] = dict.fromkeys(depends, "step")
        turns = depends if tried.compiled else step_by_step
        body = self._body(graph, layer, "", path, turns)
        if tried.compiled:
            once, step, hoisted = self._split(layer.bodies[""], body, count.count)
            if tried.once is not None and tried.step is not None:
                once, step = tried.once, tried.step
        else:
            once, step, hoisted = Cost(), _total(body), ()
        inner = layer.bodies[""].layers
        edges = tuple(BackEdge(inner[a].name, inner[b].name, a, b) for a, b in layer.back_edges)
        return Loop(
            path, layer.type, count.count, count.static, count.words, taken, given_out, edges, {"body": body},
            tried.compiled, tried.reason, once, step, hoisted,
        )  # fmt: skip

    def _body(
        self,
        graph: Graph,
        layer: ir.Layer,
        prefix: str,
        path: tuple[str, ...],
        turns: Mapping[int, When] | None,
    ) -> Net:
        inner = graph.bodies[f"{prefix}{layer.id}"]
        assert isinstance(inner, Graph)
        return self.net(inner, path, {}, turns)

    def _split(self, net: ir.Net, body: Net, count: int | None) -> tuple[Cost, Cost, tuple[str, ...]]:
        """The cost of what runs once for all steps, that of each step, and the cells that are in both."""
        times = 1 if count is None else count
        once, step, hoisted = Cost(), Cost(), []
        for layer in body.layers:
            if layer.when == "once":
                once += layer.cost
            elif layer.when == "rows":
                once += layer.cost.times(times)
            else:
                step += layer.cost
                given = self.at.counted.given.get(id(net.layers[layer.id]), ())
                if layer.type.lower() in flops.GATES and _waits_not(body, net.layers[layer.id].sources[0][0]):
                    hoisted.append(layer.name)
                    if given and all(isinstance(value, Tensor) for value in given):
                        product = Cost(flops.cell_halves(net.layers[layer.id], given)[0])
                        once += product.times(times)
                        step += product.times(-1)
        return once, step, tuple(hoisted)

    def _sequence(self, layer: ir.Layer, given: Sequence[Any], count: int | None) -> tuple[Cost, Cost]:
        gave = self.at.counted.seen.get(id(layer), ())
        if not gave or not all(isinstance(value, Tensor) for value in (*given, *gave)):
            return Cost(unknown=1), Cost()
        directions = given[1].shape[1]
        product, rest = flops.cell_halves(layer, given)
        x, w, r, b, y = (v.numel() * v.element_size() for v in (given[0], *given[-3:], gave[0]))
        states = sum(v.numel() * v.element_size() for v in gave[1:])
        times = 1 if count is None else count
        return Cost(product * directions * times, x + w + y), Cost(rest * directions, r + b + 2 * states)


def _waits_not(body: Net, source: int) -> bool:
    return all(layer.id != source or layer.when != "step" for layer in body.layers)


def _total(net: Net) -> Cost:
    return sum((layer.cost for layer in net.layers), Cost())
