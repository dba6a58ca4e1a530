"""A derivative's loop on what the run of its step kept for backward, so that nothing is computed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.compiler.passes.reuse_saved_rows import KnownRows, read_known_rows
from stepnet.data.dtypes import dtype_of
from stepnet.data.modes import autocast_dtype, nothing_around, sees_saved_tensors
from stepnet.data.storage import distinct
from stepnet.errors import Unsupported
from stepnet.executors.autograd import is_computed_again
from stepnet.executors.call import Call, KeptRows
from stepnet.executors.gradients import gradients
from stepnet.executors.higher_order import asked_again
from stepnet.executors.loop import PreparedLoop, shift
from stepnet.executors.memory import are_written
from stepnet.executors.ready import Ready, make_loop
from stepnet.executors.tables import EARLIER, earlier


class SharedRun(NamedTuple):
    """A run that autograd does not see: what it gave, and what its backward needs; see `gradients`."""

    call: Call
    inputs: Sequence[Tensor]
    out: list[Tensor]
    kept: Sequence[Tensor]
    led: Sequence[str]
    known: Mapping[str, Tensor]

    @torch.no_grad()
    def gradients(self, grads: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
        """The gradient of each input."""
        found = gradients(self.call, self.inputs, self.kept, grads, needed, self.led, self.known)
        return asked_again(self.call, found, self.inputs, grads, needed)


class SharedRows:
    """Runs of the forward loop of a derivative that read what runs of its step kept.

    Args:
        step, derivative: the plans of both.
        weights: for each weight of the derivative, which one of the step's it is, if it is one.
    """

    def __init__(self, step: Ready, derivative: Ready, weights: Sequence[int | None]) -> None:
        self._step, self._derivative, self._weights = step, derivative, weights

    @cached_property
    def _made(self) -> tuple[KnownRows, PreparedLoop] | None:
        """Made where it is asked for: it is one more loop to build."""
        step, plan = self._step.plan, self._derivative.plan
        if plan.random or plan.paired or plan.backward is None:
            return None
        same = dict(zip(plan.x, step.x, strict=False)) | dict(zip(plan.states, step.states, strict=False))
        count, both = len(step.weights), zip(plan.weights, self._weights, strict=False)
        same |= {name: step.weights[k] for name, k in both if k is not None and k < count}
        executor = self._derivative.executor
        kept = {*step.y, *self._step.extra, *step.shifted}
        known = read_known_rows(plan.forward, step.forward, same, kept, fuse=executor.form == "fused")
        if known is None:
            return None
        try:
            loop = make_loop(executor, known.loop)
        except Unsupported:
            return None
        loop.hide(self._derivative.extra)
        return known, loop

    def run(self, call: Call, inputs: Sequence[Tensor], kept: KeptRows) -> SharedRun | None:
        """Run it. None: it is to compute all anew.

        Args:
            call, inputs: of the derivative.
            kept: by the run of the step.
        """
        plan, layout = call.ready.plan, call.layout
        if not kept.rows or not layout.rows or call.ready.is_few(layout) or call.noise is not None:
            return None  # of few rows, what is by places is faster
        if are_written(kept.written) or is_computed_again() or not nothing_around():
            return None
        if autocast_dtype("cpu") is not None or sees_saved_tensors() or self._made is None:
            return None
        known, loop = self._made
        x, states, weights = plan.parted(inputs)
        given = self._tables(known, kept, dict(zip(self._step.plan.states, states, strict=False)), call)
        if given is None:
            return None
        values = dict(zip((*plan.x, *plan.weights), (*x, *weights), strict=False)) | call.constants | given
        boots = {
            name: t.to(call.ready.carried_as[name])
            for name, t in zip(plan.states, states, strict=True)
            if name not in given
        }
        with torch.no_grad():
            values, finals = loop.run(values, boots, layout)
        out = [values[name] for name in plan.y]
        for name, t in zip(plan.states, states, strict=True):
            # of what was known the last value is a name for its gradient: nobody reads it
            out.append(finals[name].to(t.dtype) if name in finals else t.new_empty(0))
        if not call.ready.owned:  # one that is there twice has a gradient for each, told apart by what it is
            out = distinct(out, inputs)
        rows = [*out[: len(plan.y)], *(values[name] for name in call.ready.extra)]
        led = [name for name in plan.shifted if EARLIER + name in values]
        return SharedRun(call, inputs, out, rows, led, given)

    def _tables(
        self, known: KnownRows, kept: KeptRows, boots: Mapping[str, Tensor], call: Call
    ) -> dict[str, Tensor] | None:
        """What is known, by name; None if it is no table of these rows."""
        step, kinds, layout = self._step.plan, call.ready.plan.forward.body.values, call.layout
        at_hand = dict(zip((*step.y, *self._step.extra), kept.rows, strict=True))
        new = dict(zip(step.states, step.new_states, strict=True))
        found: dict[str, Tensor] = {}
        for name, of in known.rows.items():
            kind, shifted = kinds[name], of not in at_hand
            rows = at_hand[new[of] if shifted else of]
            if rows.dtype is not dtype_of(kind.dtype) or rows.shape != (layout.rows, *kind.shape):
                return None
            if shifted:
                before = earlier(rows, layout.stride) if of in kept.led else None
                rows = shift(rows, boots[of].to(rows.dtype), layout) if before is None else before
            found[name] = rows
        return found
