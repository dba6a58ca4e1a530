"""TensorIterator, Loop and If: layers that run bodies.

A TensorIterator becomes the library's own record, and so does a Loop that nothing but its trip count ends.
They run as steps over rows where they can, and else by the plain loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.errors import IRError, Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.segment import AxisCut, Count, join_along
from stepnet.executors.setting import check_backend
from stepnet.ir.loop import (
    BackEdge,
    Concat,
    InputPort,
    Invariant,
    Last,
    Loop,
    Merged,
    OutputPort,
    Slice,
)  # fmt: skip
from stepnet.iterator.rows import RowLoop, show_declined

from .hoisting import Hoisted, parameter_shape
from .layers.row import Misfit
from .records import Layer, Net, PortMap, PortRow
from .rowwise import adapter

if TYPE_CHECKING:
    from .graph import Graph


@dataclass
class LoopReport:
    """How the loop of one layer ran last: `compiled`, or why not."""

    where: str
    ran: bool = False
    compiled: bool = False
    reason: str | None = None


class GraphBody:
    """A graph as the body of a loop: parameters and results by the names of their layers."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name
        self.parameter_of = _names(graph.net, graph.net.parameters)
        self.result_of = _names(graph.net, graph.net.results)
        self.parameters = tuple(self.parameter_of[i] for i in graph.net.parameters)
        self.results = tuple(self.result_of[i] for i in graph.net.results)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        return self.graph(*values)


def _names(net: Net, ids: Sequence[int]) -> dict[int, str]:
    """A name for each layer, with its id where two have the same name."""
    plain = {i: net.layers[i].name for i in ids}
    times = Counter(plain.values())
    return {i: name if times[name] == 1 else f"{name}#{i}" for i, name in plain.items()}


def tensor_iterator(layer: Layer, body: GraphBody) -> Loop:
    """The record of a TensorIterator or Loop layer; sources and outputs are named by their port ids.

    The number of the iteration is an invariant, as if it did not change. A value that a Loop's body passes
    on as it came is one, too. The condition is left out.
    """
    rows = layer.maps[""]
    net = body.graph.net
    edges = [
        (start, to)
        for start, to in layer.back_edges
        if layer.type == "TensorIterator" or net.layers[start].sources[0] != (to, 0)
    ]
    carried = {to for _, to in edges}
    inputs: list[InputPort] = []
    for row in rows.inputs:
        source, parameter = f"port {row.external}", body.parameter_of[row.internal]
        if row.purpose is not None:
            inputs.append(Invariant(f"iteration {row.internal}", parameter))
        elif row.axis is not None:
            inputs.append(Slice(source, parameter, **_cut(row)))
        else:
            inputs.append((Merged if row.internal in carried else Invariant)(source, parameter))
    outputs: list[OutputPort] = []
    for row in rows.outputs:
        result, output = body.result_of[row.internal], f"port {row.external}"
        if row.external >= 0:
            outputs.append(Last(result, output) if row.axis is None else Concat(result, output, **_cut(row)))
    back = [BackEdge(body.result_of[a], body.parameter_of[b]) for a, b in edges]
    return Loop(body, inputs, outputs, back)


def _cut(row: PortRow) -> dict[str, Any]:
    return {
        "axis": row.axis,
        "start": row.start,
        "end": row.end,
        "stride": row.stride,
        "part_size": row.part_size,
    }


