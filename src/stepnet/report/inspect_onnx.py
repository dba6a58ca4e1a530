"""A model read from an ONNX file as the records of an inspection: it is run on zeros, and watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.errors import IRError
from stepnet.onnx import ONNXModel, load
from stepnet.onnx.reading.graph import SEEN, Graph, Step
from stepnet.watchers import during

from .cost import TRANSCENDENTAL, product_flops, tensor_bytes
from .inspection import BackEdge, Inspection, Layer, LayerLoop, Net, PortMapping, Socket, When
from .records import Cost, Value
from .schedule import frequencies as by_edges
from .sizes import check_shapes, declared, shapes_at

_TRIED = (1, 2, 3, 8, 16, 64)  # for dynamic dimensions: one row of one step if the model takes it
_COSTLY = {
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu", "Log",
    "LogSoftmax", "Mish", "Pow", "Sigmoid", "Sin", "Sinh", "Softmax", "Softplus", "Sqrt", "Tan", "Tanh",
}  # fmt: skip
_CHEAP = {
    "Abs", "Add", "And", "BatchNormalization", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual",
    "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Reciprocal", "Relu", "Round", "Sign",
    "Sub", "Sum", "Where", "Xor",
}  # fmt: skip
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LOOPS = ("Scan", "Loop", "If", "SequenceMap", *_GATES)
Seen = dict[int, tuple[Sequence[Any], Sequence[Any]]]


def inspect_onnx(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Inspection:
    """As `inspect_model`, of an ONNX file; its shapes are those of runs on zeros.

    Raises:
        IRError: the file is no model, or a shape does not fit.
    """
    model = load(path)
    check_shapes(model, shapes)  # pyright: ignore[reportArgumentType]
    at, seen = _runs(model, shapes)
    other = _seen(model, _sized(model, {}, 3)) or seen
    describer = _Describer(seen, other)
    net = describer.net(model.graph, ())
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
        weight_bytes=sum(tensor_bytes(t) for t in constants),
        cost=net.cost,
    )


def _sized(model: ONNXModel, shapes: Mapping[str, tuple[int, ...]], size: int) -> dict[str, tuple[int, ...]]:
    return shapes_at(model, shapes, size)  # pyright: ignore[reportArgumentType]


def _runs(model: ONNXModel, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, ...]], Seen]:
    """The first sizes that the model runs on, and what it computed there; none if there are no such."""
    for size in _TRIED:
        at = _sized(model, shapes, size)
        seen = _seen(model, at)
        if seen is not None:
            _seen(model, at, watch=False)  # once more, to see which loops are compiled
            return at, seen
    return _sized(model, shapes, 1), {}


def _seen(model: ONNXModel, at: Mapping[str, tuple[int, ...]], *, watch: bool = True) -> Seen | None:
    """What each node was given and gave in a run on zeros; None if the model does not run on these sizes."""
    seen: Seen = {}
    zeros = {s.name: torch.zeros(at[s.name], dtype=s.dtype) for s in model.inputs if s.name in at}
    if len(zeros) < len(model.inputs):
        return None
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
            layers.append(
                Layer(number, value.name or "", "Parameter", (), (), (Value(None, None),), 0, Cost())
            )
        for step in graph.steps:
            number = len(layers)
            layers.append(self._layer(step, number, places, path))
            places.update((value, (number, k)) for k, value in enumerate(step.outputs))
        for value in graph.outputs:
            reads = (places[value],) if value in places else ()
            shape = layers[reads[0][0]].outputs[reads[0][1]] if reads else Value(None, None)
            layers.append(Layer(len(layers), value.name or "", "Result", reads, (), (shape,), 0, Cost()))
        return Net(tuple(layers), sum(layer.parameters for layer in layers))

    def _layer(self, step: Step, number: int, places: Mapping[Any, Any], path: tuple[str, ...]) -> Layer:
        node = step.info.node
        given, gave = self.seen.get(id(step), ((), ()))
        own = list(zip(step.inputs, given, strict=False))[: len(node.inputs)]
        constants = [(v, t) for v, t in own if v is not None and v.const_value is not None]
        parameters = sum(t.numel() for _, t in constants if isinstance(t, Tensor) and t.is_floating_point())
        name = node.name or (step.outputs[0].name if step.outputs else "") or node.op_type
        loop, cost = None, _cost(node, given, gave) if gave else Cost(unknown=1)
        if node.op_type in _LOOPS:
            loop = self._loop(step, (*path, name), given, places)
            cost = loop.cost
            parameters += sum(body.parameters for body in loop.bodies.values())
        again = self.other.get(id(step), ((), ()))[1]
        return Layer(
            id=number,
            name=name,
            type=node.op_type,
            reads=tuple(places[v] for v in step.inputs if v in places),
            constants=tuple(v.name or "" for v, _ in constants),
            outputs=tuple(_value(gave, again, k) for k in range(len(step.outputs))),
            parameters=parameters,
            cost=cost,
            when=self.frequencies.get(number),
            loop=loop,
        )

    def _loop(
        self, step: Step, path: tuple[str, ...], given: Sequence[Any], places: Mapping[Any, Any]
    ) -> LayerLoop:
        node, kind = step.info.node, step.info.node.op_type
        if kind in _GATES:
            once, each, steps = _cell(node, given)
            return LayerLoop(
                path, kind, steps, False, "the first input", {}, {}, (), {}, True, None, once, each
            )
        report = getattr(step.run, "reports", None)
        compiled, reason = (
            (report.compiled, report.reason) if report is not None and report.ran else (None, None)
        )
        bodies, takes, gives, edges = {}, {}, {}, ()
        for key, graph in step.info.bodies.items():
            body = {"then_branch": "then", "else_branch": "else"}.get(key, "body")
            states = _states(step) if body == "body" else 0
            frequencies: Mapping[int, When] = {}
            if kind != "If":
                count = len(graph.inputs) + len(graph.steps)
                frequencies = _frequencies(graph, states) if compiled else dict.fromkeys(range(count), "step")
            bodies[body] = _Describer(self.seen, self.other, frequencies).net(graph, path)
            takes[body], gives[body] = _ports(step, graph, states, places)
            if kind == "Scan":
                first = len(bodies[body].layers) - len(graph.outputs)
                pairs = zip(graph.outputs[:states], graph.inputs, strict=False)
                edges = tuple(
                    BackEdge(out.name or "", into.name or "", first + k, k)
                    for k, (out, into) in enumerate(pairs)
                )
        steps = _steps(step, given) if kind == "Scan" else 1 if kind == "If" else None
        words = {"Scan": "the scan inputs", "If": "one of two bodies"}.get(
            kind, "its condition and trip count"
        )
        times = 1 if steps is None else steps
        once, each = (
            Cost(),
            max((body.cost for body in bodies.values()), key=lambda c: c.flops, default=Cost()),
        )
        if kind == "Scan" and compiled:
            layers = bodies["body"].layers
            each = sum((layer.cost for layer in layers if layer.when == "step"), Cost())
            once = sum((layer.cost.times(1 if layer.when == "once" else times)
                        for layer in layers if layer.when != "step"), Cost())  # fmt: skip
        return LayerLoop(
            path, kind, steps, False, words, takes, gives, edges, bodies, compiled, reason, once, each
        )


def _value(gave: Sequence[Any], again: Sequence[Any], k: int) -> Value:
    one = gave[k] if k < len(gave) else None
    two = again[k] if k < len(again) else one
    if not isinstance(one, Tensor):
        return Value(None, None)
    dtype = dtype_name(one.dtype)
    if not isinstance(two, Tensor) or one.dim() != two.dim():
        return Value(dtype, None)
    return Value(dtype, tuple(a if a == b else -1 for a, b in zip(one.shape, two.shape, strict=True)))


def _states(step: Step) -> int:
    count = step.info.node.attributes.get("num_scan_inputs")
    return len(step.info.node.inputs) - (2 if count is None else int(count.value))


def _steps(step: Step, given: Sequence[Any]) -> int | None:
    states = _states(step)
    axes = step.info.get("scan_input_axes", [0])
    return given[states].shape[axes[0]] if len(given) > states else None


def _ports(
    step: Step, graph: Graph, states: int, places: Mapping[Any, Any]
) -> tuple[tuple[PortMapping, ...], tuple[PortMapping, ...]]:
    node, kind = step.info.node, step.info.node.op_type
    first = len(graph.inputs) + len(graph.steps)  # of the results
    takes, gives = [], []
    if kind == "Scan":
        count = len(node.inputs) - states
        axes, turned = (step.info.get(f"scan_input_{name}", [0] * count) for name in ("axes", "directions"))
        for k, (outer, inner) in enumerate(zip(node.inputs, graph.inputs, strict=False)):
            cut: dict[str, Any] = {}
            if k >= states:
                cut = _cut(axes[k - states], turned[k - states])
            name, way = "" if outer is None else outer.name or "", "slice" if cut else "state"
            source = places.get(outer)
            takes.append(PortMapping(name, inner.name or "", way, **cut, inner_id=k, source=source))
    rows = len(step.outputs) - states
    axes, turned = (step.info.get(f"scan_output_{name}", [0] * rows) for name in ("axes", "directions"))
    skip = int(kind == "Loop")  # the condition
    for k, (outer, inner) in enumerate(zip(step.outputs, graph.outputs[skip:], strict=False)):
        joined = kind == "Scan" and k >= states
        way = "result" if kind == "If" else "joined" if joined else "last"
        cut = _cut(axes[k - states], turned[k - states]) if joined else {}
        names = outer.name or "", inner.name or ""
        gives.append(PortMapping(*names, way, **cut, inner_id=first + skip + k, output=k))
    return tuple(takes), tuple(gives)


def _cut(axis: int, backwards: int) -> dict[str, Any]:
    return {"axis": axis, "start": -1, "end": 0, "stride": -1} if backwards else {"axis": axis}


def _frequencies(graph: Graph, states: int) -> dict[int, When]:
    """How often each node of a Scan's body has to run."""
    numbers: dict[Any, int] = {value: k for k, value in enumerate(graph.inputs)}
    inputs: dict[int, list[int]] = {k: [] for k in numbers.values()}
    for k, step in enumerate(graph.steps, len(graph.inputs)):
        inputs[k] = [numbers[v] for v in step.inputs if v in numbers]
        numbers.update(dict.fromkeys(step.outputs, k))
    edges = [(numbers[v], k) for k, v in enumerate(graph.outputs[:states]) if numbers.get(v, k) != k]
    return by_edges(inputs, edges, range(len(graph.inputs)))


