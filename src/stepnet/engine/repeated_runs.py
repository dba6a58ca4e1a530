"""Runs of one plan whose inputs look like those of the run before: by places, not by names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.modes import autocast_dtype, nothing_around, sees_saved_tensors
from stepnet.data.tensor_guards import alike
from stepnet.executors.autograd import is_computed_again, run_direct
from stepnet.executors.call import Call, goes_by_places
from stepnet.executors.direct import Direct, Lately
from stepnet.executors.gradients import gradients
from stepnet.executors.higher_order import asked_again


class Unrecorded(NamedTuple):
    """A run that autograd does not see: what it gave, and what its backward needs."""

    call: Call
    direct: Direct
    inputs: Sequence[Tensor]
    out: list[Tensor]
    kept: Sequence[Tensor]

    @torch.no_grad()
    def gradients(self, grads: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
        """The gradient of each input."""
        saved, n = [*self.inputs, *self.kept], len(self.inputs)
        found = self.direct.gradients(saved, grads, tuple(needed), self.call.layout)
        if found is None:
            kept = self.direct.by_names(saved, self.call.layout)[n:]
            found = gradients(self.call, self.inputs, kept, grads, needed)
        return asked_again(self.call, found, self.inputs, grads, needed)


class Repeats:
    """The runs of a plan."""

    def __init__(self) -> None:
        self._looks: tuple[Callable[..., bool], Lately] | None = None

    def run(self, call: Call, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """The rows of each y leaf, then the last value of each state; None: it is to go by names."""
        direct = self._direct(call, inputs)
        return None if direct is None else run_direct(direct, lambda: call, inputs, call.layout)

    def unrecorded(self, call: Call, inputs: Sequence[Tensor]) -> Unrecorded | None:
        """As `run`, where gradients are asked of what it gives and not of autograd."""
        direct = self._direct(call, inputs)
        if direct is None or not direct.trains:
            return None
        with torch.no_grad():
            found = direct.forward(inputs, call.layout)
        return None if found is None else Unrecorded(call, direct, inputs, *found)

    def _direct(self, call: Call, inputs: Sequence[Tensor]) -> Direct | None:
        if call.constants or call.noise is not None or call.ready.plan.paired or not nothing_around():
            return None
        if autocast_dtype("cpu") is not None or (torch.is_grad_enabled() and sees_saved_tensors()):
            return None
        if is_computed_again():
            return None
        if self._looks is None or not self._looks[0](*inputs):
            plain = goes_by_places(call.ready, call.constants, inputs)
            self._looks = (alike(inputs, any_rows=len(call.ready.plan.x)), Lately()) if plain else None
            return None
        return self._looks[1].direct(call.ready, call.layout, inputs, (), True)