class RowRunner:
    """Runs the loop of a layer as a step over rows, where it has that form.

    Args:
        loop: the record of the loop.
        graph: its body.
        counter: the parameter that gets the number of the iteration, if the body reads one.
    """

    def __init__(self, loop: Loop, graph: Graph, counter: str | None = None) -> None:
        self.loop = loop
        self.graph = graph
        # gradients of a sum of products are no matmuls, and cost more than a matmul saves
        self.constant = self._of(counter, products=True)
        self.trained = self._of(counter, products=False) if self.constant[0].products else self.constant
        holds_loops = any(node.layer.bodies or hasattr(node.run, "reports") for node in graph.nodes)
        self.reason = "its body holds a loop or a branch" if holds_loops else None

    def _of(self, counter: str | None, *, products: bool) -> tuple[Hoisted, RowLoop]:
        body = Hoisted(self.graph, self.loop, counter, products=products)
        return body, RowLoop(body.loop, adapter(body), body.counter)

    def run(self, feeds: Mapping[str, Any], steps: int | None, report: LoopReport) -> dict[str, Any] | None:
        """The outputs by name; None: it is not compiled, and the report says why."""
        backend = check_backend(None)
        report.ran, report.compiled, report.reason = True, False, self.reason
        if report.reason is None and backend == PLAIN.name:
            report.reason = "the backend is 'naive'"
        if report.reason is None and any(v.device.type != "cpu" for v in feeds.values()):
            report.reason = "not on the CPU"
        if report.reason is not None:
            show_declined(self.loop, feeds, steps, Unsupported(report.reason))
            return None
        learns = torch.is_grad_enabled() and any(
            v.requires_grad for v in (*feeds.values(), *self.constant[0].constants())
        )
        body, rows = self.trained if learns else self.constant
        try:
            out = rows.run(body.feeds(feeds), backend, steps=steps)
        except Unsupported as refusal:
            report.reason = refusal.reason
            return None
        report.compiled = True
        return out


class TensorIteratorRunner:
    """Runs a TensorIterator layer."""

    def __init__(self, layer: Layer, graphs: Mapping[str, Any], constants: Mapping[int, Tensor]) -> None:
        self.layer = layer
        self.loop = tensor_iterator(layer, GraphBody(graphs[""], layer.name))
        self.ports = [f"port {p.id}" for p in layer.inputs]
        self.outputs = [f"port {p.id}" for p in layer.outputs]
        self.reports = LoopReport(layer.where)
        self.rows = RowRunner(self.loop, graphs[""])

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        feeds = dict(zip(self.ports, values, strict=True))
        out = self.rows.run(feeds, self._counted(), self.reports)
        if out is None:
            out = naive.run(self.loop, feeds)
        return tuple(out[name] for name in self.outputs)

    def _counted(self) -> int | None:
        """The number of iterations, where no slices say it."""
        return None if self.loop.slices else Count(self.loop).steps


