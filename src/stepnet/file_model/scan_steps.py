"""A loop among the steps of a graph, in the form of a Scan, cut where the nodes around it have steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .model import LoopReport
from .step_rules import Step, Value


@dataclass
class ScanStep:
    """A loop among the steps of a graph, in the form of a Scan.

    Attributes:
        step: it.
        name: of its node.
        first, x, outer: of what it reads, the first states, what is cut, and the rest.
        finals, rows: of what it gives, the last states and what is joined.
        axis: along which all of these are cut and joined.
        turned: whether from the last step to the first.
        one: runs it for one step: from states, tables of one step, and the rest by name, to the new states
            and the tables of one step.
        inside: the steps of its body.
        reports: how it ran last.
    """

    step: Step
    name: str
    first: Sequence[Value]
    x: Sequence[Value]
    outer: Sequence[Value]
    finals: Sequence[Value]
    rows: Sequence[Value]
    axis: int
    turned: bool
    one: Callable[[Sequence[Any], Sequence[Any], Mapping[Value, Any]], tuple[Sequence[Any], Sequence[Any]]]
    inside: Sequence[Step]
    reports: LoopReport


def without_moves(
    steps: Sequence[Step], scan: ScanStep, outputs: Sequence[Value]
) -> tuple[list[Step], ScanStep] | None:
    """The steps of a graph without the nodes that bring the axis of steps to where a loop has it, and back;
    and the loop, cut where the nodes around have it. None: there are none such.

        Transpose [1 0 2]; Scan along 0; Transpose [1 0 2]    ->    Scan along 1

    Args:
        steps: of the graph.
        scan: the loop.
        outputs: of the graph.
    """
    makers = {value: step for step in steps for value in step.outputs}
    readers: dict[Value, list[Step]] = {}
    for step in steps:
        for value in dict.fromkeys(step.inputs):
            readers.setdefault(value, []).append(step)
    before = [makers.get(value) for value in scan.x]
    after = [readers.get(value, []) for value in scan.rows]
    axes = {_source(step, scan.axis) for step in before}
    axes |= {_target(found[0], scan.axis) if len(found) == 1 else None for found in after}
    apart = {*scan.x, *scan.rows}.isdisjoint((*scan.first, *scan.outer, *outputs))
    axis = axes.pop()
    if axes or axis is None or axis == scan.axis or not apart:
        return None
    inner, one = scan.axis, scan.one

    def moved(
        states: Sequence[Any], x: Sequence[Any], outer: Mapping[Value, Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        new, rows = one(states, [table.squeeze(axis).unsqueeze(inner) for table in x], outer)
        return new, [row.squeeze(inner).unsqueeze(axis) for row in rows]

    named = {value: step.inputs[0] for value, step in zip(scan.x, before, strict=True) if step is not None}
    named |= {value: step.outputs[0] for value, (step,) in zip(scan.rows, after, strict=True)}
    step: Any = scan.step
    own = replace(
        step,
        inputs=tuple(named.get(value, value) for value in scan.step.inputs),
        outputs=tuple(named.get(value, value) for value in scan.step.outputs),
    )
    x, rows = [named[value] for value in scan.x], [named[value] for value in scan.rows]
    unread = {v for v in scan.x if readers[v] == [scan.step]}
    gone = [step for step in before if step is not None and step.outputs[0] in unread]
    gone += [step for (step,) in after]
    kept = [own if step is scan.step else step for step in steps if step not in gone]
    return kept, replace(scan, step=own, x=x, rows=rows, axis=axis, one=moved)


def _source(step: Step | None, axis: int) -> int | None:
    """The axis that a node moves to `axis`, and no other; None: it does something else."""
    order = None if step is None else step.order()
    if order is None or not -1 < axis < len(order):
        return None
    rest = [k for at, k in enumerate(order) if at != axis]
    return order[axis] if rest == sorted(rest) else None


def _target(step: Step, axis: int) -> int | None:
    """The axis that a node moves `axis` to, and no other."""
    order = step.order()
    if order is None or axis not in order:
        return None
    at = order.index(axis)
    rest = [k for k in order if k != axis]
    return at if rest == sorted(rest) else None
