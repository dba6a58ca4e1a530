"""Steps without an input: as many as the caller says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.data import in_graph
from stepnet.data.arguments import brief
from stepnet.data.attributes import begins_by_itself
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD, integers
from stepnet.data.tree import flatten
from stepnet.errors import StepError

from .step import Clock, boot_state


def clock(step: Any, x: Any, state: Any, steps: Any, axis: int) -> tuple[Clock, Any]:
    """The input of a loop that has none, for the sequences of a state; and that state.

    Args:
        step: what says the initial state, if `steps` says how many sequences there are.
        x: must be None.
        state: the initial state, one row per sequence; or None.
        steps: how many for all sequences, or a number for each.
        axis: the time axis of a y of tensors.

    Raises:
        StepError: the arguments do not fit.
    """
    one = isinstance(steps, Tensor) and not steps.dim()
    if state is None and isinstance(steps, (Tensor, list, tuple)) and not one and begins_by_itself(step):
        state = boot_state(step, len(steps))
    leaves = [leaf for leaf in flatten(state)[0] if isinstance(leaf, Tensor) and leaf.dim()]
    if x is not None or not leaves:
        raise StepError(
            "steps= is for a step without an input, with an initial state",
            got="x besides" if x is not None else "no state, which would say how many sequences there are",
            remedy="recurrent(step, steps=n, state=...) calls step(None, state)",
        )
    like = leaves[0]
    steps = int(steps) if isinstance(steps, np.integer) else steps
    if isinstance(steps, torch.SymInt) or (
        isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0
    ):
        rows = torch.zeros(steps, like.shape[0], 1, device=like.device)
        return Clock(rows.movedim(0, axis) if axis else rows), state
    if not isinstance(steps, (Tensor, list, tuple)) or one:
        raise StepError(
            "steps must be a number, or one for each sequence",
            got=brief(steps),
            remedy="steps=10 or steps=[3, 1, 2]",
        )
    known: list[int] = []  # to Dynamo, numbers that may change from call to call
    if in_graph.is_followed() and not isinstance(steps, Tensor) and all(type(n) is int for n in steps):
        known = [*steps]
    none = not isinstance(steps, Tensor) and not steps  # of which torch would make floats
    try:
        lengths = torch.empty(len(steps), dtype=torch.int64) if known or none else torch.as_tensor(steps)
    except (TypeError, ValueError, RuntimeError):  # lists of other lengths, texts
        lengths = torch.empty(0, 0)
    if lengths.dim() != 1 or len(lengths) != like.shape[0] or lengths.is_floating_point():
        raise StepError(
            "steps must be a number, or one for each sequence",
            got=repr(steps),
            expected=f"{like.shape[0]} whole numbers",
        )
    if in_graph.is_followed():
        rows, lod = in_graph.of_lengths(lengths, known)
        return Clock(LoDTensor.of(rows.to(like.device), lod)), state
    lod = LoD.from_lengths([integers(lengths, "recurrent: 'steps'")])
    return Clock(LoDTensor.of(torch.zeros(lod.rows, 1, device=like.device), lod)), state
