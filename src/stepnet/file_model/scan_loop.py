"""A loop of a file, in the form of a Scan of ONNX, as a loop over rows: where its batch stands."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from stepnet.data.dtypes import typed_shape
from stepnet.data.in_graph import is_exporting
from stepnet.errors import LoopError, Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.executors.setting import check_backend
from stepnet.ir.loop import BackEdge, Concat, Invariant, Iteration, Last, Loop, Merged, Slice
from stepnet.iterator.exported_loops import for_program, in_program
from stepnet.iterator.rows import RowLoop, show_declined

from .misfit import Misfit
from .model import FileBody, LoopReport

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

    What is cut keeps an axis of one element, and so do the rows that are joined.
    """

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
        said = (self.graph.content, self.name, self.states, self.cut, self.joined, self.flat)
        return FileBody(self, self.name, repr(said))

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
        x = [v.squeeze(axis) for v, axis in zip(values[self.states : count], self.cut, strict=True)]
        results = self.graph.run((*values[: self.states], *x, *number), around)
        new, rows = results[: self.states], results[self.states :]
        return (*new, *(_as_slice(row, axis) for row, axis in zip(rows, self.joined, strict=True)))


def _as_slice(row: Tensor, axis: int) -> Tensor:
    if not -row.dim() - 1 <= axis <= row.dim():
        what = f"attribute 'scan_output_axes': {axis} lies outside of an output"
        raise Misfit(what, typed_shape(row), f"{-row.dim() - 1} to {row.dim()}")
    return row.unsqueeze(axis)


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
                *(Slice(n, n, a, part_size=1, **way(d)) for n, (a, d) in zip(x, cut, strict=True)),
                *(Invariant(name, name) for name in outer),
                *([Iteration("number", "int64")] if counts else []),
            ),
            outputs=(
                *(Last(name, name) for name in results[:states]),
                *(
                    Concat(n, n, a, part_size=1, **way(d))
                    for n, (a, d) in zip(results[states:], joined, strict=True)
                ),
            ),
            back_edges=[BackEdge(a, b) for a, b in zip(results, names[:states], strict=False)],
        ).settled()
        # a number that each row has fits a body as one number does only where it is tried
        self._bodies = [self.body, self.body.flattened()] if counts else [self.body]
        self._rows = [RowLoop(self.loop, partial(_as_it_is, b.function, not counts)) for b in self._bodies]

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
        return compiled(
            self.loop, feeds, steps, self.reports, self.reason, partial(self._by_rows, feeds, steps)
        )

    def _by_rows(self, feeds: Mapping[str, Any], steps: int | None, backend: str) -> dict[str, Any]:
        """The outputs of the first way that fits; what the first one lacks is told."""
        if for_program():
            return in_program(self._rows[0], feeds, steps, (), lambda _: self.body)
        refused: list[Unsupported] = []
        for rows in self._rows:
            try:
                return rows.run(feeds, backend, steps=steps, reads=())
            except Unsupported as refusal:
                refused.append(refusal.fresh())
        raise refused[0].fresh()


def way(direction: int) -> dict[str, Any]:
    return {"start": -1, "end": 0, "stride": -1} if direction else {}


def compiled(
    loop: Loop, feeds: Mapping[str, Any], steps: int | None, reports: LoopReport, why_not: str | None,
    run: Callable[[str], dict[str, Any]],
) -> dict[str, Any] | None:  # fmt: skip
    """The outputs of a loop by name; None: it is not compiled, and the report says why.

    Args:
        loop: it.
        feeds: its inputs by name.
        steps: how many; None: as many as the inputs have.
        reports: how it ran last.
        why_not: why it is not compiled, if that is known.
        run: gives the outputs by a plan, by the executors of a backend.

    Raises:
        LoopError: a program that leaves the number of steps open is made of it, and cannot hold it whole.
    """
    backend = check_backend(None)
    if why_not is None and backend == PLAIN.name:
        why_not = "the backend is 'naive'"
    if why_not is None and any(isinstance(v, Tensor) and v.device.type != "cpu" for v in feeds.values()):
        why_not = "not on the CPU"
    if why_not is not None:
        show_declined(loop, feeds, steps, Unsupported(why_not))
    out = reports.attempt(why_not, partial(run, backend))
    if out is None:
        _check_program(loop, feeds)
    return out


def _check_program(loop: Loop, feeds: Mapping[str, Any]) -> None:
    """A program of `torch.export` holds each step of a loop that is not compiled, so it must know how many
    there are."""
    if not is_exporting():
        return
    for port in loop.slices:
        value = feeds[port.source]
        if -value.dim() <= port.axis < value.dim() and isinstance(value.shape[port.axis], torch.SymInt):
            raise LoopError(
                "torch.export takes each step of a loop from a file, so their number cannot be left open",
                got=typed_shape(value),
                expected=f"a number as size of dimension {port.axis}",
                remedy="no dynamic_shapes for it; or export the module that the file was written from",
            )
