"""A Loop that its body ends, by the blocks of steps of `file_model.own_end`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.executors.naive import number_of
from stepnet.file_model import LoopReport, Misfit
from stepnet.file_model.own_end import OwnEndLoop
from stepnet.ir.loop import Concat, Iteration, Last, Loop
from stepnet.repeat import while_loop

if TYPE_CHECKING:
    from .graph import Graph


class WholeStep:
    """The body of such a Loop as one step of the whole batch; what it captures are invariants and constants.

    Args:
        graph: the body.
        loop: its record, without its condition.
        condition: which of the results says whether it goes on; None: it goes on.
    """

    def __init__(self, graph: Graph, loop: Loop, condition: int | None) -> None:
        self.graph, self.loop, self.condition = graph, loop, condition
        self.joined = [port.result for port in loop.outputs if isinstance(port, Concat)]
        self.captured = (*(port.source for port in loop.invariants), *graph.captured)

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures."""
        loop = self.loop
        return repr((self.graph.content, loop.inputs, loop.outputs, loop.back_edges, self.condition))

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Whether it goes on, what is carried, and what is joined."""
        number, going, *state = arguments
        given = {port.parameter: around[port.source] for port in self.loop.invariants}
        given |= dict(zip(self.loop.carried, state, strict=True))
        for port in self.loop.inputs:
            if isinstance(port, Iteration):
                like = number_of(port, 0)
                given[port.parameter] = number.to(like.dtype).reshape(like.shape)
        results = self.graph.plainly([given[name] for name in self.loop.body.parameters], around, None)
        named = dict(zip(self.loop.body.results, results, strict=True))
        going = going if self.condition is None else results[self.condition]
        return (going, *(named[r] for r in self.loop.carried.values()), *(named[r] for r in self.joined))


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
        elif any(isinstance(p, Last) and p.result not in loop.carried.values() for p in loop.outputs):
            why_not = "its body ends it, and an output is the last value of what is not carried"
        self.blocks = OwnEndLoop(reports, loop.body.name, step, len(step.joined), why_not)

    def run(self, feeds: Mapping[str, Any], trips: int) -> tuple[dict[str, Any] | None, Any]:
        """The outputs by name, None where blocks do not run it; and what is to be told how many steps it had.

        Args:
            feeds: the inputs by name.
            trips: the most steps; below zero: any number.
        """
        loop, most = self.step.loop, None if trips < 0 else trips
        begun, note = self.blocks.begin(most, *self._start(feeds))
        if note is None or not begun.steps or (begun.going and begun.steps != most):
            return None, note
        note(begun.steps)
        finals = dict(zip(loop.carried.values(), begun.state, strict=True))
        tables = iter(begun.tables)
        return {
            port.output: _joined(next(tables), port) if isinstance(port, Concat) else finals[port.result]
            for port in loop.outputs
        }, note

    def _start(self, feeds: Mapping[str, Any]) -> tuple[list[Any], dict[Any, Any]]:
        """What is carried at first, and what the body captures."""
        loop, graph = self.step.loop, self.step.graph
        first = {port.parameter: feeds[port.source] for port in loop.merged}
        around = {port.source: feeds[port.source] for port in loop.invariants}
        around |= {slot: getattr(graph, name) for slot, name in graph.constant_slots}
        return [first[name] for name in loop.carried], around

    def written(self, feeds: Mapping[str, Any], trips: Tensor, going: Tensor) -> dict[str, Any]:
        """The outputs by name, as a `while_loop`, for what writes the model.

        Raises:
            Misfit: the loop has no such form.
        """
        loop = self.step.loop
        carried = [*loop.carried.values()]
        if loop.slices or not all(isinstance(p, Last) and p.result in carried for p in loop.outputs):
            what = "a Loop that cuts or joins values, and that its condition or its trip count ends,"
            raise Misfit(f"{what} is not written in another format")
        state, around = self._start(feeds)

        def goes_on(number: Tensor, goes: Tensor, *_: Tensor) -> Tensor:
            most = trips.reshape(())
            return goes & ((most < 0) | (number < most))

        def turn(number: Tensor, goes: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            again, *new = self.step.run((number, goes, *values), around)
            return number + 1, again.reshape(()), *new

        variables: Any = (torch.zeros((), dtype=torch.int64), going.reshape(()), *state)
        finals = dict(zip(carried, while_loop(goes_on, turn, variables)[2:], strict=True))
        return {port.output: finals[port.result] for port in loop.outputs}


def _joined(parts: Sequence[Tensor], port: Concat) -> Tensor:
    """The results of all steps, [steps, ...], along an axis that they have."""
    rows = torch.cat(tuple(parts))
    axis = port.axis % (rows.dim() - 1)
    rows = rows.flip(0) if port.stride < 0 else rows
    return rows.movedim(0, axis).flatten(axis, axis + 1)
