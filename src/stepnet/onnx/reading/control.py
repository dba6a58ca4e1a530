"""Loop and Scan: graphs inside nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from stepnet.data.dtypes import typed_shape
from stepnet.errors import IRError
from stepnet.executors import naive
from stepnet.export.open_sizes import open_count, plain
from stepnet.file_model import (
    LoopReport,
    Opaque,
    check_turns,
    decided,
    has_one,
    not_in_recordings,
    unlike,
)
from stepnet.file_model.body_ended_loops import OwnEndLoop, written_loop
from stepnet.file_model.endless import Endless
from stepnet.file_model.scan_loop import ScanLoop
from stepnet.file_model.scan_steps import ScanStep
from stepnet.ir.loop import BackEdge, Concat, Invariant, Iteration, Last, Loop, Merged
from stepnet.watchers import ITERATORS, WHILE_LOOPS

from .batched_scan import BatchedScan
from .branches import branches_alone, reading
from .counted_loops import CountedLoop
from .declared import check_carried, check_fed
from .graph import SEEN, Graph, Step
from .info import Info, Misfit, Run, body_of, dtype_of, given, one_value, op
from .sequences import check_sequence, listed
from .tables import origin


def _one(value: Any, what: str, dtype: torch.dtype = torch.bool) -> Any:
    return decided(one_value(value, what, dtype))


class LoopRunner:
    """Runs a Loop: compiled where its body treats each row alike or ends it by itself, else step by step."""

    def __init__(self, node: Info) -> None:
        self.node = node
        self.carried = carried = len(node.node.inputs) - 2
        self.body = body = body_of(node, "body", carried + 2)
        self.scanned = scanned = node.count - carried
        node.read.add(0)
        if scanned < 0 or len(body.outputs) != 1 + carried + scanned:
            raise Misfit("the body gives another number of values", len(body.outputs), 1 + node.count)
        check_fed(body.inputs, (ir.DataType.INT64, ir.DataType.BOOL, *node.node.inputs[2:]))
        check_fed(body.outputs, (ir.DataType.BOOL,))
        check_carried(body.inputs[2:], body.outputs[1 : 1 + carried])
        goes_on = origin(body.outputs[0])
        always = None if goes_on.is_graph_input() else ir.convenience.get_const_tensor(goes_on)
        # it hands its condition on, or this is always true: nothing but the count ends it
        counted = goes_on is body.inputs[1] or (always is not None and bool(always.numpy().all()))
        self.by_rows = CountedLoop(node, body, carried, scanned) if counted else None
        self.by_blocks = None if counted else _by_blocks(node, body, scanned)
        fed, made = body.inputs[2:], map(origin, body.outputs[1:])
        carried = dict(zip(fed, made, strict=False))  # no condition: in each step that is run it is true
        name = body.outputs[0].name
        self.endless = Endless(node.where, name, body.steps, body.inputs[:1], carried, goes_on)
        if counted and not node.has(0) and (not node.has(1) or node.known.get(1) in (True, [True])):
            raise self.endless.error()
        self.whole = LoopBody(node.node.name or "Loop", body, self.carried, scanned)
        self.loop = whole_loop(self.whole)
        self.reports = (self.by_rows or self.by_blocks).reports  # type: ignore[union-attr]

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        not_in_recordings()
        (trips, going, *state), outer = inputs[: self.carried + 2], inputs[self.carried + 2 :]
        around = dict(zip(self.node.outer, outer, strict=True))
        if WHILE_LOOPS.get() is not None:
            return self._written(trips, going, state, around)
        trips = plain(trips)
        most = None if trips is None else max(_one(trips, "trip count", torch.int64), 0)
        goes = True if going is None else bool(_one(going, "condition"))
        if self.by_rows is not None and goes:
            check_turns(most or 0)
        if self.by_rows is not None and most is not None and goes and not is_watched():
            out = self.by_rows(most, state, around)
            if out is not None:
                return out
        return self._by_steps(most, torch.tensor(True) if going is None else going, goes, state, around)

    def _written(
        self, trips: Any, going: Any, state: Sequence[Any], around: Mapping[Any, Any]
    ) -> Sequence[Any]:
        """The loop by its condition, for what writes the model."""
        for k, value in enumerate(state):
            if isinstance(value, list):
                name = self.body.inputs[2 + k].name
                raise Misfit(
                    f"carries a sequence, '{name}', and does more with it than to add",
                    given([value]),
                    "tensors, or a sequence that begins empty, is added to, and is joined behind the loop",
                )

        def goes_on(step: Tensor, goes: Tensor) -> Tensor:
            return goes if trips is None else goes & (step < trips.reshape(()))

        always = self.by_rows is not None and (going is None or self.node.known.get(1) in (True, [True]))
        count, trips = open_count(trips) if always else None, plain(trips)
        first = torch.ones((), dtype=torch.bool) if going is None else going
        endless = self.endless if trips is None else None
        return written_loop(reading(self.body, around), first, state, self.scanned, goes_on, count, endless)

    def _by_steps(
        self, most: int | None, condition: Any, goes: bool, state: Sequence[Any], around: Mapping[Any, Any]
    ) -> Sequence[Any]:
        """The loop step by step, after the blocks of steps that can be compiled."""
        blocks, tables, note = 0, [], None
        states = self.whole.states
        limit, seen = self.endless.steps if most is None else most, self.endless.watch()
        if self.by_blocks is not None and goes and not is_watched():
            (blocks, goes, state, tables), note = self.by_blocks.begin(limit, state, around, seen)
        joined = self.body.outputs[1 + self.carried :]

        def watch(step: int, made: Mapping[str, Any], _: Any) -> None:
            if made[GOING]:
                seen(step + 1, [made[name] for name in states])

        first = dict(zip(states, state, strict=True))
        feeds = first | {GOING: goes, CONDITION: condition, AROUND: around}
        run = naive.PlainRun(self.loop, feeds | {LIMIT: -1 if limit is None else limit})
        start = replace(run.begin(), step=blocks)
        end = run.advance(start, observe=watch if most is None else None)
        if end.values[GOING] and most is None:
            raise self.endless.error()
        if note is not None:
            note(end.step)
        if self.scanned and not end.step:
            return (*state, *_no_rows(self.body, joined, (condition, *state), around))
        state, rows = [end.values[name] for name in states], [*end.joined.values()]
        if not blocks:
            return (*state, *map(_stacked, rows))
        more = [[_stacked(table)] if table else [] for table in rows]
        return (*state, *(torch.cat([*a, *b]) for a, b in zip(tables, more, strict=True)))


# No names of ports.
GOING, CONDITION, AROUND, LIMIT = "it goes on", "the condition", "what is around", "the trip count"


class LoopBody:
    """The body of a Loop, which also says whether the loop goes on."""

    def __init__(self, name: str, graph: Graph, carried: int, joined: int) -> None:
        self.name, self.graph = name, graph
        self.states = tuple(f"state {k}" for k in range(carried))
        self.joined = tuple(f"joined {k}" for k in range(joined))
        self.parameters = (AROUND, "the iteration", GOING, CONDITION, *self.states)
        self.results = (GOING, CONDITION, *self.states, *self.joined)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        around, number, _, *carried = values
        condition, *results = self.graph.run((number, *carried), around)
        return bool(_one(condition, "condition")), condition, *results


def whole_loop(body: LoopBody) -> Loop:
    """The record of a Loop with its condition, fed as `GOING` too, and its trip count, as `LIMIT`."""
    carried = (GOING, CONDITION, *body.states)
    inputs = Invariant(AROUND, AROUND), Iteration("the iteration", "int64"), *(Merged(n, n) for n in carried)
    outputs = *(Last(n, n) for n in body.states), *(Concat(n, n) for n in body.joined)
    edges = [BackEdge(n, n) for n in carried]
    return Loop(body, inputs, outputs, edges, condition=GOING, limit=LIMIT).settled()


@op("Loop", inputs=(2, 2**16))
def _loop(node: Info) -> Run:
    return LoopRunner(node)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    for step, row in enumerate(rows):
        if row.shape != rows[0].shape:
            what = f"what its steps give to be joined changes its shape in step {step}"
            raise Misfit(what, list(row.shape), list(rows[0].shape))
    return torch.stack([*rows])


def _by_blocks(node: Info, body: Graph, joined: int) -> OwnEndLoop:
    why_not = None
    if not branches_alone(body):
        why_not = "its body holds a loop"
    elif body.inputs[1] in {*body.outputs, *(value for step in body.steps for value in step.inputs)}:
        why_not = "its body reads its condition"
    return OwnEndLoop(LoopReport(node.where), node.node.name or "Loop", body, joined, why_not)


def _no_rows(
    body: Graph, joined: Sequence[Any], start: Sequence[Any], around: Mapping[Any, Any]
) -> list[Tensor]:
    """Tables of no steps: of the sizes that the file declares, else of those that a step would give."""
    sizes = [
        None if v.shape is None else [n if isinstance(n, int) else None for n in v.shape] for v in joined
    ]
    dtypes = [None if v.dtype is None else dtype_of(v.dtype.value) for v in joined]
    if any(dtype is None or size is None or None in size for size, dtype in zip(sizes, dtypes, strict=True)):
        try:
            with torch.no_grad():
                rows = body.run((torch.tensor(0), *start), around)[-len(joined) :]
            return [row.new_zeros((0, *row.shape)) for row in rows]
        except IRError:  # a step on what is empty; sizes that nothing says are none
            pass
    known = [[0 if n is None else n for n in size or ()] for size in sizes]
    return [torch.zeros((0, *n), dtype=dtype) for n, dtype in zip(known, dtypes, strict=True)]


def is_watched() -> bool:
    """Whether somebody watches the nodes, those of bodies among them."""
    return SEEN.get() is not None


class ScanRunner:
    """Runs a Scan: compiled where it treats each row of the batch alike, else by the plain loop."""

    def __init__(self, node: Info) -> None:
        self.node, self.reports = node, LoopReport(node.where)
        self.old = node.opset < 9
        count = node.get("num_scan_inputs", 0)
        self.states = len(node.node.inputs) - self.old - count
        if count < 1 or self.states < 0:
            raise Misfit("num_scan_inputs does not fit the inputs", count, f"1 to {len(node.node.inputs)}")
        graph = body_of(node, "body", self.states + count)
        self._check_ranks(graph)
        check_fed(graph.inputs, node.node.inputs[self.old :])
        check_carried(graph.inputs[: self.states], graph.outputs)
        joined = node.count - self.states
        if joined < 0 or len(graph.outputs) != node.count:
            raise Misfit("the body gives another number of values", len(graph.outputs), node.count)
        turned = self._list("directions" if self.old else "scan_input_directions", count)
        self.cut = [*zip(self._list("scan_input_axes", count), turned, strict=True)]
        turned = self._list("scan_output_directions", joined)
        self.joined = [*zip(self._list("scan_output_axes", joined), turned, strict=True)]
        nested = any(step.info.bodies for step in graph.steps)
        why_not = "its body holds a loop or a branch" if nested else None
        name = node.node.name or "Scan"
        self.graph = graph
        self.scan = ScanLoop(graph, name, self.states, self.cut, self.joined, self.reports, why_not)
        self.batched = None
        if self.old:
            self.batched = BatchedScan(self.scan, node.where, self.cut, joined, self._looped)

    def as_scan(self, step: Step) -> ScanStep | None:
        """It as a loop whose steps the nodes around may become part of: all is cut and joined alike."""
        ways = {*self.cut, *self.joined}
        if self.old or self.scan.reason is not None or len(ways) != 1:
            return None
        ((axis, turned),) = ways
        own, count = step.inputs[: len(self.node.node.inputs)], self.states
        x = own[count:]
        if axis < 0 or None in own:
            return None

        def one(
            states: Sequence[Any], x: Sequence[Any], outer: Mapping[Any, Any]
        ) -> tuple[Sequence[Any], Sequence[Any]]:
            results = self.graph.run((*states, *(v.squeeze(axis) for v in x)), outer)
            return results[:count], [row.unsqueeze(axis) for row in results[count:]]

        name, of = self.node.node.name or "Scan", self.graph
        return ScanStep(step, name, own[:count], x, of.captured, step.outputs[:count], step.outputs[count:],
                        axis, bool(turned), one, of.steps, self.reports)  # fmt: skip

    def _check_ranks(self, graph: Graph) -> None:
        """Hold what the body declares against what it is fed: a slice has one dimension less."""
        for number, inside in enumerate(graph.inputs):
            given = self.node.node.inputs[self.old + number]
            if given is None or given.shape is None or inside.shape is None:
                continue
            rank = len(given.shape) - self.old - (number >= self.states)
            if rank < 0:
                raise Misfit(f"input {number} has no axis to cut", list(given.shape), "a tensor of steps")
            if len(inside.shape) != rank:
                raise Misfit(f"its body declares '{inside.name}' of another rank", len(inside.shape), rank)

    def _list(self, name: str, count: int) -> list[int]:
        found = self.node.get(name, [0] * count)
        if len(found) != count:
            raise Misfit(f"attribute '{name}' must have one number for each", found, f"{count} of them")
        if name.endswith("directions") and any(way not in (0, 1) for way in found):
            raise Misfit(f"attribute '{name}' has no such direction", found, "0 forwards, 1 backwards")
        return found

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        outer = inputs[len(self.node.node.inputs) :]
        own = inputs[: len(self.node.node.inputs)]
        if not self.old and has_one(own[self.states :], [axis for axis, _ in self.cut]):
            return self._as_calls(own, outer)
        not_in_recordings(settled=None if self.old else (self.reports,))
        if self.batched is None:
            return self._run((*own, *outer))
        lengths, *own = own
        return self.batched(lengths, own, outer)

    def _as_calls(self, own: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        """What it gives in one step, by calls that are recorded: to call its plan takes longer."""
        states, tables, count = own[: self.states], own[self.states :], self.states
        x = [value.squeeze(axis) for value, (axis, _) in zip(tables, self.cut, strict=True)]
        try:
            results = self.graph.run((*states, *x), dict(zip(self.node.outer, outer, strict=True)))
        except Opaque:
            not_in_recordings(settled=(self.reports,))
            raise
        results = [*map(plain, results)]
        rows = zip(results[count:], self.joined, strict=True)
        return (
            *(unlike(new, [*own, *outer]) for new in results[:count]),
            *(torch.stack([row], axis) for row, (axis, _) in rows),
        )

    def _run(self, values: Sequence[Any]) -> Sequence[Any]:
        for (axis, _), value in zip(self.cut, values[self.states :], strict=False):
            if not -value.dim() <= axis < value.dim():
                what = f"attribute 'scan_input_axes': {axis} lies outside of an input"
                raise Misfit(what, typed_shape(value), f"{-value.dim()} to {value.dim() - 1}")
        steps = [v.shape[axis] for (axis, _), v in zip(self.cut, values[self.states :], strict=False)]
        if all(isinstance(count, int) for count in steps) and len(set(steps)) > 1:  # else they are open
            raise Misfit("what is scanned has different numbers of steps", steps, "the same for each input")
        return self._looped(self.scan, values)

    def _looped(self, scan: ScanLoop, values: Sequence[Any]) -> Sequence[Any]:
        body = scan.body
        feeds = dict(zip(body.parameters, values, strict=True))
        run = partial(scan.run, feeds, plainly=is_watched())
        instead = ITERATORS.get()
        out = run() if instead is None else instead(scan.loop, feeds, run)
        return tuple(out[name] for name in body.results)


@op("Scan", inputs=(1, 2**16))
def _scan(node: Info) -> Run:
    return ScanRunner(node)


@op("SequenceMap", inputs=(1, 2**16))
def _map(node: Info) -> Run:
    count = len(node.node.inputs)
    body = body_of(node, "body", count)
    check_sequence(node)
    if len(body.outputs) != node.count:
        raise Misfit("the body gives another number of values", len(body.outputs), node.count)

    def run(*inputs: Any) -> Sequence[Any]:
        (first, *rest), around = inputs[:count], dict(zip(node.outer, inputs[count:], strict=True))
        outs: list[list[Any]] = [[] for _ in range(node.count)]
        elements = listed(first)
        short = [len(value) for value in rest if isinstance(value, list) and len(value) < len(elements)]
        if short:
            raise Misfit("a sequence is shorter than the first one", short[0], f"{len(elements)} elements")
        for k, element in enumerate(elements):
            own = [element, *(value[k] if isinstance(value, list) else value for value in rest)]
            for out, value in zip(outs, body.run(own, around), strict=True):
                out.append(value)
        return tuple(outs)

    return run
