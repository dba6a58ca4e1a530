"""The plain loop: what every loop means. Every other executor is measured against this one.

A ragged input is unpacked as Paddle's dynamic recurrent op did it: sequences ranked by length, step t
holds the t-th element of those longer than t, states shrink with them, and results are packed back.
With a condition for each row, the rows whose condition is False leave, and come back at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.modes import uncast
from stepnet.data.no_graph import refuse_traces
from stepnet.errors import LoopError, StepError
from stepnet.ir.loop import Body, Concat, Iteration, Loop
from stepnet.watchers import most_steps

from .rows import Rows
from .segment import Count, Cut, LoDCut, WholeCut


@dataclass(frozen=True)
class PlainLoop:
    """The plain loop among the backends. It takes the body itself: it needs no plan and declines nothing."""

    name: Literal["naive"] = "naive"
    label: str = "the plain loop"


PLAIN = PlainLoop()
_CAST = ("cpu", "cuda")  # autocast there joins none of a type of few bits but its own
Observer = Callable[[int, Mapping[str, Any], Tensor | None], None]


def run(loop: Loop, feeds: Mapping[str, Any], observe: Observer | None = None) -> dict[str, Any]:
    """Run a loop step after step in torch.

    Args:
        loop: the loop.
        feeds: the value of each input port's `source`. Carried values are in the caller's order of
            sequences, one row each.
        observe: called after each step with its number, its named values, and the caller's index of
            the sequence in each row (None where all sequences are present in order).

    Returns:
        The value of each output port by its `output` name, in the caller's order.

    Raises:
        LoopError: sliced inputs disagree on the number of steps or on the LoD.
    """
    plain = PlainRun(loop, feeds)
    return plain.outputs(plain.advance(plain.begin(), observe=observe))


def run_one(body: Body, x: Tensor, states: Sequence[Tensor], axis: int) -> tuple[Any, list[Any]]:
    """What a loop that cuts x, one step, along `axis` gives: y and what is carried. `run` makes and reads
    records for longer than a small body takes."""
    y, *new = body(x.unbind(axis)[0], *states)
    with uncast(_CAST):
        if type(y) is Tensor and 0 <= axis <= y.dim():
            return torch.stack([y], axis), new
        return WholeCut().join([y], Concat("y", "y", axis=axis), empty=False), new


@dataclass(frozen=True)
class State:
    """A run between two steps. It is never changed: from one state, the same steps can be run again."""

    step: int
    values: dict[str, Any]  # of carried parameters, at the rows that run; and invariants
    finished: dict[str, list[Any]]  # carried values of sequences that ended, the shortest first
    rows: Rows | None  # which rows run, under a condition for each
    joined: dict[str, list[Any]]
    results: dict[str, Any]  # of the step before
    going: bool = True


class PlainRun:
    """One run of a loop, a number of steps at a time."""

    def __init__(self, loop: Loop, feeds: Mapping[str, Any]) -> None:
        refuse_traces()
        self.loop, self._feeds = loop, feeds
        self._cuts = {port.parameter: Cut.of(port, feeds[port.source]) for port in loop.slices}
        self._first = next(iter(self._cuts.values())) if self._cuts else Count(loop)
        self.steps = self._most()
        bounded = self.steps is not None or getattr(loop.body, "limit", None) is not None
        self._tried = None if bounded else most_steps()

    def _most(self) -> int | None:
        """How many steps there are at most; None: only the condition ends the loop."""
        loop, cuts = self.loop, self._cuts
        if loop.condition is None and loop.limit is None:
            for name, cut in cuts.items():
                self._first.check_same(cut, loop.slices[0].parameter, name)
            return self._first.steps
        ragged = next((name for name, cut in cuts.items() if isinstance(cut, LoDCut)), None)
        if ragged is not None:
            raise LoopError(f"'{ragged}' is a LoDTensor, and its lengths say how many steps there are",
                            got="a loop with a condition or a limit",
                            remedy="a tensor, cut along an axis; or no condition and no limit")  # fmt: skip
        counts = [cut.steps for cut in cuts.values()]
        limit = -1 if loop.limit is None else int(self._feeds[loop.limit])
        return min([*counts, *([limit] if limit >= 0 else [])], default=None)

    def begin(self) -> State:
        """The state before the first step."""
        loop, feeds = self.loop, self._feeds
        values = {port.parameter: self._first.to_rank(feeds[port.source]) for port in loop.merged}
        values |= {port.parameter: feeds[port.source] for port in loop.invariants}
        joined: dict[str, list[Any]] = {port.result: [] for port in loop.joined}
        return State(0, values, {name: [] for name in loop.carried}, None, joined, {})

    def advance(self, state: State, most: int | None = None, observe: Observer | None = None) -> State:
        """Run up to `most` steps; None: to the end."""
        loop, first, body = self.loop, self._first, self.loop.body
        results, rows, step, wiring = state.results, state.rows, state.step, loop.wiring
        held: list[Any] = [state.values.get(name) for name in body.parameters]  # the values of a step
        finished = {name: [*parts] for name, parts in state.finished.items()}
        joined = {name: [*parts] for name, parts in state.joined.items()}
        stop = None if most is None else step + most
        cuts = [(place, self._cuts[name].parts) for place, name in wiring.cut]
        kept, edges = [(joined[name], place) for name, place in wiring.joined], wiring.edges
        counts, carried = first.counts, [(place, finished[name]) for place, name in wiring.merged]
        condition, numbers, steps, tried = loop.condition, wiring.numbers, self.steps, self._tried
        going, made = True, None
        while step != stop:
            going = step != steps
            if going and condition is not None:
                going, rows = self._goes_on(held, rows)
            if not going:
                break
            if step == tried:
                raise StepError(
                    f"the while loop over '{body.name}' has not ended after {step} steps on an example",
                    got="a loop that is run once, to be saved or explained, and has no max_steps",
                    remedy="an example for which it ends, or max_steps=, the most steps that it takes",
                )
            if counts is not None:
                active = counts[step]
                for place, ended in carried:
                    if held[place].shape[0] != active:
                        held[place] = first.shrink(held[place], active, ended)
            for place, port in numbers:
                held[place] = number_of(port, step)
            for place, parts in cuts:
                held[place] = parts[step]
            made = body(*held)
            for parts, place in kept:
                parts.append(made[place])
            if observe is not None:
                shown = zip((*body.parameters, *body.results), (*held, *made), strict=True)
                observe(step, dict(shown), self._running(step) if rows is None else rows.running)
            for to, place in edges:  # all back edges at once
                held[to] = made[place]
            step += 1
        if made is not None:
            results = dict(zip(body.results, made, strict=True))
        now = dict(zip(body.parameters, held, strict=True))
        values = {name: now[name] for name in state.values}
        return State(step, values, finished, rows, joined, results, going)

    def _running(self, step: int) -> Tensor | None:
        """The caller's index of each sequence that takes part in a step, for somebody who may write to it."""
        order, counts = self._first.order, self._first.counts
        return None if order is None or counts is None else order[: counts[step]].clone()

    def _goes_on(self, held: list[Any], rows: Rows | None) -> tuple[bool, Rows | None]:
        """Whether the condition holds; under one for each row, values are left at the rows for which it
        does."""
        loop = self.loop
        merged = loop.wiring.merged
        carried, names = [held[place] for place, _ in merged], [name for _, name in merged]
        assert loop.condition is not None
        holds = carried[names.index(loop.condition)]
        if rows is None:
            if not isinstance(holds, Tensor) or holds.dim() != 1 or len(holds) == 1:
                return bool(holds), None
            if loop.slices or loop.joined:
                raise LoopError(
                    f"the loop over '{loop.body.name}' cuts or joins steps, so one condition is for all rows",
                    got=f"a condition for each of {len(holds)} rows",
                    remedy="(...).any(), and torch.where in the body",
                )
            rows, carried = Rows.begin(len(holds), carried, names)
        rows, carried = rows.keep(holds, carried)
        for (place, _), value in zip(merged, carried, strict=True):
            held[place] = value
        return len(rows.running) > 0, rows

    def outputs(self, state: State) -> dict[str, Any]:
        """The value of each output port."""
        loop, first = self.loop, self._first
        outputs: dict[str, Any] = {}
        last = dict(loop.finals)
        carried = [port.parameter for port in loop.merged]
        if state.rows is not None:
            ended = state.rows.end([state.values[name] for name in carried])
            return {output: ended[place] for output, place in last.items()}
        for port in loop.outputs:
            if isinstance(port, Concat):
                parts = state.joined[port.result] or [self._shape_only(state)[port.result]]
                with uncast(_CAST):
                    outputs[port.output] = first.join(parts, port, empty=not state.joined[port.result])
            elif port.output in last:
                name = carried[last[port.output]]
                parts = [state.values[name], *reversed(state.finished[name])]
                with uncast(_CAST):
                    outputs[port.output] = first.from_rank(parts)
            elif first.order is None and state.step:
                outputs[port.output] = state.results[port.result]
            else:
                raise LoopError(
                    f"'{port.output}' asks for the last '{port.result}', which no back edge carries",
                    got="no steps" if first.order is None else "sequences that end at different steps",
                    remedy="add a back edge for it, or join its steps along an axis and select the last",
                )
        return outputs

    def _shape_only(self, state: State) -> dict[str, Any]:
        """Results of one step on no data: what a loop of no steps needs to know of its outputs."""
        loop, first = self.loop, self._first
        with torch.no_grad():
            empty = {name: cut.empty_step() for name, cut in self._cuts.items()}
            still = {n: first.no_rows(v) if n in loop.carried else v for n, v in state.values.items()}
            numbers = {port.parameter: number_of(port, 0) for _, port in loop.wiring.numbers}
            values = empty | still | numbers
            results = loop.body(*(values[name] for name in loop.body.parameters))
        return dict(zip(loop.body.results, results, strict=True))


def number_of(port: Iteration, step: int) -> Any:
    """What a port gives at a step."""
    return step if port.dtype is None else torch.full((1,) * port.rank, step, dtype=dtype_of(port.dtype))
