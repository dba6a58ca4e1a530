"""Calls like one before that had no plan: they run by the plain loop, without the search for one.

The plain loop is what a call means, so nothing of what is looked at here makes a result right or wrong. It
tells whether a look at the step would find the same: the step reads what it read, and its inputs look as they
did. Of one step, as of streams and acting, only the step is called: a loop takes longer to make than to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import settings
from stepnet.data.tensor_guards import alike
from stepnet.data.tree import LEAF, flatten, unflatten
from stepnet.executors import naive
from stepnet.executors.autograd import is_computed_again
from stepnet.executors.base import Executor
from stepnet.executors.registry import tried

from .calls_in_progress import call_of
from .checkpointed_calls import note_plain
from .kept_by_step import KeptByStep
from .walked_steps import unchanged_step

_MOST = 16  # looks of the calls of one step


class _Like(NamedTuple):
    """What such calls have in common."""

    reads: tuple[Any, ...]  # the key of what the step reads
    tried: tuple[Executor, ...]
    alike: Callable[..., bool]
    seen: Callable[[], object]  # called at each: steps of its kind are in use


_steps = KeptByStep[Bounded[Any, _Like]]()


def is_declined(of: Any, step: Any, x: Any, state: Any, way: tuple[bool, int, int, str]) -> bool:
    """Whether a call is like one that had no plan. `of`: see `warm_calls.Steps`."""
    known = _steps.of(step)
    if known is None or torch._C._len_torch_function_stack():
        return False
    x_leaves, x_spec = _side_by_side(x)
    states, spec = ([], None) if state is None else _side_by_side(state)
    like = known.get((type(x_leaves[0]), x_spec, spec, way, settings())) if x_leaves else None
    if like is None or like.tried is not tried(way[3]):
        return False
    unchanged = unchanged_step(of.found_by(step))
    if unchanged is None or unchanged[0].key != like.reads:
        return False
    if not like.alike(*map(_rows, x_leaves), *states, *unchanged[1]):
        return False
    like.seen()
    return True


def note_declined(asked: Any, seen: Callable[[], object]) -> None:
    """A call had no plan, as one like it before; see `warm_calls.Asked`. `seen`: see `_Like`."""
    known = _steps.made(asked.step, lambda _: Bounded(_MOST))
    if known is None:
        return
    x_spec, spec = asked.form
    rows = [*map(_rows, asked.x)]
    for form, states in ((spec, asked.states), (None, [])):  # its own initial state is as it was
        given = [*rows, *states]
        like = alike([*given, *asked.tensors], any_rows=len(given))
        known[type(asked.x[0]), x_spec, form, tuple(asked.way), settings()] = _Like(
            asked.key, tried(asked.way.backend), like, seen
        )


def run_one_step(of: Any, step: Any, x: Any, state: Any, axis: int) -> tuple[Any, Any] | None:
    """y and the final state of a declined call of one step of a tensor; None for any other."""
    if type(x) is not Tensor or x.shape[axis] != 1 or not x.numel():
        return None
    if state is None or is_computed_again():
        return None
    function = of.wrap(step)
    states, spec = flatten(state)
    with call_of(function):
        note_plain(step)
        y, new = naive.run_one(of.body(function, LEAF, spec), x, states, axis)
    # of its own: the step may give what it refers to
    return y, unflatten(spec, [t.clone(memory_format=torch.contiguous_format) for t in new])


def _side_by_side(tree: Any) -> tuple[list[Any], Any]:
    return ([tree], LEAF) if type(tree) is Tensor or type(tree) is LoDTensor else flatten(tree)


def _rows(leaf: Any) -> Any:
    return leaf.values if type(leaf) is LoDTensor else leaf


def forget_declined() -> None:
    """Look for a plan at each call."""
    _steps.clear()
