"""Which results carry a gradient, and which inputs one reaches: as autograd says of the plain loop.

A plan says it of one step. Over the steps of a call it depends on how long the sequences are, and on what
needs a gradient: a new state that is cut off carries none, but a sequence of no steps hands on its
initial state.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from stepnet.ir.plan import Plan

from .layout import Layout

Flow = tuple[tuple[int, ...], ...]

_ONE, _SEVERAL = (Layout.ragged(torch.tensor(offsets), False) for offsets in ([0, 1], [0, 0, 1, 3]))


def carry_gradients(plan: Plan, layout: Layout, needs: Sequence[bool]) -> tuple[bool, ...]:
    """For each y leaf and final state, whether the plain loop's would require a gradient.

    Args:
        plan: the plan.
        layout: where the rows stand.
        needs: for each input (x, states, weights), whether it requires a gradient.
    """
    return _carry(plan.requires, len(plan.x), len(plan.states), layout.turns, layout.ends, tuple(needs))


def carry_for_any_lengths(plan: Plan, needs: Sequence[bool]) -> bool:
    """Whether `carry_gradients` says the same of all sequences, of which one has a step: what holds after one
    of a step, and after those of no steps, of one and of two, holds after all."""
    return carry_gradients(plan, _ONE, needs) == carry_gradients(plan, _SEVERAL, needs)


def moved(plan: Plan, layout: Layout, moving: Sequence[bool]) -> tuple[bool, ...]:
    """For each y leaf and final state, whether autograd leads from it to an input that moves.

    Args:
        plan: the plan.
        layout: where the rows stand.
        moving: for each input (x, states, weights), whether it moves.
    """
    return _carry(plan.flow, len(plan.x), len(plan.states), layout.turns, layout.ends, tuple(moving))


def reached(plan: Plan, layout: Layout, given: Sequence[bool]) -> tuple[bool, ...]:
    """For each input (x, states, weights), whether a gradient of the results that have one gets there.

    Args:
        plan: the plan.
        layout: where the rows stand.
        given: for each y leaf and final state, whether it has a gradient.
    """
    sizes = (len(plan.x), len(plan.states), len(plan.weights))
    return _reach(plan.flow, *sizes, layout.turns, layout.ends, tuple(given))


def reached_for_any_lengths(plan: Plan, given: Sequence[bool]) -> bool:
    """Whether `reached` says the same of all sequences, of which one has a step."""
    return reached(plan, _ONE, given) == reached(plan, _SEVERAL, given)


@functools.lru_cache(maxsize=1024)  # one answer for all calls of a training loop
def _carry(
    flow: Flow, n_x: int, n_s: int, turns: int, ends: frozenset[int], needs: tuple[bool, ...]
) -> tuple[bool, ...]:
    n_y = len(flow) - n_s
    state = list(needs[n_x : n_x + n_s])
    shown, final = [False] * n_y, [False] * n_s
    for t in range(turns + 1):
        if t in ends:
            final = [a or b for a, b in zip(final, state, strict=True)]
        if t == turns:
            break
        flags = [*needs[:n_x], *state, *needs[n_x + n_s :]]
        out = [any(flags[i] for i in found) for found in flow]
        shown = [a or b for a, b in zip(shown, out[:n_y], strict=True)]
        before, state = state, out[n_y:]
        if state == before:  # every later step says the same, and one of them is the last
            final = [a or b for a, b in zip(final, state, strict=True)]
            break
    return (*shown, *final)


@functools.lru_cache(maxsize=1024)
def _reach(
    flow: Flow, n_x: int, n_s: int, n_w: int, turns: int, ends: frozenset[int], given: tuple[bool, ...]
) -> tuple[bool, ...]:
    n_y = len(flow) - n_s
    found = [False] * (n_x + n_s + n_w)
    ask = [False] * n_s  # the states after step t that have a gradient
    for t in range(turns, 0, -1):
        if t in ends:
            ask = [a or b for a, b in zip(ask, given[n_y:], strict=True)]
        wanted = [*given[:n_y], *ask]
        step = {i for want, inputs in zip(wanted, flow, strict=True) if want for i in inputs}
        before = [n_x + i in step for i in range(n_s)]
        known = all(found[i] for i in step if not n_x <= i < n_x + n_s)
        for i in step:
            found[i] = True
        still = before == ask and all(before[i] or not g for i, g in enumerate(given[n_y:]))
        ask = before
        if known and still:  # every step before says the same
            break
    if 0 in ends:
        ask = [a or b for a, b in zip(ask, given[n_y:], strict=True)]
    found[n_x : n_x + n_s] = ask
    return tuple(found)
