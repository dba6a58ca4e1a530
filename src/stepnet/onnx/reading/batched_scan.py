"""The Scan of opset 8, whose states and sequences have a batch in front: a loop over it, of a Scan each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import typed_shape
from stepnet.export.open_sizes import plain
from stepnet.file_model import LoopReport, Misfit
from stepnet.file_model.scan_loop import ScanLoop, StepGraph
from stepnet.watchers import ITERATORS

Run = Callable[[ScanLoop, Sequence[Any]], Sequence[Any]]


class BatchedScan:
    """Runs such a Scan.

    Args:
        scan: the loop over the steps of one sequence.
        where: the node, for errors.
        cut: the axis and the direction of each input that is scanned.
        joined: how many outputs are.
        run: runs a loop on what it is fed.
    """

    def __init__(
        self, scan: ScanLoop, where: str, cut: Sequence[tuple[int, int]], joined: int, run: Run
    ) -> None:
        self._scan, self._run, self._states = scan, run, scan.states
        self._backwards = [turned for _, turned in cut]
        graph, count = scan.body.graph, scan.states
        name, reports = f"{scan.body.name} of one of a batch", LoopReport(where)
        self._whole = self._over(partial(self._one, scan), graph, name, len(cut), joined)
        ended = ScanLoop(Ended(graph, count), name, count, [(0, 0)] * (len(cut) + 1), [(0, 0)] * joined,
                         reports, scan.reason)  # fmt: skip
        self._cut_off = self._over(self._by_length, graph, name, len(cut) + 1, joined)
        self._masked = self._over(partial(self._by_mask, ended), graph, name, len(cut) + 1, joined)

    def _over(self, run: Any, graph: StepGraph, name: str, cut: int, joined: int) -> ScanLoop:
        """A loop over the batch."""
        count, body = self._states, OfOne(run, graph)
        axes = [(0, 0)] * (count + cut), [(0, 0)] * (count + joined)
        return ScanLoop(body, name, 0, *axes, LoopReport(name), "its body holds a loop")

    def __call__(self, lengths: Tensor | None, own: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        if lengths is None:
            return self._run(self._whole, (*own, *outer))
        batch, steps = own[-1].shape[:2]
        if lengths.shape != (batch,) and isinstance(batch, int):
            raise Misfit(
                "sequence_lens must have one length for each of the batch", typed_shape(lengths), batch
            )
        if ITERATORS.get() is not None or not batch:
            return self._run(self._masked, (*own, lengths, *outer))
        if not 0 <= int(lengths.min()) <= int(lengths.max()) <= steps:
            what = "sequence_lens holds a length that no sequence has"
            raise Misfit(what, lengths.tolist()[:8], f"0 to {steps}")
        return self._run(self._cut_off, (*own, lengths, *outer))

    def _one(self, scan: ScanLoop, own: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        return self._run(scan, (*own, *outer))

    def _by_length(self, own: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        """What is computed on the steps that a sequence has."""
        (*own, length), count = own, self._states
        longest, steps = own[-1].shape[0], int(length)
        x = [value[:steps] for value in own[count:]]
        results = self._run(self._scan, (*own[:count], *x, *outer))
        return (*results[:count], *(_filled(rows, longest) for rows in results[count:]))

    def _by_mask(self, scan: ScanLoop, own: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        """The same by as many steps for each: a loop that is written has one number of them."""
        (*own, length), count = own, self._states
        numbers = torch.arange(own[-1].shape[0])
        back = (length - 1 - numbers).clamp(min=0)
        turns = zip(own[count:], self._backwards, strict=True)
        x = [value.index_select(0, back) if turned else value for value, turned in turns]
        return self._run(scan, (*own[:count], *x, numbers < length, *outer))


class OfOne:
    """The body of a loop over the batch."""

    def __init__(self, run: Any, graph: StepGraph) -> None:
        self._call, self.captured, self.content = run, graph.captured, f"batched {graph.content}"

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The last states and what is joined, of one of the batch."""
        return tuple(self._call(arguments, [around[value] for value in self.captured]))


class Ended:
    """The body of a Scan whose last input says whether a step lies before the end of its sequence. Behind it
    states stay as they are, and what is joined is 0."""

    def __init__(self, graph: StepGraph, states: int) -> None:
        self._graph, self._states = graph, states
        self.captured, self.content = graph.captured, f"ended {graph.content}"

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The new states and what is joined."""
        *given, lives = arguments
        results = [*map(plain, self._graph.run(given, around))]
        instead = [*given[: self._states], *map(torch.zeros_like, results[self._states :])]
        return tuple(torch.where(lives, *pair) for pair in zip(results, instead, strict=True))


def _filled(value: Tensor, size: int) -> Tensor:
    return torch.cat([value, value.new_zeros(size - value.shape[0], *value.shape[1:])])
