"""If, Loop and Scan: graphs inside nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.setting import check_backend
from stepnet.file_model import FileBody, LoopReport, beside_graphs
from stepnet.ir.loop import BackEdge, Concat, Invariant, Last, Loop, Merged, Slice
from stepnet.iterator.rows import RowLoop, show_declined
from stepnet.iterator.tensor_iterator import INSTEAD
from stepnet.repeat import INSTEAD as WHILE_LOOPS
from stepnet.repeat import while_loop

from .info import Info, Misfit, Run, op

if TYPE_CHECKING:
    from .graph import Graph

_MOST_SHAPES = 64  # of inputs, that one Scan remembers


def _one(value: Any, what: str) -> Any:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise Misfit(f"the {what} must be one value", getattr(value, "shape", type(value).__name__))
    return value.reshape(()).item()


@op("If")
def _if(node: Info) -> Run:
    branches = {True: _body(node, "then_branch", 0), False: _body(node, "else_branch", 0)}

    def run(condition: Tensor, *outer: Any) -> Sequence[Any]:
        graph = branches[bool(_one(condition, "condition"))]
        return graph.run((), dict(zip(node.outer, outer, strict=True)))

    return run


def _body(node: Info, name: str, inputs: int | None) -> Graph:
    graph = node.bodies.get(name)
    if graph is None:
        raise Misfit(f"the graph '{name}' is not there")
    if inputs is not None and len(graph.inputs) != inputs:
        raise Misfit(f"the graph '{name}' takes another number of values", len(graph.inputs), inputs)
    return graph


@op("Loop", inputs=(2, 2**16))
def _loop(node: Info) -> Run:
    carried = len(node.node.inputs) - 2
    body = _body(node, "body", carried + 2)
    scanned = node.count - carried
    if scanned < 0 or len(body.outputs) != 1 + carried + scanned:
        raise Misfit("the body gives another number of values", len(body.outputs), 1 + node.count)
    counted = body.outputs[0] is body.inputs[1]  # it hands its condition on: nothing but the count ends it
    if counted and not node.has(0) and node.known.get(1) not in (False, [False]):
        raise Misfit("the loop never ends", "no trip count, and a condition that stays true")

    def written(trips: Any, going: Any, state: Sequence[Any], around: Mapping[Any, Any]) -> Sequence[Any]:
        """The loop as a `while_loop`, for what writes the model."""
        if scanned:
            raise Misfit("a Loop that joins values of its steps is not written in another format")

        def goes_on(step: Tensor, goes: Tensor, *_: Tensor) -> Tensor:
            return goes if trips is None else goes & (step < trips.reshape(()))

        def turn(step: Tensor, goes: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            again, *new = body.run((step, goes, *values), around)
            return step + 1, again.reshape(()), *new

        first = torch.ones((), dtype=torch.bool) if going is None else going.reshape(())
        variables: Any = (torch.zeros((), dtype=torch.int64), first, *state)
        return while_loop(goes_on, turn, variables)[2:]

    def run(*inputs: Any) -> Sequence[Any]:
        (trips, going, *state), outer = inputs[: carried + 2], inputs[carried + 2 :]
        around = dict(zip(node.outer, outer, strict=True))
        if WHILE_LOOPS.get() is not None:
            return written(trips, going, state, around)
        most = None if trips is None else _one(trips, "trip count")
        goes = True if going is None else bool(_one(going, "condition"))
        condition = torch.tensor(True) if going is None else going
        rows: list[list[Any]] = [[] for _ in range(scanned)]
        step = 0
        while goes and (most is None or step < most):
            condition, *results = body.run((torch.tensor(step), condition, *state), around)
            state, joined = results[:carried], results[carried:]
            for table, row in zip(rows, joined, strict=True):
                table.append(row)
            goes = bool(_one(condition, "condition"))
            step += 1
        return (*state, *(torch.stack(table) if table else torch.zeros(0) for table in rows))

    return run


def is_watched() -> bool:
    """Whether somebody watches the nodes, those of bodies among them."""
    from .graph import SEEN  # which holds this table

    return SEEN.get() is not None


class ScanBody:
    """The graph of a Scan as the body of a loop: states, then what is cut, then what it reads from around.

    What is cut keeps an axis of one element, and so do the rows that are joined. With `leads`, some have
    another such axis, which they come without: what follows it is the batch.
    """

    leads: Leads | None = None

    def __init__(
        self, graph: Graph, name: str, states: int, cut: Sequence[int], joined: Sequence[int]
    ) -> None:
        self.graph, self.name, self.states = graph, name, states
        self.cut, self.joined = tuple(cut), tuple(joined)
        self.outer = tuple(graph.captured)
        self.parameters = (
            *(f"s{k}" for k in range(states)),
            *(f"x{k}" for k in range(len(cut))),
            *(f"outer{k}" for k in range(len(self.outer))),
        )
        self.results = (*(f"new{k}" for k in range(states)), *(f"y{k}" for k in range(len(joined))))
        self.function = self._function()

    def _function(self) -> FileBody:
        said = (self.graph.content, self.name, self.states, self.cut, self.joined, self.leads)
        return FileBody(self, self.name, repr(said))

    def led(self, leads: Leads) -> ScanBody:
        """The same body where axes of one element stand before the batch."""
        twin = copy.copy(self)
        twin.leads = leads
        twin.function = twin._function()
        return twin

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        count = self.states + len(self.cut)
        around = dict(zip(self.outer, values[count:], strict=True))
        if self.leads is not None:
            of_states, of_cut, of_rows = self.leads
            states = [v.unsqueeze(0) if lead else v for v, lead in zip(values, of_states, strict=False)]
            x = [v if of_cut else v.squeeze(0) for v in values[self.states : count]]
            results = self.graph.run((*states, *x), around)
            new, rows = results[: self.states], results[self.states :]
            new = [v.squeeze(0) if lead else v for v, lead in zip(new, of_states, strict=True)]
            return (*new, *(v if lead else v.unsqueeze(0) for v, lead in zip(rows, of_rows, strict=True)))
        x = [v.squeeze(axis) for v, axis in zip(values[self.states : count], self.cut, strict=True)]
        results = self.graph.run((*values[: self.states], *x), around)
        new, rows = results[: self.states], results[self.states :]
        return (*new, *(row.unsqueeze(axis) for row, axis in zip(rows, self.joined, strict=True)))


class Leads(NamedTuple):
    """Which states, whether what is cut, and which rows that are joined, have an axis of one element before
    the batch."""

    states: tuple[bool, ...]
    cut: bool
    rows: tuple[bool, ...]


def _as_it_is(body: FileBody, batch: int, axis: int) -> tuple[FileBody, bool]:
    """What `RowLoop` asks for: the body runs on any number of rows."""
    return body, True


class ScanRunner:
    """Runs a Scan: compiled where it treats each row of the batch alike, else by the plain loop."""

    def __init__(self, node: Info) -> None:
        self.node, self.reports = node, LoopReport(node.where)
        self.old = node.opset < 9
        count = node.get("num_scan_inputs", 0)
        self.states = len(node.node.inputs) - self.old - count
        if count < 1 or self.states < 0:
            raise Misfit("num_scan_inputs does not fit the inputs", count, f"1 to {len(node.node.inputs)}")
        graph = _body(node, "body", self.states + count)
        joined = node.count - self.states
        if joined < 0 or len(graph.outputs) != node.count:
            raise Misfit("the body gives another number of values", len(graph.outputs), node.count)
        axes = self._list("scan_input_axes", count)
        self.out_axes = self._list("scan_output_axes", joined)
        turned = self._list("directions" if self.old else "scan_input_directions", count)
        out_turned = self._list("scan_output_directions", joined)
        self.body = ScanBody(graph, node.node.name or "Scan", self.states, axes, self.out_axes)
        names = self.body.parameters
        states, x = names[: self.states], names[self.states : self.states + count]
        new, y = self.body.results[: self.states], self.body.results[self.states :]
        self.loop = Loop(
            self.body,
            inputs=(
                *(Merged(name, name) for name in states),
                *(Slice(n, n, a, part_size=1, **_way(d)) for n, a, d in zip(x, axes, turned, strict=True)),
                *(Invariant(name, name) for name in names[self.states + count :]),
            ),
            outputs=(
                *(Last(name, name) for name in new),
                *(
                    Concat(n, n, a, part_size=1, **_way(d))
                    for n, a, d in zip(y, self.out_axes, out_turned, strict=True)
                ),
            ),
            back_edges=[BackEdge(a, b) for a, b in zip(new, states, strict=True)],
        )
        self.rows = RowLoop(self.loop, partial(_as_it_is, self.body.function))
        self.led: dict[Leads, tuple[ScanBody, RowLoop]] = {}
        self._leads: dict[Any, list[Leads]] = {}  # by the shapes of the inputs
        nested = any(step.info.bodies for step in graph.steps)
        self.reason = "its body holds a loop or a branch" if nested else None

    def _list(self, name: str, count: int) -> list[int]:
        found = self.node.get(name, [0] * count)
        if len(found) != count:
            raise Misfit(f"attribute '{name}' must have one number for each", found, f"{count} of them")
        return found

    @beside_graphs
    def __call__(self, *inputs: Any) -> Sequence[Any]:
        outer = inputs[len(self.node.node.inputs) :]
        own = inputs[: len(self.node.node.inputs)]
        if not self.old:
            return self._run((*own, *outer))
        lengths, *own = own
        outs = []
        batch = own[0].shape[0]
        for b in range(batch):
            one = [value[b] for value in own]
            if lengths is not None:
                size = int(lengths[b])
                one[self.states :] = [value[:size] for value in one[self.states :]]
            outs.append(self._run((*one, *outer)))
        longest = own[-1].shape[1]
        return tuple(
            torch.stack(values if k < self.states else [_filled(value, longest) for value in values])
            for k, values in enumerate(zip(*outs, strict=True))
        )

    def _run(self, values: Sequence[Any]) -> Sequence[Any]:
        feeds = dict(zip(self.body.parameters, values, strict=True))
        instead = INSTEAD.get()
        if instead is None:
            out = self._by_name(feeds)
        else:
            out = instead(self.loop, feeds, lambda: self._by_name(feeds))
        return tuple(out[name] for name in self.body.results)

    def _by_name(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        out = None if is_watched() else self._compiled(feeds)
        return naive.run(self.loop, feeds) if out is None else out

    def _compiled(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        backend, why_not = check_backend(None), self.reason
        if why_not is None and backend == PLAIN.name:
            why_not = "the backend is 'naive'"
        if why_not is not None:
            show_declined(self.loop, feeds, None, Unsupported(why_not))

        def run() -> dict[str, Any]:
            out = self._without_lead(feeds, backend)
            return self.rows.run(feeds, backend) if out is None else out

        return self.reports.attempt(why_not, run)

    def _without_lead(self, feeds: Mapping[str, Any], backend: str) -> dict[str, Any] | None:
        """The outputs, where an axis of one element stands before the batch."""
        names = self.body.parameters
        states = {name: feeds[name] for name in names[: self.states]}
        x = {name: feeds[name] for name in names[self.states : self.states + len(self.body.cut)]}
        if not all(isinstance(value, Tensor) for value in feeds.values()) or not states:
            return None
        if any((*self.body.cut, *self.out_axes)):
            return None
        for leads in self._possible(feeds, states, x):
            body, loop = self._led(leads)
            fewer = {
                n: v.squeeze(0) if lead else v
                for (n, v), lead in zip(states.items(), leads.states, strict=True)
            }
            fewer |= {name: value.squeeze(1) if leads.cut else value for name, value in x.items()}
            try:
                out = loop.run({**feeds, **fewer}, backend)
            except Unsupported:
                continue
            axes = [
                *(0 if lead else None for lead in leads.states),
                *(1 if lead else None for lead in leads.rows),
            ]
            return {
                name: out[name] if axis is None else out[name].unsqueeze(axis)
                for name, axis in zip(body.results, axes, strict=True)
            }
        return None

    def _led(self, leads: Leads) -> tuple[ScanBody, RowLoop]:
        if leads not in self.led:
            body = self.body.led(leads)
            self.led[leads] = body, RowLoop(self.loop.around(body), partial(_as_it_is, body.function))
        return self.led[leads]

    def _possible(
        self, feeds: Mapping[str, Any], states: Mapping[str, Tensor], x: Mapping[str, Tensor]
    ) -> list[Leads]:
        """Where such axes may stand, best first: one step says of the rows that are joined."""
        key = tuple(value.shape for value in feeds.values())
        if key in self._leads:
            return self._leads[key]
        found: list[Leads] = []
        if next(iter(x.values())).shape[0]:
            first = [feeds[n][:1] if n in x else feeds[n] for n in self.body.parameters]
            with torch.no_grad():
                rows = [row.shape[1:] for row in self.body(*first)[self.states :]]
            shapes = [v.shape for v in states.values()], [v.shape[1:] for v in x.values()], rows
            found = [leads for leads in _leads(*shapes) if leads.cut or any((*leads.states, *leads.rows))]
        while len(self._leads) >= _MOST_SHAPES:
            del self._leads[next(iter(self._leads))]
        self._leads[key] = found
        return found


def _leads(
    states: Sequence[Sequence[int]], cut: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]
) -> Iterator[Leads]:
    """Where axes of one element may stand before the batch, by the shapes of a step."""
    for of_cut in (True, False):
        if any(len(shape) <= of_cut or (of_cut and shape[0] != 1) for shape in cut):
            continue
        batch = cut[0][of_cut]
        least = 3 if batch == 1 else 2  # [1, features] is a batch of one, or one row behind such an axis
        for rank in range(least, 1, -1):
            of_states = [len(s) >= rank and s[0] == 1 and s[1] == batch for s in states]
            if all(lead or (len(s) and s[0] == batch) for lead, s in zip(of_states, states, strict=True)):
                of_rows = [len(s) >= least and s[0] == 1 and s[1] == batch for s in rows]
                yield Leads(tuple(of_states), of_cut, tuple(of_rows))


def _way(direction: int) -> dict[str, Any]:
    return {"start": -1, "end": 0, "stride": -1} if direction else {}


def _filled(value: Tensor, size: int) -> Tensor:
    return torch.cat([value, value.new_zeros(size - value.shape[0], *value.shape[1:])])


@op("Scan", inputs=(1, 2**16))
def _scan(node: Info) -> Run:
    return ScanRunner(node)


@op("SequenceMap", inputs=(1, 2**16))
def _map(node: Info) -> Run:
    count = len(node.node.inputs)
    body = _body(node, "body", count)

    def run(*inputs: Any) -> Sequence[Any]:
        (first, *rest), around = inputs[:count], dict(zip(node.outer, inputs[count:], strict=True))
        outs: list[list[Any]] = [[] for _ in range(node.count)]
        for k in range(len(first)):
            own = [value[k] if isinstance(value, list) else value for value in (first, *rest)]
            for out, value in zip(outs, body.run(own, around), strict=True):
                out.append(value)
        return tuple(outs)

    return run
