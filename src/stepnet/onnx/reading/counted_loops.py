"""A Loop that nothing but its trip count ends, as a loop over rows.

for i: x = Gather(xs, i); h = tanh(h W + x)     ->     what a Scan over xs is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stepnet.export.open_sizes import plain
from stepnet.file_model import LoopReport, plainly_fed
from stepnet.file_model.scan_loop import ScanLoop

from .graph import Graph, Step
from .info import Info


class PickedSteps:
    """The body of such a Loop without what it picks by the number of its iteration, which it is fed; and with
    the number, if it computes with it."""

    def __init__(self, body: Graph) -> None:
        self.body = body
        number = body.inputs[0]
        alike = {None, *body.captured}  # what is the same in all steps
        for step in body.steps:
            alike.update(step.outputs if alike.issuperset(step.inputs) else ())
        self.picks = [step for step in body.steps if _is_pick(step, number) and step.inputs[0] in alike]
        self._before: list[Step] = []  # what makes what is picked from
        wanted = {pick.inputs[0] for pick in self.picks}
        for step in reversed(body.steps):
            if alike.issuperset(step.outputs) and not wanted.isdisjoint(step.outputs):
                self._before.insert(0, step)
                wanted.update(step.inputs)
        self.rest: list[Step] = []
        read = {*body.outputs}
        for step in reversed(body.steps):
            if step not in self.picks and not read.isdisjoint(step.outputs):
                self.rest.insert(0, step)
                read.update(value for value in step.inputs if value is not None)
        self.counts = number in read
        self.captured = [value for value in body.captured if value in read]
        self.given = body.inputs[2:]

    def sources(self, around: Mapping[Any, Any]) -> list[Any]:
        """What is picked from."""
        values: dict[Any, Any] = {**around, None: None}
        for step in self._before:
            values.update(zip(step.outputs, step.call([values[v] for v in step.inputs]), strict=False))
        return [plain(values[pick.inputs[0]]) for pick in self.picks]

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
    return node.op_type in ("Gather", "SequenceAt") and node.inputs[1] is number


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
        cut = [(pick.info.get("axis", 0), 0) for pick in self.steps.picks]
        name = node.node.name or "Loop"
        self.scan = ScanLoop(
            self.steps, name, states, cut, [(0, 0)] * joined, self.reports, why_not, counts=self.steps.counts
        )

    def __call__(self, trips: int, state: Sequence[Any], around: Mapping[Any, Any]) -> Sequence[Any] | None:
        """The last states and the joined tables; None: it is not compiled, and the report says why."""
        if not trips or not plainly_fed((*state, *around.values())):
            return None
        fed = (*state, *self.steps.sources(around), *(around[value] for value in self.steps.captured))
        body = self.scan.body
        out = self.scan.compiled(dict(zip(body.parameters, fed, strict=False)), steps=trips)
        return None if out is None else tuple(out[name] for name in body.results)
