"""If, Loop and Scan: graphs inside nodes."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.setting import check_backend
from stepnet.file_model import LoopReport
from stepnet.ir.loop import BackEdge, Concat, Invariant, Last, Loop, Merged, Slice
from stepnet.iterator.rows import RowLoop, show_declined
from stepnet.iterator.tensor_iterator import INSTEAD
from stepnet.repeat import INSTEAD as WHILE_LOOPS
from stepnet.repeat import while_loop

from .info import Info, Misfit, Run, op

if TYPE_CHECKING:
    from .graph import Graph

_SERIALS = itertools.count()


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

    What is cut keeps an axis of one element, and so do the rows that are joined. With `lead`, that is the
    first axis of all states, too, which come without it here: what follows it is the batch.
    """

    lead = False

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
        self.function = ScanRows(self)

    def led(self) -> ScanBody:
        """The same body where an axis of one element stands before the batch of the states."""
        twin = copy.copy(self)
        twin.lead, twin.function = True, ScanRows(twin)
        return twin

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        count = self.states + len(self.cut)
        around = dict(zip(self.outer, values[count:], strict=True))
        if self.lead:
            states = [value.unsqueeze(0) for value in values[: self.states]]
            results = self.graph.run((*states, *values[self.states : count]), around)
            new, rows = results[: self.states], results[self.states :]
            return (*(value.squeeze(0) for value in new), *rows)
        x = [v.squeeze(axis) for v, axis in zip(values[self.states : count], self.cut, strict=True)]
        results = self.graph.run((*values[: self.states], *x), around)
        new, rows = results[: self.states], results[self.states :]
        return (*new, *(row.unsqueeze(axis) for row, axis in zip(rows, self.joined, strict=True)))


class ScanRows:
    """A body on any number of rows. It hides behind a weak reference: what a call reaches is short."""

    def __init__(self, body: ScanBody) -> None:
        self.serial = next(_SERIALS)
        self.__name__ = body.name
        self._body = weakref.ref(body)

    def __call__(self, *values: Tensor) -> tuple[Any, ...]:
        body = self._body()
        assert body is not None
        return body(*values)


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
        rows, self.led = self.body.function, self.body.led()
        led_rows = self.led.function
        self.rows = RowLoop(self.loop, lambda batch, axis: (rows, True))
        self.led_rows = RowLoop(self.loop.around(self.led), lambda batch, axis: (led_rows, True))
        nested = any(step.info.bodies for step in graph.steps)
        self.reason = "its body holds a loop or a branch" if nested else None

    def _list(self, name: str, count: int) -> list[int]:
        found = self.node.get(name, [0] * count)
        if len(found) != count:
            raise Misfit(f"attribute '{name}' must have one number for each", found, f"{count} of them")
        return found

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
        """The outputs, where a first axis of one element stands before the batch in all that changes."""
        names = self.body.parameters
        states = {name: feeds[name] for name in names[: self.states]}
        x = {name: feeds[name] for name in names[self.states : self.states + len(self.body.cut)]}
        tensors = all(isinstance(value, Tensor) for value in feeds.values())
        if not tensors or any((*self.body.cut, *self.out_axes)) or not states:
            return None
        if any(v.dim() < 2 or v.shape[0] != 1 for v in states.values()):
            return None
        if any(v.dim() < 3 or v.shape[1] != 1 for v in x.values()):
            return None
        fewer = {name: value.squeeze(0) for name, value in states.items()}
        fewer |= {name: value.squeeze(1) for name, value in x.items()}
        try:
            out = self.led_rows.run({**feeds, **fewer}, backend)
        except Unsupported:
            return None
        led = self.led.results
        return {name: out[name].unsqueeze(0 if k < self.states else 1) for k, name in enumerate(led)}


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
