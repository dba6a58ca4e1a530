"""TensorIterator, Loop and If: layers that run bodies.

A TensorIterator becomes the library's own record, and so does a Loop that nothing but its trip count ends.
They run as sweeps over rows where they can, and else by the plain loop.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepnet import iterator
from stepnet.data.dtypes import dtype_name
from stepnet.errors import IRError, Unsupported
from stepnet.executors import naive
from stepnet.executors.segment import Count, Cut
from stepnet.export.calls import unanswered
from stepnet.export.open_sizes import plain, plain_but_open, settled
from stepnet.file_model import Broken, LoopReport, Misfitting, check_turns, not_in_recordings, shorten
from stepnet.file_model.branching import Branching, Reading, Results
from stepnet.file_model.endless import Endless
from stepnet.file_model.scan_loop import compiled
from stepnet.file_model.scan_steps import ScanStep
from stepnet.ir.loop import (
    BackEdge,
    Concat,
    InputPort,
    Invariant,
    Iteration,
    Last,
    Loop,
    Merged,
    OutputPort,
    Slice,
)  # fmt: skip
from stepnet.iterator.exported_loops import for_program, in_program
from stepnet.iterator.rows import RowLoop, show_declined
from stepnet.watchers import ITERATORS, watching

from .body_ended_loops import OwnEndRunner, WholeStep
from .graph import Graph, Node
from .hoisting import Hoisted
from .layers.row import Misfit
from .reader import declared_shape
from .records import Layer, Net, PortRow
from .rowwise import Adapter


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


GOING, LIMIT = "it goes on", "the trip count"  # no names of ports


class LoopBody(GraphBody):
    """The body of a Loop, which also says whether the loop goes on.

    Args:
        graph: the body.
        name: the name of its layer.
        condition: the Result that says it.
    """

    def __init__(self, graph: Graph, name: str, condition: int) -> None:
        super().__init__(graph, name)
        self.parameters, self.results = (GOING, *self.parameters), (GOING, *self.results)
        self.condition = graph.net.results.index(condition)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        _, *rest = values
        results = self.graph(*rest)
        return bool(_one(results[self.condition], "execution condition")), *results


def counted_loop(layer: Layer, body: GraphBody) -> Loop:
    """The record of a TensorIterator, or of a Loop that nothing but its trip count ends; sources and outputs
    are named by their port ids. What a Loop's body passes on as it came is an invariant."""
    net = body.graph.net
    edges = [
        (start, to)
        for start, to in layer.back_edges
        if layer.type == "TensorIterator" or net.layers[start].sources[0] != (to, 0)
    ]
    return Loop(body, *_ports(layer, body, edges)).settled()


def whole_loop(layer: Layer, body: LoopBody) -> Loop:
    """The record of a Loop with its condition, fed as `GOING`, and its trip count, as `LIMIT`."""
    inputs, outputs, edges = _ports(layer, body, layer.back_edges)
    first = Merged(GOING, GOING), BackEdge(GOING, GOING)
    return Loop(
        body, (first[0], *inputs), outputs, (first[1], *edges), condition=GOING, limit=LIMIT
    ).settled()


def _ports(
    layer: Layer, body: GraphBody, edges: Sequence[tuple[int, int]]
) -> tuple[list[InputPort], list[OutputPort], list[BackEdge]]:
    rows = layer.maps[""]
    carried = {to for _, to in edges}
    inputs: list[InputPort] = []
    for row in rows.inputs:
        source, parameter = f"port {row.external}", body.parameter_of[row.internal]
        if row.purpose is not None:
            number = body.graph.net.layers[row.internal]
            kind = number.outputs[0].type
            dtype = "int64" if kind is None else dtype_name(kind.dtype)
            inputs.append(Iteration(parameter, dtype, len(declared_shape(number) or ())))
        elif row.axis is not None:
            inputs.append(Slice(source, parameter, **_cut(row)))
        else:
            inputs.append((Merged if row.internal in carried else Invariant)(source, parameter))
    outputs: list[OutputPort] = []
    for row in rows.outputs:
        result, output = body.result_of[row.internal], f"port {row.external}"
        if row.external >= 0:
            outputs.append(Last(result, output) if row.axis is None else Concat(result, output, **_cut(row)))
    return inputs, outputs, [BackEdge(body.result_of[a], body.parameter_of[b]) for a, b in edges]


