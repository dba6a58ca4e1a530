"""What is noted of a recurrence as it runs, for its place in a traced module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.trace.iteration import iteration
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.tree import LEAF, Spec, unflatten
from stepnet.errors import IRError, Unsupported
from stepnet.front.static import has_padded
from stepnet.ir.loop import Loop, Sweep

from .calls import Calls, Places, noted_calls
from .captured_state import AsCalled
from .size_inputs import Referred, with_sizes


@dataclass
class RecurrenceCall:
    """A recurrence, as it ran for real: its loop, what it was given, what it gave, and its plan."""

    loop: Loop
    x: list[Any]
    state: list[Tensor]
    places: Places  # of the tensors the body uses, among those it reaches
    weights: list[Tensor]
    compiled: Compiled | None
    refusal: Unsupported | None
    line: str
    alone: str  # why its one row is all there ever is, if it is
    then: AsCalled  # what its body read
    y: list[Any] = field(default_factory=list)
    y_spec: Spec = LEAF  # how what is joined is nested, by output
    leaves: bool = False  # values in attributes, and the plan is that of a step that does not
    asks: bool = False  # its rows for an answer, in Python
    inner: Calls | None = None  # those that one step makes
    known: list[Any] = field(default_factory=list)  # sizes of time and batch, in its trace
    sizes: Referred = field(default_factory=dict)  # that are left open, and its body refers to
    open: list[Any] = field(default_factory=list)  # the same, in the trace
    read: list[Any] = field(default_factory=list)  # the plain values that it reads, when it was traced
    again: tuple[Calls, ...] = ()  # those that one step makes with tensors in place of sizes

    @property
    def ragged(self) -> bool:
        """Whether it runs over sequences of different lengths."""
        return isinstance(self.x[0], LoDTensor)

    @property
    def above(self) -> bool:
        """Whether its steps are whole sequences."""
        first, level = self.x[0], self.sweep.level
        if not isinstance(first, LoDTensor) or level is None:
            return False
        return level % first.lod_level != first.lod_level - 1

    @property
    def pads(self) -> bool:
        """Whether its step sees rows of a ragged memory side by side, to a length that stays open."""
        spec = getattr(self.loop.body, "state_spec", None)
        return spec is not None and has_padded(spec)

    @property
    def sweep(self) -> Sweep:
        """How it goes over its rows."""
        assert self.loop.sweep is not None
        return self.loop.sweep

    @property
    def axis(self) -> int:
        """The axis of time of what is not ragged."""
        return self.sweep.axis if self.ragged else self.sweep.axis % self.x[0].dim()

    @property
    def where(self) -> str:
        """What it is called in errors."""
        return f"step '{self.loop.body.name}' ({self.line})"

    @property
    def parts(self) -> list[Any]:
        """What one step is given of x: the first of each, or of sequences a short one for each."""
        if not self.ragged:
            empty = [list(leaf.shape) for leaf in self.x if not leaf.shape[self.axis]]
            if empty:
                raise IRError(
                    f"the recurrence of {self.where} cannot be written: the example has no step",
                    got=empty[0],
                    expected=f"2 or more along axis {self.axis}",
                    remedy="a longer example",
                )
            return [leaf.select(self.axis, 0) for leaf in self.x]
        if not self.above:
            tables = [leaf.values for leaf in self.x]
            batch = len(self.x[0].structure.levels[-1]) - 1
            places = torch.arange(batch)
            return [t[places % len(t)] if len(t) else t.new_zeros(batch, *t.shape[1:]) for t in tables]
        batch = len(self.state[0]) if self.state else 0
        offsets, some = LoD.from_lengths([[2] * batch]).levels, torch.arange(2 * batch)
        parts = []
        for leaf in self.x:
            rows = leaf.values
            rows = rows[some % len(rows)] if len(rows) else rows.new_zeros(2 * batch, *rows.shape[1:])
            parts.append(LoDTensor.of(rows, LoD.trusted(offsets, 2 * batch)))
        return parts

    def loop_with(self, sizes: Sequence[Any]) -> Loop:
        """The loop with these in place of the sizes that its body refers to."""
        if not self.sizes:
            return self.loop
        body: Any = self.loop.body
        function = with_sizes(body.function, dict(zip(self.sizes, sizes, strict=True)))
        return replace(self.loop, body=body.over(function))

    def calls_with(self, sizes: Sequence[Any]) -> Calls | None:
        """The calls of one step with these in place of the sizes that its body refers to."""
        if self.inner is None or not sizes or not self.inner.numbers():
            return self.inner
        loop = self.loop_with(sizes)
        calls = noted_calls(self.inner.target, lambda: iteration(loop, self.parts, self.state, ()))
        self.again += (calls,)
        return calls

    def outputs(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The outputs of the loop from the leaves of what is joined and what is carried last."""
        n = len(self.y)
        joined = unflatten(self.y_spec, list(leaves[:n]))
        return joined | {output: leaves[n + place] for output, place in self.loop.finals}