class LoopRunner:
    """Runs a Loop-5 layer: up to a trip count (-1: no limit), while a condition holds."""

    def __init__(self, layer: Layer, graphs: Mapping[str, Any], constants: Mapping[int, Tensor]) -> None:
        self.layer = layer
        self.graph: Graph = graphs[""]
        self.reports = LoopReport(layer.where)
        if len(layer.inputs) < 2:
            raise IRError(
                f"{layer.where}: has {len(layer.inputs)} inputs",
                expected="the trip count and the condition at least",
            )
        rows = layer.maps[""]
        self.index = {p.id: i for i, p in enumerate(layer.inputs)}
        self.carried = {to: start for start, to in layer.back_edges}
        self.condition = next((r.internal for r in rows.outputs if r.purpose == "execution_condition"), None)
        self._check_ends(constants)
        self.rows = self._rows()

    def _rows(self) -> RowRunner:
        """How the loop runs as a step over rows, as long as only the trip count ends it."""
        loop = tensor_iterator(self.layer, GraphBody(self.graph, self.layer.name))
        net, read = self.graph.net, {slot for node in self.graph.nodes for slot in node.inputs}
        read |= set(self.graph.result_slots)
        slots = dict(zip(net.parameters, self.graph.parameter_slots, strict=True))
        counters = [r.internal for r in self.layer.maps[""].inputs if r.purpose and slots[r.internal] in read]
        names = dict(zip(net.parameters, loop.body.parameters, strict=True))
        runner = RowRunner(loop, self.graph, names[counters[0]] if counters else None)
        if len(counters) > 1:
            runner.reason = "two parameters of its body get the number of the iteration"
        return runner

    def _check_ends(self, constants: Mapping[int, Tensor]) -> None:
        """Refuse a loop whose constants say that it never ends."""
        trip, start = (constants.get(source) for source, _ in self.layer.sources[:2])
        if trip is None or trip.numel() != 1 or int(trip.reshape(())) >= 0:
            return
        if start is None or start.numel() != 1 or not bool(start.reshape(())):
            return
        if any(row.axis is not None for row in self.layer.maps[""].inputs):
            return
        if self._goes_on({}):
            raise IRError(
                f"{self.layer.where}: never ends",
                got="trip count -1 and a condition that is always true",
                expected="a trip count >= 0, or a condition that the body computes",
            )

    def _goes_on(self, given: Mapping[int, Any]) -> bool:
        """Whether the condition that the body gives is always true, from the values it is first given."""
        if self.condition is None:
            return True
        source = self.graph.net.layers[self.condition].sources[0]
        if source[0] in given and self.carried.get(source[0], self.condition) == self.condition:
            return bool(given[source[0]].all())  # handed on as it came
        name = dict(self.graph.constant_slots).get(self.graph._slot_of[source])
        return name is not None and bool(getattr(self.graph, name).all())

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        trips, go = _one(values[0], "trip count"), bool(_one(values[1], "condition"))
        cuts, current, longest = self._given(values)
        if longest is not None and longest < trips:
            raise Misfit(
                "an input has fewer slices than the trip count",
                got=longest,
                expected=trips,
                dims=(longest, trips),
            )
        out = self._by_rows(values)
        if out is not None:
            return out
        rows = self.layer.maps[""]
        joined: dict[int, list[Any]] = {r.internal: [] for r in rows.outputs if r.axis is not None}
        results: dict[int, Any] = {}
        step = 0
        while go and (trips < 0 or step < trips) and (longest is None or step < longest):
            given = {i: cut[step] for i, cut in cuts.items()} | current
            results = self._step(step, given)
            for i, kept in joined.items():
                kept.append(results[i])
            if self.condition is not None:
                go = bool(_one(results[self.condition], "execution condition"))
            current.update({to: results[start] for to, start in self.carried.items()})
            step += 1
        return self._outputs(joined, results, current, cuts)

    def _given(self, values: Sequence[Any]) -> tuple[dict[int, AxisCut], dict[int, Any], int | None]:
        """What is cut, what is not, by parameter; and how many slices there are."""
        cuts: dict[int, AxisCut] = {}
        current: dict[int, Any] = {}
        for row in self.layer.maps[""].inputs:
            if row.purpose is not None:
                continue
            value = values[self.index[row.external]]
            if row.axis is None:
                current[row.internal] = value
            else:
                name = self.graph.net.layers[row.internal].name
                cuts[row.internal] = AxisCut(Slice("", name, **_cut(row)), value)
        return cuts, current, min((cut.steps for cut in cuts.values()), default=None)

    def _by_rows(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """The outputs, if the loop is compiled."""
        counted = self._counted(values)
        if isinstance(counted, str):
            self.reports.ran, self.reports.compiled, self.reports.reason = True, False, counted
            show_declined(self.rows.loop, self._feeds(values), 0, Unsupported(counted))
            return None
        out = self.rows.run(self._feeds(values), counted, self.reports)
        return None if out is None else tuple(out[f"port {port.id}"] for port in self.layer.outputs)

    def _feeds(self, values: Sequence[Any]) -> dict[str, Any]:
        """The inputs by the names that the record has for them."""
        feeds = {f"port {port}": values[i] for port, i in self.index.items()}
        for row in self.layer.maps[""].inputs:
            if row.purpose is not None:
                feeds[f"iteration {row.internal}"] = self._number(row.internal, 0)
        used = {port.source for port in self.rows.loop.inputs}
        return {name: value for name, value in feeds.items() if name in used}

    def _counted(self, values: Sequence[Any]) -> int | str:
        """The number of iterations, or why it is not known before they are run."""
        _, current, longest = self._given(values)
        trips, go = _one(values[0], "trip count"), bool(_one(values[1], "condition"))
        if not go:
            return "it has no steps"
        if not self._goes_on(current) or (trips < 0 and longest is None):
            return "its body computes the condition to go on"
        return longest if trips < 0 and longest is not None else trips

    def _step(self, step: int, given: Mapping[int, Any]) -> dict[int, Any]:
        net = self.graph.net
        numbers = {
            row.internal: self._number(row.internal, step)
            for row in self.layer.maps[""].inputs
            if row.purpose == "current_iteration"
        }
        found = self.graph(*({**given, **numbers}[i] for i in net.parameters))
        return dict(zip(net.results, found, strict=True))

    def _number(self, parameter: int, step: int) -> Tensor:
        layer = self.graph.net.layers[parameter]
        kind = layer.outputs[0].type
        dtype = torch.int64 if kind is None else kind.dtype
        return torch.full((1,) * len(parameter_shape(layer)), step, dtype=dtype)

    def _outputs(
        self, joined: Mapping[int, list[Any]], results: Mapping[int, Any], current: Mapping[int, Any],
        cuts: Mapping[int, AxisCut],
    ) -> tuple[Any, ...]:  # fmt: skip
        rows = {row.external: row for row in self.layer.maps[""].outputs if row.external >= 0}
        shapes: dict[int, Any] = {}
        if not results and joined:  # no step ran: one on no data tells the shapes
            with torch.no_grad():
                shapes = self._step(0, {**{i: cut.empty_step() for i, cut in cuts.items()}, **current})
        outputs = []
        for port in self.layer.outputs:
            row = rows[port.id]
            name = self.graph.net.layers[row.internal].name
            if row.axis is not None:
                kept = joined[row.internal] or [shapes[row.internal]]
                outputs.append(
                    join_along(kept, Concat(name, name, **_cut(row)), not joined[row.internal], name)
                )
            elif results:
                outputs.append(results[row.internal])
            else:
                parameter = next((to for to, start in self.carried.items() if start == row.internal), None)
                if parameter is None:
                    raise Misfit(
                        f"output port {port.id} has no value: the loop ran no step",
                        expected="at least one step",
                    )
                outputs.append(current[parameter])
        return tuple(outputs)


class IfRunner:
    """Runs an If-8 layer: one of two bodies."""

    def __init__(self, layer: Layer, graphs: Mapping[str, Any], constants: Mapping[int, Tensor]) -> None:
        self.layer = layer
        self.graphs = graphs
        self.index = {p.id: i for i, p in enumerate(layer.inputs)}
        if not layer.inputs:
            raise IRError(f"{layer.where}: has no condition", expected="a condition as its first input")

    def __call__(self, condition: Any, *rest: Any) -> tuple[Any, ...]:
        prefix = "then_" if bool(_one(condition, "condition")) else "else_"
        return self.branch(prefix, (condition, *rest))

    def branch(self, prefix: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run one of the bodies."""
        graph, rows = self.graphs[prefix], self.layer.maps[prefix]
        found = self._results(graph, rows, values)
        by_port = {row.external: found[row.internal] for row in rows.outputs}
        return tuple(by_port[port.id] for port in self.layer.outputs)

    def _results(self, graph: Graph, rows: PortMap, values: Sequence[Any]) -> dict[int, Any]:
        given = {row.internal: values[self.index[row.external]] for row in rows.inputs}
        return dict(zip(graph.net.results, graph(*(given[i] for i in graph.net.parameters)), strict=True))


def _one(value: Any, what: str) -> Any:
    if value.numel() != 1:
        raise Misfit(f"the {what} must be one value", got=list(value.shape), dims=math.prod(value.shape))
    return value.reshape(()).item()