def _cell(node: Any, given: Sequence[Any]) -> tuple[Cost, Cost, int | None]:
    """The cost of the products with the input of an LSTM, a GRU or an RNN, and of each step."""
    if len(given) < 3 or not all(isinstance(t, Tensor) for t in given[:3]):
        return Cost(unknown=1), Cost(), None
    x, w, r = given[:3]
    attribute = node.attributes.get("layout")
    first = attribute is not None and int(attribute.value) == 1
    steps, batch = x.shape[1 if first else 0], x.shape[0 if first else 1]
    rows = w.shape[0] * w.shape[1]  # of all directions
    product = product_flops(w.shape[2], rows * batch)
    arithmetic = rows * batch * (TRANSCENDENTAL + 2)
    each = Cost(product_flops(r.shape[2], rows * batch) + arithmetic, tensor_bytes(r))
    return Cost(product * steps, tensor_bytes(x, w)), each, steps


def _cost(node: Any, given: Sequence[Any], gave: Sequence[Any]) -> Cost:
    """The cost of one node: what it reads and writes, and its arithmetic."""
    kind = node.op_type
    tensors = [t for t in given if isinstance(t, Tensor)]
    results = [t for t in gave if isinstance(t, Tensor)]
    elements, flops = sum(t.numel() for t in results), 0
    if kind in ("MatMul", "Gemm") and len(tensors) > 1:
        turned = node.attributes.get("transA")
        flops = product_flops(tensors[0].shape[0 if turned is not None and turned.value else -1], elements)
    elif kind == "Conv" and len(tensors) > 1:
        flops = product_flops(tensors[1].numel() // max(tensors[1].shape[0], 1), elements)
    elif kind in _COSTLY:
        flops = TRANSCENDENTAL * elements
    elif kind in _CHEAP:
        flops = elements
    elif kind.startswith("Reduce") or kind == "CumSum":
        flops = tensors[0].numel() if tensors else 0
    moved = tensor_bytes(*tensors, *results) if flops else 0
    return Cost(flops, moved)
