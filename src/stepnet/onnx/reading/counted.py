"""A Loop that nothing but its trip count ends, as a loop over rows.

for i: x = Gather(xs, i); h = tanh(h W + x)     ->     what a Scan over xs is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stepnet.file_model import LoopReport, plainly_fed
from stepnet.file_model.scan_loop import ScanLoop

from .info import Info

if TYPE_CHECKING:
    from .graph import Graph, Step


class PickedSteps:
    """The body of such a Loop without what it picks by the number of its iteration, which it is fed; and with
    the number, if it computes with it."""

    def __init__(self, body: Graph) -> None:
        self.body = body
        number = body.inputs[0]
        self.picks = [step for step in body.steps if _is_pick(step, number)]
        self.rest = [step for step in body.steps if step not in self.picks]
        read = {value for step in self.rest for value in step.inputs} | set(body.outputs)
        self.counts = number in read
        self.captured = [value for value in body.captured if value in read]
        self.given = body.inputs[2:]

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures."""
        return f"picked {self.body.content}"

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The new states and what is joined, from the states, what is picked, and the number."""
        made = [step.outputs[0] for step in self.picks]
        given = [*self.given, *made, *([self.body.inputs[0]] if self.counts else [])]
        going = torch.ones((), dtype=torch.bool)
        values = {**around, self.body.inputs[1]: going, None: None}
        values |= dict(zip(given, arguments, strict=True))
        return self.body.through(self.rest, values, None)[1:]


def _is_pick(step: Step, number: Any) -> bool:
    node = step.info.node
    return node.op_type == "Gather" and node.inputs[1] is number and node.inputs[0] is not number


class CountedLoop:
    """Runs such a Loop.

    Args:
        node: the Loop.
        body: its graph.
        states: how many are carried.
        joined: how many results are joined.
    """

    def __init__(self, node: Info, body: Graph, states: int, joined: int) -> None:
        self.reports, self.steps = LoopReport(node.where), PickedSteps(body)
        why_not = None
        if any(step.info.bodies for step in body.steps):
            why_not = "its body holds a loop or a branch"
        elif any(pick.info.node.inputs[0] not in body.captured for pick in self.steps.picks):
            why_not = "its body picks from what it computes"
        cut = [(pick.info.get("axis", 0), 0) for pick in self.steps.picks]
        name = node.node.name or "Loop"
        self.scan = ScanLoop(
            self.steps, name, states, cut, [(0, 0)] * joined, self.reports, why_not, counts=self.steps.counts
        )

    def __call__(self, trips: int, state: Sequence[Any], around: Mapping[Any, Any]) -> Sequence[Any] | None:
        """The last states and the joined tables; None: it is not compiled, and the report says why."""
        sources = [around[pick.info.node.inputs[0]] for pick in self.steps.picks]
        fed = (*state, *sources, *(around[value] for value in self.steps.captured))
        if not trips or not plainly_fed(fed):
            return None
        body = self.scan.body
        out = self.scan.compiled(dict(zip(body.parameters, fed, strict=False)), steps=trips)
        return None if out is None else tuple(out[name] for name in body.results)
