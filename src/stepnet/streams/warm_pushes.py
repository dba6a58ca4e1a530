"""Pushes to one stream, frame after frame: what the one before found out is not found out again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.api import warm
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import transforms_active
from stepnet.data.offsets import LoD
from stepnet.data.tree import flatten, unflatten
from stepnet.data.unpatched_torch import is_contiguous
from stepnet.executors.setting import check_backend

from .keeper import Keeper, is_alone, steps_of
from .states import Left, States


class WarmPush:
    """The next push of a stream that was pushed to at last, with as many rows, to a module whose recurrences
    all ran as calls like ones before. Python's part of a frame would else take as long as its arithmetic.

    Args:
        stream: the record of it; another one stands in its place once it is closed, reset or loaded.
        keeper: of the last push.
        x: what was pushed.
    """

    def __init__(self, stream: Any, keeper: Keeper, x: LoDTensor) -> None:
        self.stream = stream
        self._states: States = keeper.states
        self._slots = keeper.slots
        self._steps = [(*steps, spec) for steps, (_, spec) in zip(keeper.warm, keeper.ran, strict=True)]
        self._structure: LoD = x.structure
        self._shape = x.values.shape

    def push(self, module: Any, rows: Any) -> Tensor | None:
        """The output for the next rows; None, and nothing is done: they go the way of all pushes."""
        left = self._states.left_in(self._slots)
        if (
            left is None
            or type(rows) is not Tensor
            or rows.shape != self._shape
            or rows.requires_grad
            or rows.is_inference()
            or not is_contiguous(rows)
            or torch.is_inference_mode_enabled()
            or torch._C._get_tracing_state() is not None
            or transforms_active()
            or not is_alone()
        ):
            return None
        x = LoDTensor.of(rows, self._structure)
        steps, backend = steps_of(module, x)
        if len(steps) != len(self._steps):
            return None
        alone = len(steps) == 1  # of several, the first may have drawn noise when another cannot go so
        way = False, -1, 0, check_backend(backend)
        found: list[list[Tensor]] = []
        with_gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            for own, (known, step, spec), state in zip(steps, self._steps, left, strict=True):
                if own is not known:
                    return None
                out = warm(step, x, unflatten(spec, state), way, draws=alone)[1]
                if out is None or type(out[0]) is not LoDTensor:
                    return None
                x = out[0]
                found.append(flatten(out[1])[0])
        finally:
            torch._C._set_grad_enabled(with_gradients)
        self._states.leave_again(Left(self._slots, found))
        return x.values
