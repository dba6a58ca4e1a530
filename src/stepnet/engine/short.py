"""Dense calls of a few steps: by the step itself, where that is timed faster than its plan.

To run a plan takes some 50 us, or 0.5 ms of many scans and with a gradient; a step or two of a small cell may
take less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.storage import distinct
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.executors.naive import PLAIN
from stepnet.interrupts import let_through

from . import choice

MOST = 4  # steps: with more, plans of all cells that were timed are faster
_ROUNDS = 8  # the first runs of a plan find out where its values are
_AHEAD = 1.1
_TOLD = RuntimeError, TypeError, ValueError, IndexError  # of which the long way says where they were

Out = list[Tensor]  # the leaves of y, and of the final state
_Way = Callable[[Tensor, list[Tensor]], "list[Tensor] | None"]
Inputs = tuple[Tensor, list[Tensor]]  # x, and the leaves of the state


def step_by_step(
    function: Callable[..., Any], x: Tensor, states: Sequence[Tensor], spec: Spec, axis: int, reverse: bool
) -> Out | None:
    """What a step gives on tensors of equal lengths. None: it failed, and the long way says so.

    Args:
        function: the step.
        x: what is cut along `axis`.
        states: what is carried, as leaves, nested like `spec`.
        axis: of the steps.
        reverse: from the end to the beginning.
    """
    rows = x.unbind(axis)
    state: Any = states[0] if spec is LEAF else unflatten(spec, [*states])
    parts: list[list[Tensor]] = []
    try:
        for row in reversed(rows) if reverse else rows:
            y, state = function(row, state)
            parts.append([y] if type(y) is Tensor else flatten(y)[0])
        if reverse:
            parts.reverse()
        joined = [torch.stack(leaf, axis) for leaf in zip(*parts, strict=True)]
    except Exception as error:
        let_through(error)
        if type(error) not in _TOLD:  # a checkpoint, too, ends by one
            raise
        return None
    last = [state] if spec is LEAF else flatten(state)[0]
    # own memory; and a hook on the last state is not to see what comes in for y
    last = distinct([t.clone() if t.requires_grad else t for t in last], [x, *states])
    return joined + last


def is_faster(
    inputs: Inputs,
    weights: Sequence[Tensor],
    by_plan: Callable[..., Out],
    by_itself: Callable[..., Out | None],
) -> str | None:
    """Times of both if a step itself is clearly faster than its plan, and gives tensors that look the same.

    Args:
        inputs: those of a call.
        weights: what else may need a gradient.
        by_plan, by_itself: the ways, of x and the states.
    """
    if not all(t.is_leaf and not t._backward_hooks for t in weights):
        return None  # histories and hooks are the caller's
    x, *states = (t.detach().clone().requires_grad_(t.requires_grad) for t in (inputs[0], *inputs[1]))
    read = (x, *states, *weights)
    versions = [t._version for t in read]
    wanted = [t for t in read if t.requires_grad] if torch.is_grad_enabled() else []
    ways = {"the plan": by_plan, PLAIN.label: by_itself}
    looks: list[Any] = []
    seconds: dict[str, float] = {}

    def once(way: Callable[..., Out | None]) -> None:
        out = way(x, states)
        if out is None:
            raise ValueError("the step fails")
        looks.append([(t.shape, t.dtype) for t in out])
        ends = [t for t in out if t.requires_grad]
        if ends and wanted:
            torch.autograd.grad(ends, wanted, [torch.ones_like(t) for t in ends], allow_unused=True)

    try:
        for number in range(_ROUNDS):
            for name, way in ways.items():
                taken = choice.stopwatch(lambda way=way: once(way))
                seconds[name] = min(taken, seconds.get(name, taken))
            if number and seconds["the plan"] <= seconds[PLAIN.label]:
                return None
    except Exception as error:  # whatever it is, the plan is right
        let_through(error)
        return None
    changed = [t._version for t in read] != versions or any(look != looks[0] for look in looks)
    if changed or seconds[PLAIN.label] * _AHEAD > seconds["the plan"]:
        return None
    return ", ".join(f"{name} {1e6 * taken:.3g} us" for name, taken in seconds.items())
