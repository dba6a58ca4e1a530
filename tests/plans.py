"""Plans behind a call, for tests that look at the schedule."""

from __future__ import annotations

from typing import Any

from stepnet.checks import checked
from stepnet.engine import find_plan, plans
from stepnet.front.step import as_loop
from stepnet.ir.plan import LoopPlan, Plan
from stepnet.ir.text import parse_graph, print_graph
from stepnet.ir.verify import verify

BACKENDS = ("naive", "eager", "c")


def entry_of(
    step: Any,
    x: Any,
    state: Any = None,
    *,
    backend: str = "eager",
    reverse: bool = False,
    axis: int = 0,
) -> plans.Entry:
    """What the engine knows of a call: its plan and executor, or why there is none."""
    body, x_leaves, state_leaves = checked(step, x, state, level=-1, axis=axis)
    loop, feeds = as_loop(body, x_leaves, state_leaves, reverse=reverse, level=-1, axis=axis)
    return find_plan(loop, feeds, backend=backend)[0]


def plan_of(step: Any, x: Any, state: Any = None, *, backend: str = "eager", axis: int = 0) -> Plan:
    """The plan of a call; fails if there is none."""
    entry = entry_of(step, x, state, backend=backend, axis=axis)
    assert entry.ready is not None, entry.refusals
    return entry.ready.plan


def ops(loop: LoopPlan | None, *kinds: str) -> list[str]:
    """The ops of a loop's regions of these kinds, in order; of all regions if none is named."""
    if loop is None:
        return []
    return [n.op for r in loop.regions if not kinds or r.kind in kinds for n in r.nodes]


def verify_entry(entry: plans.Entry) -> None:
    """Verify every graph and plan that an entry went through, and print and parse its graphs."""
    compiled = entry.compiled
    if compiled is None:
        return
    verify(compiled.joint.graph, "joint")
    for plan in (compiled.fused, compiled.hoisted):
        verify(plan, "plan")
        for loop in (plan.forward, plan.backward):
            if loop is not None:
                text = print_graph(loop.body)
                again = parse_graph(text)
                assert print_graph(again) == text
                assert again == loop.body or "nan" in text  # which equals nothing
                assert all(again.values[n] == loop.body.values[n] for n in again.values)
    if entry.ready is not None:
        for loop in (entry.ready.forward, entry.ready.backward):
            if loop is not None:
                verify(loop.plan, "adopted" if entry.ready.executor.form == "fused" else "plan")


_seen: dict[int, plans.Entry] = {}  # holds them, so that their ids stay taken


def verify_new_entries(one_in: int = 1) -> None:
    """Verify what the engine made since the last call, or one in so many of it."""
    for entry in list(plans._entries.values()):
        if id(entry) not in _seen:
            _seen[id(entry)] = entry
            if len(_seen) % one_in == 0:
                verify_entry(entry)
