"""A model read from an ONNX file as the records of an inspection: it is run on zeros, and watched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import IRError
from stepnet.onnx import ONNXModel, load
from stepnet.onnx.reading.graph import SEEN, Graph, Step
from stepnet.watchers import during

from .cost import cell_flops, layer_cost, tensor_bytes
from .inspection import BackEdge, Inspection, Layer, LayerLoop, Net, PortMapping, Socket, Way, When
from .records import Cost, Value
from .schedule import frequencies as by_edges
from .sizes import check_shapes, common, declared, made, shapes_at
from .trial import MOST_NUMBERS

_TRIED = (1, 2, 3, 8, 16, 64)  # for dynamic dimensions: one row of one step if the model takes it
_CELLS = ("LSTM", "GRU", "RNN")
_COUNTED_BY = {"Scan": "the scan inputs", "If": "one of two bodies"}
_BODIES = {"then_branch": "then", "else_branch": "else"}
_ATTRIBUTES = {"transA": "transpose_a", "kernel_shape": "kernel", "equation": "equation"}
_UNKNOWN = Value(None, None)
Seen = dict[int, tuple[Sequence[Any], Sequence[Any]]]
Ways = list[tuple[Way, dict[str, Any]]]  # with how each cuts
Places = Mapping[Any, tuple[int, int]]  # (layer id, output) of each value


def inspect_onnx(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Inspection:
    """As `inspect_model`, of an ONNX file; its shapes are those of runs on zeros.

    Raises:
        IRError: the file is no model, or a shape does not fit.
    """
    model = load(path)
    check_shapes(model, shapes)
    at, seen = _runs(model, shapes)
    other = _seen(model, shapes_at(model, {}, 3), {}) or seen
    net = _Describer(seen, other).net(model.graph, ())
    constants = [*model.parameters(), *model.buffers()]
    return Inspection(
        name=model.name,
        file=path.name,
        version=model.opset,
        inputs=tuple(Socket(s.name, declared(s)) for s in model.inputs),
        outputs=tuple(Socket(s.name, declared(s)) for s in model.outputs),
        counted_at=at,
        net=net,
        parameters=sum(t.numel() for t in constants if t.is_floating_point()),
        weight_bytes=tensor_bytes(*constants),
        cost=net.cost,
        defaults=tuple(Socket(s.name, declared(s)) for s in model.defaults),
    )


def _runs(model: ONNXModel, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, ...]], Seen]:
    """The first sizes that the model runs on, and what it computed there; none if there are no such."""
    for size in _TRIED:
        at = shapes_at(model, shapes, size)
        seen = _seen(model, at, shapes)
        if seen is not None:
            _seen(model, at, shapes, watch=False)  # once more, to see which loops are compiled
            return at, seen
    return shapes_at(model, shapes, 1), {}


def _seen(
    model: ONNXModel, at: Mapping[str, tuple[int, ...]], asked: Mapping[str, Any], *, watch: bool = True
) -> Seen | None:
    """What each node was given and gave in a run on zeros; None if the model does not run on these sizes, or
    takes more of inputs whose shapes nobody asked for than is made of what a file declares."""
    seen: Seen = {}
    declared_only = [prod(shape) for name, shape in at.items() if name not in asked]
    if len(at) < len(model.inputs) or sum(declared_only) > MOST_NUMBERS:
        return None
    zeros = {s.name: made(s, at[s.name]) for s in model.inputs}
    note = (lambda step, given, gave: seen.setdefault(id(step), (given, gave))) if watch else None
    try:
        with during(SEEN, note), torch.no_grad():
            model(*zeros.values())
    except IRError:
        return None
    return seen


@dataclass(frozen=True)
class _Describer:
    """Describes the model or a body from two runs of it: a size that differs is dynamic.

    `frequencies` says how often each node of a body runs, by its number.
    """

    seen: Seen
    other: Seen
    frequencies: Mapping[int, When] = field(default_factory=dict)

    def net(self, graph: Graph, path: tuple[str, ...]) -> Net:
        places: dict[Any, tuple[int, int]] = {}
        layers: list[Layer] = []
        for number, value in enumerate(graph.inputs):
            places[value] = (number, 0)
            layers.append(Layer(number, value.name or "", "Parameter", (), (), (_UNKNOWN,), 0, Cost()))
        for step in graph.steps:
            number = len(layers)
            layers.append(self._layer(step, number, places, path))
            places.update((value, (number, k)) for k, value in enumerate(step.outputs))
        for value in graph.outputs:
            reads = (places[value],) if value in places else ()
            shape = layers[reads[0][0]].outputs[reads[0][1]] if reads else _UNKNOWN
            layers.append(Layer(len(layers), value.name or "", "Result", reads, (), (shape,), 0, Cost()))
        return Net(tuple(layers), sum(layer.parameters for layer in layers))

    def _layer(self, step: Step, number: int, places: Places, path: tuple[str, ...]) -> Layer:
        node = step.info.node
        given, gave = self.seen.get(id(step), ((), ()))
        again = self.other.get(id(step), ((), ()))[1] or gave
        own = list(zip(step.inputs, given, strict=False))[: len(node.inputs)]
        constants = [(v, t) for v, t in own if v is not None and v.const_value is not None]
        parameters = sum(t.numel() for _, t in constants if isinstance(t, Tensor) and t.is_floating_point())
        name = node.name or (step.outputs[0].name if step.outputs else "") or node.op_type
        if step.info.bodies:
            loop = self._loop(step, (*path, name), given, places)
            parameters += sum(body.parameters for body in loop.bodies.values())
        else:
            loop = _cell(node, (*path, name), given) if node.op_type in _CELLS else None
        pairs = list(zip_longest(gave, again))[: len(step.outputs)]
        pairs += [(None, None)] * (len(step.outputs) - len(pairs))
        return Layer(
            id=number,
            name=name,
            type=node.op_type,
            reads=tuple(places[v] for v in step.inputs if v in places),
            constants=tuple(v.name or "" for v, _ in constants),
            outputs=tuple(common(one, two, _UNKNOWN) for one, two in pairs),
            parameters=parameters,
            cost=_cost(node, given, gave) if loop is None else loop.cost,
            when=self.frequencies.get(number),
            loop=loop,
        )

    def _loop(self, step: Step, path: tuple[str, ...], given: Sequence[Any], places: Places) -> LayerLoop:
        kind = step.info.node.op_type
        run: Any = step.run
        report = getattr(run, "reports", None)
        compiled, reason = (
            (None, None) if report is None or not report.ran else (report.compiled, report.reason)
        )
        enters, leaves = _ways(step)
        states = _places_of("state", enters), _places_of("last", leaves)
        steps = _steps(step, given) if kind == "Scan" else 1 if kind == "If" else None
        bodies, takes, gives = {}, {}, {}
        for key, graph in step.info.bodies.items():
            body = _BODIES.get(key, "body")
            frequencies: Mapping[int, When] = {}
            if kind != "If":
                count = len(graph.inputs) + len(graph.steps)
                every: dict[int, When] = dict.fromkeys(range(count), "step")
                frequencies = _frequencies(graph, *states) if compiled else every
            bodies[body] = _Describer(self.seen, self.other, frequencies).net(graph, path)
            takes[body] = tuple(_enters(step, graph, enters, places))
            gives[body] = tuple(_leaves(step, graph, leaves))
        once, each = (
            Cost(),
            max((body.cost for body in bodies.values()), key=lambda c: c.flops, default=Cost()),
        )
        if kind == "Scan" and compiled:
            once, each = bodies["body"].cost_by_step(1 if steps is None else steps)
        edges = tuple(_back_edges(step.info.bodies["body"], *states)) if "body" in bodies else ()
        words = _COUNTED_BY.get(kind, "its condition and trip count")
        return LayerLoop(
            path, kind, steps, False, words, takes, gives, edges, bodies, compiled, reason, once, each
        )


def _steps(step: Step, given: Sequence[Any]) -> int | None:
    run: Any = step.run
    first = run.states + run.old  # before opset 9 lengths come first
    return given[first].shape[run.cut[0][0] + run.old] if len(given) > first else None


def _ways(step: Step) -> tuple[Ways, Ways]:
    """How values enter a body, in the order of its inputs, and leave it, in that of its results."""
    run: Any = step.run
    kind, outputs = step.info.node.op_type, len(step.outputs)
    if kind == "Scan":
        enters: Ways = [("slice", _cut(*each)) for each in run.cut]
        leaves: Ways = [("joined", _cut(*each)) for each in run.joined]
        return [*_uncut("state", run.states), *enters], [*_uncut("last", run.states), *leaves]
    if kind == "Loop":  # a trip count and a condition, then what is carried
        states = len(step.info.node.inputs) - 2
        leaves = [("joined", _cut(0, 0))] * (outputs - states)
        enters = [*_uncut("iteration"), *_uncut("condition"), *_uncut("state", states)]
        return enters, [*_uncut("condition"), *_uncut("last", states), *leaves]
    return [], _uncut("result" if kind == "If" else "last", outputs)


def _uncut(way: Way, times: int = 1) -> Ways:
    return [(way, {})] * times


def _places_of(way: Way, ways: Ways) -> list[int]:
    return [k for k, (own, _) in enumerate(ways) if own == way]


def _enters(step: Step, graph: Graph, ways: Ways, places: Places) -> Iterator[PortMapping]:
    inputs = step.info.node.inputs[-len(graph.inputs) :]  # before opset 9 lengths come first
    for k, (outer, inner, (way, cut)) in enumerate(zip(inputs, graph.inputs, ways, strict=False)):
        name = "" if outer is None else outer.name or ""
        yield PortMapping(name, inner.name or "", way, **cut, inner_id=k, source=places.get(outer))


def _leaves(step: Step, graph: Graph, ways: Ways) -> Iterator[PortMapping]:
    first = len(graph.inputs) + len(graph.steps)  # of the results
    inside = len(_places_of("condition", ways))
    outer = [None] * inside + list(step.outputs)
    for k, (value, inner, (way, cut)) in enumerate(zip(outer, graph.outputs, ways, strict=False)):
        names = "" if value is None else value.name or "", inner.name or ""
        output = None if value is None else k - inside
        yield PortMapping(*names, way, **cut, inner_id=first + k, output=output)


def _back_edges(graph: Graph, into: Sequence[int], out: Sequence[int]) -> Iterator[BackEdge]:
    first = len(graph.inputs) + len(graph.steps)
    for j, k in zip(into, out, strict=True):
        yield BackEdge(graph.outputs[k].name or "", graph.inputs[j].name or "", first + k, j)


def _cut(axis: int, backwards: int) -> dict[str, Any]:
    return {"axis": axis, "start": -1, "end": 0, "stride": -1} if backwards else {"axis": axis}


def _frequencies(graph: Graph, into: Sequence[int], out: Sequence[int]) -> dict[int, When]:
    """How often each node of a body has to run; its results `out` are its inputs `into` of the next step."""
    numbers: dict[Any, int] = {value: k for k, value in enumerate(graph.inputs)}
    inputs: dict[int, list[int]] = {k: [] for k in numbers.values()}
    for k, step in enumerate(graph.steps, len(graph.inputs)):
        inputs[k] = [numbers[v] for v in step.inputs if v in numbers]
        numbers.update(dict.fromkeys(step.outputs, k))
    pairs = [(numbers.get(graph.outputs[k], j), j) for j, k in zip(into, out, strict=True)]
    return by_edges(inputs, [(result, j) for result, j in pairs if result != j], range(len(graph.inputs)))


def _cell(node: Any, path: tuple[str, ...], given: Sequence[Any]) -> LayerLoop:
    """An LSTM, a GRU or an RNN, whose products with the input run once for all steps."""
    steps, once, each = None, Cost(unknown=1), Cost()
    if len(given) >= 3 and all(isinstance(t, Tensor) for t in given[:3]):
        x, w, r = given[:3]
        layout = node.attributes.get("layout")
        steps, batch = x.shape[:2] if layout is None or not int(layout.value) else (x.shape[1], x.shape[0])
        product, rest = cell_flops(node.op_type, batch, w.shape[2], r.shape[2])
        once = Cost(product * len(w) * steps, tensor_bytes(x, w))
        each = Cost(rest * len(w), tensor_bytes(r))
    kind = node.op_type
    return LayerLoop(path, kind, steps, False, "the first input", {}, {}, (), {}, True, None, once, each)


def _cost(node: Any, given: Sequence[Any], gave: Sequence[Any]) -> Cost:
    known = {
        theirs: node.attributes[name].value for name, theirs in _ATTRIBUTES.items() if name in node.attributes
    }
    attributes = {
        name: value if isinstance(value, str) else str(value).strip("()[],") for name, value in known.items()
    }
    return layer_cost(node.op_type, attributes, [t for t in given if t is not None], gave)
