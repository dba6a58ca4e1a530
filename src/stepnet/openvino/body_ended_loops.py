"""A Loop that its body ends, by the blocks of steps of `file_model.body_ended_loops`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.executors.naive import number_of
from stepnet.export.open_sizes import open_count, plain
from stepnet.file_model import LoopReport
from stepnet.file_model.body_ended_loops import OwnEndLoop, written_loop
from stepnet.file_model.branching import Reading
from stepnet.file_model.endless import Endless
from stepnet.ir.loop import Concat, Iteration, Loop, Slice

from .graph import Graph

EMPTY: Mapping[str, Any] = {}


class WholeStep:
    """The body of such a Loop as one step of the whole batch; what it captures are invariants and constants.

    Args:
        graph: the body.
        loop: its record, without its condition.
        condition: which of the results says whether it goes on.
    """

    def __init__(self, graph: Graph, loop: Loop, condition: int) -> None:
        self.graph, self.loop, self.condition = graph, loop, condition
        carried = loop.carried.values()
        self.joined = [  # and what only its last step gives
            *dict.fromkeys(p.result for p in loop.outputs if isinstance(p, Concat) or p.result not in carried)
        ]
        self.captured = (*(port.source for port in loop.invariants), *graph.captured)

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures."""
        loop = self.loop
        return repr((self.graph.content, loop.inputs, loop.outputs, loop.back_edges, self.condition))

    def run(
        self, arguments: Sequence[Any], around: Mapping[Any, Any], parts: Mapping[str, Any] = EMPTY
    ) -> tuple[Any, ...]:
        """Whether it goes on, what is carried, and what is joined; `parts`: what is cut of its inputs."""
        number, _, *state = arguments
        given = {port.parameter: around[port.source] for port in self.loop.invariants}
        given.update(parts)
        given |= dict(zip(self.loop.carried, state, strict=True))
        for port in self.loop.inputs:
            if isinstance(port, Iteration):
                like = number_of(port, 0)
                given[port.parameter] = number.to(like.dtype).reshape(like.shape)
        results = self.graph.plainly([given[name] for name in self.loop.body.parameters], around, None)
        named = dict(zip(self.loop.body.results, results, strict=True))
        return (
            results[self.condition],
            *(named[r] for r in self.loop.carried.values()),
            *(named[r] for r in self.joined),
        )


class OwnEndRunner:
    """Runs such a Loop.

    Args:
        reports: how it ran last.
        step: its body.
    """

    def __init__(self, reports: LoopReport, step: WholeStep) -> None:
        loop, graph = step.loop, step.graph
        self.step = step
        why_not = None
        if loop.slices:
            why_not = "its body ends it, and it cuts its inputs"
        elif any(node.layer.bodies or hasattr(node.run, "reports") for node in graph.nodes):
            why_not = "its body holds a loop or a branch"
        self.blocks = OwnEndLoop(reports, loop.body.name, step, len(step.joined), why_not)

    def run(
        self, feeds: Mapping[str, Any], trips: int, seen: Callable[[int, Sequence[Any]], None]
    ) -> tuple[dict[str, Any] | None, Any]:
        """The outputs by name, None where blocks do not run it; and what is to be told how many steps it had.

        Args:
            feeds: the inputs by name.
            trips: the most steps; below zero: any number.
            seen: see `OwnEndLoop.begin`.
        """
        most = None if trips < 0 else trips
        begun, note = self.blocks.begin(most, *self._start(feeds), seen)
        if note is None or not begun.steps or (begun.going and begun.steps != most):
            return None, note
        note(begun.steps)
        tables = [torch.cat(tuple(parts)) for parts in begun.tables]
        return self._outputs(begun.state, tables), note

    def _outputs(self, state: Sequence[Tensor], tables: Sequence[Tensor]) -> dict[str, Any]:
        """The outputs by name, from what is carried at last and what is joined, [steps, ...]."""
        finals = dict(zip(self.step.loop.carried.values(), state, strict=True))
        rows = dict(zip(self.step.joined, tables, strict=True))
        return {
            port.output: _joined(rows[port.result], port)
            if isinstance(port, Concat)
            else finals[port.result]
            if port.result in finals
            else _last(rows[port.result])
            for port in self.step.loop.outputs
        }

    def _start(self, feeds: Mapping[str, Any]) -> tuple[list[Any], dict[Any, Any]]:
        """What is carried at first, and what the body captures."""
        loop, graph = self.step.loop, self.step.graph
        first = {port.parameter: feeds[port.source] for port in loop.merged}
        around = {port.source: feeds[port.source] for port in loop.invariants} | graph.held()
        return [first[name] for name in loop.carried], around

    def written(
        self, feeds: Mapping[str, Any], trips: Any, going: Tensor, always: bool, endless: Endless
    ) -> dict[str, Any]:
        """The outputs by name, by its condition, for what writes the model; `always`: that is always true."""
        step, (state, around) = self.step, self._start(feeds)
        cuts = [(port, feeds[port.source], *_span(port, feeds[port.source])) for port in step.loop.slices]
        limit = plain(trips).reshape(())
        read = Reading(step, [*step.graph.tensors()], _run)

        def goes_on(number: Tensor, goes: Tensor) -> Tensor:
            goes = goes & ((limit < 0) | (number < limit))
            for *_cut, steps in cuts:
                goes = goes & (number < steps)
            return goes

        def turn(number: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            parts = {port.parameter: _part(port, value, start, number) for port, value, start, _ in cuts}
            return read((number, *values), around, parts)

        count = open_count(trips) if always and not cuts else None
        only = type(limit) is Tensor and limit.item() < 0 and not cuts  # its condition ends it
        ends = endless if only else None
        out = written_loop(turn, going, state, len(step.joined), goes_on, count, ends)
        return self._outputs(out[: len(state)], out[len(state) :])


def _run(step: WholeStep, _: Sequence[Tensor], *values: Any) -> tuple[Any, ...]:
    return step.run(*values)


def _span(port: Slice, value: Tensor) -> tuple[Tensor, Tensor]:
    """Where the first slice begins, or ends if the last one comes first; and how many there are."""
    size = value.shape[port.axis]
    start, end = (n + size + 1 if n < 0 else n for n in (port.start, port.end))
    steps = (end - start if port.stride > 0 else start - end) // abs(port.stride)
    first, count = (torch.scalar_tensor(n, dtype=torch.int64) for n in (start, steps))
    return first, count


def _part(port: Slice, value: Tensor, start: Tensor, number: Tensor) -> Tensor:
    """The slice of a step."""
    size = abs(port.stride)
    begin = start + number * port.stride - (size if port.stride < 0 else 0)
    return value.index_select(port.axis, begin + torch.arange(size))


def _last(rows: Tensor) -> Tensor:
    """Of what is joined, the last one."""
    place = torch.scalar_tensor(rows.shape[0] - 1, dtype=torch.int64)
    return rows.index_select(0, place.reshape(1)).squeeze(0)


def _joined(rows: Tensor, port: Concat) -> Tensor:
    """The results of all steps, [steps, ...], along an axis that they have."""
    axis = port.axis % (rows.dim() - 1)
    rows = rows.flip(0) if port.stride < 0 else rows
    return rows.movedim(0, axis).flatten(axis, axis + 1)
