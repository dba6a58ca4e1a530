"""A loop of a file, in the form of a Scan of ONNX, as a loop over rows: where its batch stands."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepnet.data.bounded import Bounded
from stepnet.data.dtypes import typed_shape
from stepnet.errors import Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.setting import check_backend
from stepnet.ir.loop import BackEdge, Concat, Invariant, Iteration, Last, Loop, Merged, Slice
from stepnet.iterator.rows import RowLoop, show_declined

from .misfit import Misfit
from .model import FileBody, LoopReport

_MOST_SHAPES = 64  # of inputs, that one Scan remembers
Cut = tuple[int, int]  # an axis, and 1 for backwards


class StepGraph(Protocol):
    """What runs one step: a graph of a file, or what stands for one."""

    @property
    def captured(self) -> Sequence[Any]: ...

    @property
    def content(self) -> str: ...

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]: ...


class ScanBody:
    """The graph of a Scan as the body of a loop: states, then what is cut, then what it reads from around,
    then the number of the step, where it `counts`.

    What is cut keeps an axis of one element, and so do the rows that are joined. With `leads`, some have
    another such axis, which they come without: what follows it is the batch.
    """

    leads: Leads | None = None
    flat = False  # whether rows get the number of the step as [rows], not as [rows, 1, ...]

    def __init__(
        self, graph: StepGraph, name: str, states: int, cut: Sequence[int], joined: Sequence[int],
        *, counts: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.name, self.states, self.counts = graph, name, states, counts
        self.cut, self.joined = tuple(cut), tuple(joined)
        self.outer = tuple(graph.captured)
        self.parameters = (
            *(f"s{k}" for k in range(states)),
            *(f"x{k}" for k in range(len(cut))),
            *(f"outer{k}" for k in range(len(self.outer))),
            *(["number"] if counts else []),
        )
        self.results = (*(f"new{k}" for k in range(states)), *(f"y{k}" for k in range(len(joined))))
        self.function = self._function()

    def _function(self) -> FileBody:
        said = (self.graph.content, self.name, self.states, self.cut, self.joined, self.leads, self.flat)
        return FileBody(self, self.name, repr(said))

    def led(self, leads: Leads) -> ScanBody:
        """The same body where axes of one element stand before the batch."""
        twin = copy.copy(self)
        twin.leads = leads
        twin.function = twin._function()
        return twin

    def flattened(self) -> ScanBody:
        """The same body, `flat`."""
        twin = copy.copy(self)
        twin.flat = True
        twin.function = twin._function()
        return twin

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        count = self.states + len(self.cut)
        values, number = (values[:-1], values[-1:]) if self.counts else (values, ())
        number = tuple(n.reshape(-1) for n in number) if self.flat else number
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
        results = self.graph.run((*values[: self.states], *x, *number), around)
        new, rows = results[: self.states], results[self.states :]
        return (*new, *(_as_slice(row, axis) for row, axis in zip(rows, self.joined, strict=True)))


def _as_slice(row: Tensor, axis: int) -> Tensor:
    if not -row.dim() - 1 <= axis <= row.dim():
        what = f"attribute 'scan_output_axes': {axis} lies outside of an output"
        raise Misfit(what, typed_shape(row), f"{-row.dim() - 1} to {row.dim()}")
    return row.unsqueeze(axis)


class Leads(NamedTuple):
    """Which states, whether what is cut, and which rows that are joined, have an axis of one element before
    the batch."""

    states: tuple[bool, ...]
    cut: bool
    rows: tuple[bool, ...]


def _as_it_is(body: FileBody, exact: bool, batch: int, axis: int) -> tuple[FileBody, bool]:
    """What `RowLoop` asks for: the body runs on any number of rows."""
    return body, exact


class ScanLoop:
    """The loop of a Scan.

    Args:
        graph: its body.
        name: of its node.
        states: how many.
        cut, joined: the axis and the direction of each input that is cut and output that is joined.
        reports: how it ran last.
        reason: why it is not compiled, if that is known.
        counts: whether its body takes the number of the step.
    """

    def __init__(
        self, graph: StepGraph, name: str, states: int, cut: Sequence[Cut], joined: Sequence[Cut],
        reports: LoopReport, reason: str | None, *, counts: bool = False,
    ) -> None:  # fmt: skip
        self.states, self.reports, self.reason = states, reports, reason
        self.out_axes = [axis for axis, _ in joined]
        self.body = ScanBody(graph, name, states, [axis for axis, _ in cut], self.out_axes, counts=counts)
        names, results = self.body.parameters, self.body.results
        x, outer = names[states : states + len(cut)], names[states + len(cut) : len(names) - counts]
        self.loop = Loop(
            self.body,
            inputs=(
                *(Merged(name, name) for name in names[:states]),
                *(Slice(n, n, a, part_size=1, **_way(d)) for n, (a, d) in zip(x, cut, strict=True)),
                *(Invariant(name, name) for name in outer),
                *([Iteration("number", "int64")] if counts else []),
            ),
            outputs=(
                *(Last(name, name) for name in results[:states]),
                *(
                    Concat(n, n, a, part_size=1, **_way(d))
                    for n, (a, d) in zip(results[states:], joined, strict=True)
                ),
            ),
            back_edges=[BackEdge(a, b) for a, b in zip(results, names[:states], strict=False)],
        )
        # a number that each row has fits a body as one number does only where it is tried
        self._bodies = [self.body, self.body.flattened()] if counts else [self.body]
        self._rows = [RowLoop(self.loop, partial(_as_it_is, b.function, not counts)) for b in self._bodies]
        self.led: dict[Leads, tuple[ScanBody, RowLoop]] = {}
        self._leads = Bounded[Any, list[Leads]](_MOST_SHAPES)  # by the shapes of the inputs

    def run(self, feeds: Mapping[str, Any], *, plainly: bool) -> dict[str, Any]:
        """The outputs by name; by the plain loop if it is not compiled, or `plainly`."""
        out = None if plainly else self.compiled(feeds)
        return naive.run(self.loop, feeds, self._check_states) if out is None else out

    def _check_states(self, step: int, values: Mapping[str, Any], rows: Tensor | None) -> None:
        """Hold each new state against the one before, whose shape a Scan keeps."""
        for name, result in self.loop.carried.items():
            before, after = values[name].shape, values[result].shape
            if before != after:
                text = f"state {name.removeprefix('s')} changes its shape in step {step}"
                raise Misfit(text, list(after), f"{list(before)}; states of a Loop may change")

    def compiled(self, feeds: Mapping[str, Any], steps: int | None = None) -> dict[str, Any] | None:
        """The outputs by name; None: it is not compiled, and the report says why.

        Args:
            feeds: the inputs by name.
            steps: how many; None: as many as the inputs have.
        """
        backend, why_not = check_backend(None), self.reason
        if why_not is None and backend == PLAIN.name:
            why_not = "the backend is 'naive'"
        if why_not is not None:
            show_declined(self.loop, feeds, steps, Unsupported(why_not))

        def run() -> dict[str, Any]:
            out = self._without_lead(feeds, backend, steps)
            return self._by_rows(feeds, backend, steps) if out is None else out

        return self.reports.attempt(why_not, run)

    def _by_rows(self, feeds: Mapping[str, Any], backend: str, steps: int | None) -> dict[str, Any]:
        """The outputs of the first way that fits; what the first one lacks is told."""
        refused: list[Unsupported] = []
        for rows in self._rows:
            try:
                return rows.run(feeds, backend, steps=steps, reads=())
            except Unsupported as refusal:
                refused.append(refusal)
        raise refused[0]

    def _without_lead(
        self, feeds: Mapping[str, Any], backend: str, steps: int | None
    ) -> dict[str, Any] | None:
        """The outputs, where an axis of one element stands before the batch."""
        names = self.body.parameters
        states = {name: feeds[name] for name in names[: self.states]}
        x = {name: feeds[name] for name in names[self.states : self.states + len(self.body.cut)]}
        if not all(isinstance(v, Tensor) for v in feeds.values()) or not states or not x or self.body.counts:
            return None
        if any((*self.body.cut, *self.out_axes)) or torch.compiler.is_compiling():
            return None
        for leads in self._possible(feeds, states, x):
            body, loop = self._led(leads)
            fewer = {
                n: v.squeeze(0) if lead else v
                for (n, v), lead in zip(states.items(), leads.states, strict=True)
            }
            fewer |= {name: value.squeeze(1) if leads.cut else value for name, value in x.items()}
            try:
                out = loop.run({**feeds, **fewer}, backend, steps=steps, reads=())
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
            self.led[leads] = body, RowLoop(self.loop.around(body), partial(_as_it_is, body.function, True))
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