def _cut(row: PortRow) -> dict[str, Any]:
    return {
        "axis": row.axis,
        "start": row.start,
        "end": row.end,
        "stride": row.stride,
        "part_size": row.part_size,
    }


class _Positional:
    """A body whose parameters are p0, p1, ..., and then the number of the iteration, if it gets one."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.name = loop, loop.body.name
        self.counts = [port for port in loop.inputs if isinstance(port, Iteration)]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        fed = [name for name in loop.body.parameters if name not in {c.parameter for c in self.counts}]
        self.places = {name: f"p{i}" for i, name in enumerate(fed)}
        names = [*self.places.values(), *(["number"] if self.counts else [])]
        self.__name__ = loop.body.name
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self, *values: Tensor, **named: Tensor) -> tuple[Tensor, ...]:
        given = (*values, *named.values())
        known = dict(zip(self.places, given, strict=False))
        for count in self.counts:
            known[count.parameter] = (
                given[-1].to(getattr(torch, count.dtype or "int64")).reshape([1] * count.rank)
            )
        out = self.loop.body(*(known[name] for name in self.loop.body.parameters))
        return (*out, given[-1] + 1) if self.counts else tuple(out)


def as_iterator(loop: Loop, feeds: Mapping[str, Any], outputs: Sequence[str]) -> tuple[Any, ...]:
    """Run a loop that its slices end as a TensorIterator, which writers of other formats know."""
    body = _Positional(loop)
    results = {name: i for i, name in enumerate(loop.body.results)}
    ports: list[Any] = []
    for port in loop.inputs:
        if isinstance(port, Iteration):
            continue
        ports.append(iterator.InputPort(f"i{len(ports)}", body.places[port.parameter], **_range(port)))
    given = [feeds[port.source] for port in loop.inputs if not isinstance(port, Iteration)]
    edges = [iterator.BackEdge(results[e.result], body.places[e.parameter]) for e in loop.back_edges]
    if body.counts:
        ports.append(iterator.InputPort("number", "number"))
        edges.append(iterator.BackEdge(len(results), "number"))
        given.append(torch.zeros((), dtype=torch.int64))
    for port in loop.outputs:
        ports.append(iterator.OutputPort(port.output, results[port.result], **_range(port)))
    run = iterator.TensorIterator(body, ports, edges, backend=naive.PLAIN.name)  # no plan takes the layer
    out = run(*given)
    return tuple(out[name] for name in outputs)


def _range(port: Any) -> dict[str, Any]:
    """How a port is cut, as ports of a TensorIterator say it."""
    names = ("axis", "start", "end", "stride", "part_size") if isinstance(port, (Slice, Concat)) else ()
    return {name: getattr(port, name) for name in names}


class RowRunner:
    """Runs the loop of a layer as a sweep over rows, where it has that form.

    Args:
        loop: the record of the loop.
        graph: its body.
    """

    def __init__(self, loop: Loop, graph: Graph) -> None:
        self.loop = loop
        self.graph = graph
        self.body = Hoisted(graph, loop)
        self.sweep = RowLoop(self.body.loop, Adapter(self.body))
        holds_loops = any(node.layer.bodies or hasattr(node.run, "reports") for node in graph.nodes)
        self.reason = "its body holds a loop or a branch" if holds_loops else None

    def run(self, feeds: Mapping[str, Any], steps: int | None, report: LoopReport) -> dict[str, Any] | None:
        """The outputs by name; None: it is not compiled, and the report says why."""

        def by_rows(backend: str) -> dict[str, Any]:
            fed = self.body.feeds(feeds)
            if for_program():
                return in_program(self.sweep, fed, steps, self.body.constants(), self.body.reading)
            return self.sweep.run(fed, backend, steps=steps, reads=self.body.constants())

        return compiled(self.loop, feeds, steps, report, self.reason, by_rows)


class TensorIteratorRunner:
    """Runs a TensorIterator layer."""

    def __init__(self, layer: Layer, graphs: Mapping[str, Any], constants: Mapping[int, Tensor]) -> None:
        self.layer = layer
        self.loop = counted_loop(layer, GraphBody(graphs[""], layer.name))
        self.ports = [f"port {p.id}" for p in layer.inputs]
        self.outputs = [f"port {p.id}" for p in layer.outputs]
        self.reports = LoopReport(layer.where)
        self.rows = RowRunner(self.loop, graphs[""])

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        not_in_recordings(settled=(self.reports,))
        feeds = dict(zip(self.ports, values, strict=True))
        if ITERATORS.get() is not None:  # what writes the model takes a TensorIterator
            return as_iterator(self.loop, feeds, self.outputs)
        counted = self._counted()
        out = self.rows.run(feeds, counted, self.reports)
        if out is None:
            if 0 in (counted, *(Cut.of(port, feeds[port.source]).steps for port in self.loop.slices)):
                _check_no_step(self.loop)
            out = naive.run(self.loop, feeds)
        return tuple(out[name] for name in self.outputs)

    @property
    def constants(self) -> dict[Any, str]:
        """Those of its body, by what they are called among the values around it."""
        return {(self.layer.id, slot): name for slot, name in self.rows.graph.constant_slots}

    def as_scan(self, node: Node) -> ScanStep | None:
        """It as a loop whose steps the layers around may become part of: all is cut and joined alike."""
        loop, graph, hoisted = self.loop, self.rows.graph, self.rows.body
        joined = [port for port in loop.outputs if isinstance(port, Concat)]
        finals = {port.result: port.output for port in loop.outputs if isinstance(port, Last)}
        cut = [*loop.slices, *joined]
        ways = {(port.axis, port.start, port.end, port.stride, port.part_size or 1) for port in cut}
        if len(ways) != 1 or self.rows.reason is not None:
            return None
        ((axis, *way),) = ways
        if axis < 0 or way not in ([0, -1, 1, 1], [-1, 0, -1, 1]):  # all steps, one by one
            return None
        others = hoisted.before or hoisted.picks or not loop.slices
        counts = any(isinstance(port, Iteration) for port in loop.inputs)
        carried = [*loop.carried.values()]
        one_each = len(finals) + len(joined) == len(loop.outputs) and len({*carried}) == len(carried)
        if others or counts or not one_each or not finals.keys() <= {*carried}:
            return None
        fed, made = (
            dict(zip(self.ports, node.inputs, strict=True)),
            dict(zip(self.outputs, node.outputs, strict=True)),
        )
        first = {port.parameter: fed[port.source] for port in loop.merged}
        invariants = {port.parameter: fed[port.source] for port in loop.invariants}

        def one(
            states: Sequence[Any], x: Sequence[Any], outer: Mapping[Any, Any]
        ) -> tuple[Sequence[Any], Sequence[Any]]:
            given = dict(zip(loop.carried, states, strict=True))
            given |= {port.parameter: value for port, value in zip(loop.slices, x, strict=True)}
            given |= {name: outer[slot] for name, slot in invariants.items()}
            around = {slot: outer[self.layer.id, slot] for slot in graph.captured}
            results = graph.plainly([given[name] for name in loop.body.parameters], around, None)
            named = dict(zip(loop.body.results, results, strict=True))
            return [named[name] for name in carried], [named[port.result] for port in joined]

        return ScanStep(
            node, self.layer.name, [first[name] for name in loop.carried],
            [fed[port.source] for port in loop.slices], [*invariants.values(), *self.constants],
            [made[finals[r]] if r in finals else (self.layer.id, r) for r in carried],
            [made[port.output] for port in joined], axis, way[0] < 0, one, [], self.reports,
        )  # fmt: skip

    def _counted(self) -> int | None:
        """The number of iterations, where no slices say it."""
        return None if self.loop.slices else Count(self.loop).steps


_COUNTS = "a number >= 0, or -1 where only the condition ends the loop"


class LoopRunner:
    """Runs a Loop-5 layer: up to a trip count (-1: no limit), while a condition holds."""

    takes_sizes = True

    def __init__(self, layer: Layer, graphs: Mapping[str, Any], constants: Mapping[int, Tensor]) -> None:
        self.layer = layer
        self.graph: Graph = graphs[""]
        self.reports = LoopReport(layer.where)
        if len(layer.inputs) < 2:
            raise Broken(
                f"{layer.where}: has too few inputs",
                got=f"{len(layer.inputs)} inputs",
                expected="the trip count and the condition at least",
            )
        rows = layer.maps[""]
        self.index = {p.id: i for i, p in enumerate(layer.inputs)}
        self.carried = {to: start for start, to in layer.back_edges}
        self.condition = next(r.internal for r in rows.outputs if r.purpose == "execution_condition")
        trips, start = (constants.get(source) for source, _ in layer.sources[:2])
        self.trips = None if trips is None or trips.numel() != 1 else int(trips.reshape(()))
        begins = None if start is None or start.numel() != 1 else bool(start.reshape(()))
        self.has_no_step = self.trips == 0 or begins is False
        self.goes_on_always = bool(begins) and self._goes_on({})
        net, read = self.graph.net, {slot for node in self.graph.nodes for slot in node.inputs}
        read |= set(self.graph.result_slots)
        slots = dict(zip(net.parameters, self.graph.parameter_slots, strict=True))
        self.endless = self._endless(slots)
        self._check_ends()
        body = LoopBody(self.graph, layer.name, self.condition)
        self.loop = whole_loop(layer, body)
        inputs, outputs, edges = _ports(layer, body, layer.back_edges)
        whole = Loop(GraphBody(self.graph, layer.name), inputs, outputs, edges).settled()
        self.blocks = OwnEndRunner(self.reports, WholeStep(self.graph, whole, body.condition))
        self.rows = RowRunner(counted_loop(layer, GraphBody(self.graph, layer.name)), self.graph)
        if sum(row.purpose is not None and slots[row.internal] in read for row in rows.inputs) > 1:
            self.rows.reason = "two parameters of its body get the number of the iteration"

    def _endless(self, slots: Mapping[int, int]) -> Endless:
        """Whether it ends, where it has neither a trip count nor slices; `slots`: those of Parameters."""
        made = dict(zip(self.graph.net.results, self.graph.result_slots, strict=True))
        changing = [
            slots[row.internal]
            for row in self.layer.maps[""].inputs
            if row.purpose is not None or row.axis is not None
        ]
        carried = {slots[to]: made[start] for to, start in self.carried.items()}
        name, condition = self.graph.net.layers[self.condition].name, made[self.condition]
        return Endless(self.layer.where, name, self.graph.nodes, changing, carried, condition)

    def _check_ends(self) -> None:
        """Refuse a loop whose constants say that it never ends, or that are no counts."""
        if self.trips is not None and self.trips < -1:
            raise Misfitting(
                f"{self.layer.where}: the trip count is negative", got=self.trips, expected=_COUNTS
            )
        cuts = any(row.axis is not None for row in self.layer.maps[""].inputs)
        if self.trips is not None and self.trips < 0 and self.goes_on_always and not cuts:
            raise self.endless.error()

    def _goes_on(self, given: Mapping[int, Any]) -> bool:
        """Whether the condition that the body gives is always true, from the values it is first given."""
        source = self.graph.net.layers[self.condition].sources[0]
        if source[0] in given and self.carried.get(source[0], self.condition) == self.condition:
            return bool(given[source[0]].all())  # handed on as it came
        name = dict(self.graph.constant_slots).get(self.graph.slot_of[source])
        return name is not None and bool(getattr(self.graph, name).all())

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        not_in_recordings()
        count, *rest = values
        values = (plain(count), *map(plain, rest))
        if ITERATORS.get() is not None:
            return self._written(values, count)
        trips, go = _one(values[0], "trip count"), bool(_one(values[1], "condition"))
        feeds = {f"port {port}": values[i] for port, i in self.index.items()}
        if trips < -1:
            raise Misfit("the trip count is negative", got=trips, expected=_COUNTS)
        if self.goes_on_always:
            check_turns(trips)
        slices = [Cut.of(port, feeds[port.source]).steps for port in self.loop.slices]
        longest = min(slices, default=None)
        if longest is not None and longest < trips:
            raise Misfit(
                "an input has fewer slices than the trip count",
                got=longest,
                expected=trips,
                dims=(longest, trips),
            )
        counted, out, note = self._counted(values, longest), None, None
        endless = trips < 0 and longest is None
        most, seen = self.endless.steps if endless else None, self.endless.watch()
        if go and isinstance(counted, str) and watching() is None and most is None:
            out, note = self.blocks.run(feeds, trips, seen)
        if note is None:
            out = self._by_rows(feeds, counted)
        if out is None:
            ended = not go or trips == 0 or longest == 0
            if ended:
                _check_no_step(self.loop)
            steps, carried = 0, self.blocks.step.loop.carried.values()

            def count(step: int, made: Mapping[str, Any], *_: Any) -> None:
                nonlocal steps
                steps = step + 1
                if steps == most and made[GOING]:
                    raise self.endless.error()
                if endless and made[GOING]:
                    seen(steps, [made[result] for result in carried])

            try:
                out = naive.run(self.loop, feeds | {GOING: go, LIMIT: trips}, count)
            except IRError:
                out = self._no_rows(feeds) if ended else None
                if out is None:
                    raise
            if note is not None:
                note(steps)
        return tuple(out[f"port {port.id}"] for port in self.layer.outputs)

    def _no_rows(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a loop of no steps gives whose body does not run on what is empty: no rows, of the sizes that
        the file declares, and the states as they began; None where it does not declare them."""
        rows, layers = self.layer.maps[""], self.graph.net.layers
        began = {
            row.internal: feeds[f"port {row.external}"] for row in rows.inputs if row.external in self.index
        }
        first = {result: began.get(parameter) for parameter, result in self.carried.items()}
        out = {}
        for row in rows.outputs:
            result, value = layers[row.internal], first.get(row.internal)
            if row.axis is not None:
                source, index = result.sources[0]
                kind, shape = layers[source].outputs[index].type, result.inputs[0].shape
                if kind is None or shape is None or not -len(shape) <= row.axis < len(shape):
                    return None
                sizes = [max(n, 0) for n in shape]
                sizes[row.axis] = 0
                value = torch.zeros(sizes, dtype=kind.dtype)
            out[f"port {row.external}"] = value
        return out

    def _written(self, values: Sequence[Any], count: Any) -> tuple[Any, ...]:
        """The loop as a TensorIterator, where nothing but its slices ends it, and else as a `while_loop`; as
        what it begins with, where it has no step, which OpenVINO reads as another loop or not at all.

        `count`: the trip count, as sizes if it follows from such.

        Raises:
            Misfit: it has no such form.
        """
        feeds = {f"port {port}": values[i] for port, i in self.index.items()}
        outputs = [f"port {port.id}" for port in self.layer.outputs]
        if self.has_no_step:
            _check_no_step(self.loop)
            out = naive.run(*_without_steps(self.blocks.step.loop, feeds))
            return tuple(out[name] for name in outputs)
        if self.goes_on_always and self.loop.slices and self._all_slices(feeds):
            return as_iterator(self.rows.loop, feeds, outputs)
        out = self.blocks.written(feeds, count, values[1], self.goes_on_always, self.endless)
        return tuple(out[name] for name in outputs)

    def _all_slices(self, feeds: Mapping[str, Any]) -> bool:
        """Whether the loop has as many steps as its inputs have slices; where sizes are left open, as for the
        example, by which the form of the loop was chosen."""
        if self.trips is None or self.trips < 0:
            return self.trips is not None
        sizes = [feeds[port.source].shape[port.axis] // (port.part_size or 1) for port in self.loop.slices]
        if any(getattr(getattr(size, "node", None), "hint", size) != self.trips for size in sizes):
            return False
        return all(isinstance(size, int) or settled(size == self.trips) for size in sizes)

    def _by_rows(self, feeds: Mapping[str, Any], counted: int | str) -> dict[str, Any] | None:
        """The outputs, if the loop is compiled."""
        loop = self.rows.loop
        own = {source: feeds[source] for sources in loop.sources for source in sources}
        if isinstance(counted, str):
            self.reports.declined(counted)
            show_declined(loop, own, 0, Unsupported(counted))
            return None
        return self.rows.run(own, counted, self.reports)

    def _counted(self, values: Sequence[Any], longest: int | None) -> int | str:
        """The number of iterations, or why it is not known before they are run."""
        trips, go = _one(values[0], "trip count"), bool(_one(values[1], "condition"))
        first = {
            row.internal: values[self.index[row.external]]
            for row in self.layer.maps[""].inputs
            if row.axis is None and row.purpose is None
        }
        if not go:
            return "it has no steps"
        if not self._goes_on(first) or (trips < 0 and longest is None):
            return "its body computes the condition to go on"
        return longest if trips < 0 and longest is not None else trips


def _without_steps(loop: Loop, feeds: Mapping[str, Any]) -> tuple[Loop, Mapping[str, Any]]:
    """A loop that runs no step, and what it is fed: no slice, for how many there are may be open."""
    inputs, fed = [], {**feeds, LIMIT: 0}
    for port in loop.inputs:
        if isinstance(port, Slice):
            none = feeds[port.source].narrow(port.axis, 0, 0)
            name = f"{port.source}, cut {len(inputs)}"
            port = replace(port, source=name, start=0, end=-1, stride=port.part_size or 1)
            fed[name] = none
        inputs.append(port)
    return replace(loop, inputs=tuple(inputs), limit=LIMIT), fed


def _check_no_step(loop: Loop) -> None:
    """Refuse outputs of a loop that runs no step which are the last value of what only a step would give."""
    for port in loop.outputs:
        if isinstance(port, Last) and port.result not in loop.carried.values():
            raise Misfit(
                f"output {port.output} has no value: the loop runs no iteration",
                got=f"no back edge from the Result '{shorten(port.result)}'",
                expected="at least one iteration, or a back edge, whose first value is given",
            )


_BRANCHES = ("then_", "else_")


class IfRunner:
    """Runs an If-8 layer: one of two bodies."""

    takes_sizes = True

    def __init__(self, layer: Layer, graphs: Mapping[str, Any], constants: Mapping[int, Tensor]) -> None:
        self.layer = layer
        self.graphs = graphs
        self.index = {p.id: i for i, p in enumerate(layer.inputs)}
        self.branching = Branching(unanswered)
        if not layer.inputs:
            raise Broken(
                f"{layer.where}: has no condition", got="no inputs", expected="a condition as its first input"
            )

    def __call__(self, condition: Any, *rest: Any) -> Sequence[Any]:
        not_in_recordings()
        condition = plain(condition)
        which, weights = (
            _scalar(condition, "condition"),
            [t for g in self.graphs.values() for t in g.tensors()],
        )

        def results_of(given: Sequence[Any]) -> Results:
            return Reading(self, [condition, *given, *weights], IfRunner._branch)

        results = results_of([*map(plain_but_open, rest)])
        return self.branching.run(which, results, lambda: results_of([*map(plain, rest)]))

    def _branch(self, read: Sequence[Any], way: bool) -> tuple[Any, ...]:
        """Run one of the bodies, on what is read first."""
        prefix = _BRANCHES[not way]
        graph, rows = self.graphs[prefix], self.layer.maps[prefix]
        given = {row.internal: read[self.index[row.external]] for row in rows.inputs}
        results = graph(*(given[i] for i in graph.net.parameters))
        found = dict(zip(graph.net.results, results, strict=True))
        by_port = {row.external: found[row.internal] for row in rows.outputs}
        return tuple(by_port[port.id] for port in self.layer.outputs)


def _one(value: Any, what: str) -> Any:
    return _scalar(value, what).item()


def _scalar(value: Any, what: str) -> Tensor:
    if value.numel() != 1:
        raise Misfit(f"the {what} must be one value", got=list(value.shape), dims=math.prod(value.shape))
    return value.reshape(())


RUNNERS = {"TensorIterator": TensorIteratorRunner, "Loop": LoopRunner, "If": IfRunner}
