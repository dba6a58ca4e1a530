"""Plans behind a call, for tests that look at the schedule."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ir_text import parse_graph, print_graph
from stepnet.checks import checked
from stepnet.compiler import stored
from stepnet.compiler.pipeline import Compiled
from stepnet.engine import find_plan, make, plans
from stepnet.ir.plan import LoopPlan, Plan
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
    loop, feeds = body.as_loop(x_leaves, state_leaves, reverse=reverse, level=-1, axis=axis)
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


@contextlib.contextmanager
def plans_made(
    each: Callable[[Compiled, tuple[Any, ...]], object] = lambda compiled, given: None,
) -> Iterator[list[tuple[Compiled, tuple[Any, ...]]]]:
    """What is compiled in here, none of it read from disk, each with what `stored.load` is given beside
    bytes. Every plan that is made is verified, and handed to `each` at once."""
    made = []
    compile_loop, make_entry = make.compile_loop, plans.make

    def compiled(loop, signature, weights, here, bind, sample, *more):
        found = compile_loop(loop, signature, weights, here, bind, sample, *more)
        made.append((found, (signature, weights)))
        each(*made[-1])
        return found

    def verified(*call):
        entry = make_entry(*call)
        verify_entry(entry)
        return entry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "compile_loop", compiled)
        patch.setattr(plans, "make", verified)
        patch.setattr(make.plan_files, "read", lambda key: None)
        yield made


def read_back(compiled: Compiled, given: tuple[Any, ...]) -> bytes | None:
    """What is written of a plan, after it was read and found to be the same; None if nothing is to be."""
    if compiled.draws or not compiled.is_compared:
        return None
    data = stored.dump(compiled, *given)
    if data is None:
        kinds = {spec.kind for spec in _specs(compiled.y_spec)}
        of_torch = any(node.op == "opaque" for node in compiled.joint.graph.nodes)
        assert of_torch or not kinds <= {None, *stored.TREES.values()}, "a plan is not written"
        return None
    loaded = stored.load(data, *given)
    for what in ("fused", "hoisted", "weights", "y_spec"):
        ours, theirs = (getattr(one, what) for one in (compiled, loaded))
        same = ours == theirs or _said(ours) == _said(theirs)  # NaN equals nothing
        assert same, f"{what} is read as another"
    before, after = compiled.joint.graph, loaded.joint.graph
    assert hash(loaded.y_spec) == hash(compiled.y_spec)
    assert after.values == {name: before.values[name] for name in after.values}
    assert [n.line for n in after.nodes] == [n.line for n in before.nodes]
    assert loaded.constants.keys() == compiled.constants.keys()
    for key, tensor in loaded.constants.items():
        assert torch.allclose(tensor, compiled.constants[key], rtol=0, atol=0, equal_nan=True)
    assert stored.dump(loaded, *given) == data
    return data


def _said(plan: Any) -> str:
    """All that plans compare: not values of a graph that no node has any more."""
    return re.sub(r"mappingproxy\(\{.*?\}\)", "", repr(plan))


def _specs(spec: Any) -> Iterator[Any]:
    yield spec
    for child in spec.children:
        yield from _specs(child)


_seen: dict[int, plans.Entry] = {}  # holds them, so that their ids stay taken


def verify_new_entries(one_in: int = 1) -> None:
    """Verify what the engine made since the last call, or one in so many of it."""
    for entry in list(plans._entries.values()):
        if id(entry) not in _seen:
            _seen[id(entry)] = entry
            if len(_seen) % one_in == 0:
                verify_entry(entry)
