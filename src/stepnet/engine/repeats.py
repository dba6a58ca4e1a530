"""Runs of one plan whose inputs look like those of the run before: by places, not by names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.data.alike import alike
from stepnet.data.modes import autocast_dtype, sees_saved_tensors
from stepnet.executors.autograd import run_direct
from stepnet.executors.call import Call
from stepnet.executors.direct import Lately
from stepnet.executors.setting import nothing_around


class Repeats:
    """The runs of a plan."""

    def __init__(self) -> None:
        self._looks: tuple[Callable[..., bool], Lately] | None = None

    def run(self, call: Call, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """The rows of each y leaf, then the last value of each state; None: it is to go by names."""
        if call.constants or call.noise is not None or call.ready.plan.paired or not nothing_around():
            return None
        if autocast_dtype("cpu") is not None or (torch.is_grad_enabled() and sees_saved_tensors()):
            return None
        if self._looks is None or not self._looks[0](*inputs):
            plain = not any(t.is_complex() or t.is_neg() or t._is_zerotensor() for t in inputs)
            self._looks = (alike(inputs, any_rows=len(call.ready.plan.x)), Lately()) if plain else None
            return None
        direct = self._looks[1].direct(call.ready, call.layout, inputs, ())
        return None if direct is None else run_direct(direct, lambda: call, inputs)
