"""Calls of one step: by the step itself, where that is timed faster than its plan.

To run a plan takes some 50 us, or 0.5 ms of many scans and with a gradient; a small cell may take less. Of a
call with a gradient two things count as much: how long it takes itself, and how long with its backward, which
calls of acting and of validation never have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.storage import distinct
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.executors.naive import PLAIN
from stepnet.interrupts import let_through

from . import executor_choice

_ROUNDS = 8  # the first runs of a plan find out where its values are
_TOLD = RuntimeError, TypeError, ValueError, IndexError  # of which the long way says where they were

Out = list[Tensor]  # the leaves of y, and of the final state
Inputs = tuple[list[Tensor], list[Tensor]]  # the leaves of x, and of the state


def one_step(
    function: Callable[..., Any], x: Sequence[Tensor], states: Sequence[Tensor], form: tuple[Spec, Spec],
    axis: int | None,
) -> Out | None:  # fmt: skip
    """What a step gives on x of one row for each sequence. None: it failed, and the long way says so.

    Args:
        function: the step.
        x: one step, as leaves.
        states: what is carried, as leaves.
        form: how both are nested.
        axis: of the steps, in x and y; None: they have none.
    """
    rows = x if axis is None else [t.select(axis, 0) for t in x]
    of_x, spec = form
    state: Any = states[0] if spec is LEAF else unflatten(spec, [*states])
    try:
        y, state = function(rows[0] if of_x is LEAF else unflatten(of_x, [*rows]), state)
        out = [y] if type(y) is Tensor else flatten(y)[0]
        if axis is not None:
            out = [torch.stack([t], axis) for t in out]
    except Exception as error:
        let_through(error)
        if type(error) not in _TOLD:  # a checkpoint, too, ends by one
            raise
        return None
    last = [state] if spec is LEAF else flatten(state)[0]
    if axis is None:
        out, last = [], out + last
    # own memory; and a hook on the last state is not to see what comes in for y
    return out + distinct([t.clone() if t.requires_grad else t for t in last], [*x, *states])


def is_faster(
    inputs: Inputs,
    weights: Sequence[Tensor],
    by_plan: Callable[..., Out],
    by_itself: Callable[..., Out | None],
    besides: float = 0.0,
) -> str | None:
    """Times of both if a step itself is clearly faster than its plan, forward and with a backward together,
    and gives tensors that look the same.

    Args:
        inputs: those of a call.
        weights: what else may need a gradient.
        by_plan, by_itself: the ways, of x and the states.
        besides: seconds that a call takes more by its plan.
    """
    if not all(map(executor_choice.is_bare, weights)):
        return None  # histories and hooks are the caller's
    x, states = ([t.detach().clone().requires_grad_(t.requires_grad) for t in group] for group in inputs)
    read = (*x, *states, *weights)
    if any(t.is_inference() for t in read):
        return None  # whether a step writes into them nobody counts
    versions = [t._version for t in read]
    ways = {"the plan": by_plan, PLAIN.label: by_itself}
    looks: list[Any] = []
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in read)
    laps = (False, True) if recorded else (False,)  # without a backward, and with one
    seconds: dict[tuple[str, bool], float] = {}

    def once(way: Callable[..., Out | None], back: bool) -> None:
        out = way(x, states)
        if out is None:
            raise ValueError("the step fails")
        looks.append([(t.shape, t.dtype) for t in out])
        if back:
            executor_choice.go_back(out, read)

    def taken_by(name: str) -> float:
        """Of both laps, one as much as the other, whichever is the longer."""
        return math.prod(seconds[name, back] for back in laps) ** (1 / len(laps))

    try:
        for number in range(_ROUNDS):
            for back in laps:
                for name, way in ways.items():
                    taken = executor_choice.stopwatch(lambda way=way, back=back: once(way, back)) + (
                        besides if way is by_plan else 0.0
                    )
                    seconds[name, back] = min(taken, seconds.get((name, back), taken))
            if number and taken_by("the plan") <= taken_by(PLAIN.label):
                return None
    except Exception as error:  # whatever it is, the plan is right
        let_through(error)
        return None
    changed = [t._version for t in read] != versions or any(look != looks[0] for look in looks)
    if changed or taken_by(PLAIN.label) * executor_choice.MARGIN > taken_by("the plan"):
        return None
    return ", ".join(f"{name} {1e6 * seconds[name, laps[-1]]:.3g} us" for name in ways)
