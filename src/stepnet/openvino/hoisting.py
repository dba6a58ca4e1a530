"""What a body computes from invariants alone is computed once, before its loop.

    for t: k = f(m); h = g(x[t], k, h)     ->     k = f(m); for t: h = g(x[t], k, h)

What a Loop picks from an invariant by the number of its iteration becomes a slice of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from stepnet.file_model import FileBody
from stepnet.ir.loop import Invariant, Iteration, Loop, Slice

from .graph import Graph, Node

Fit = Callable[["Node", list[Any]], None]


@dataclass(frozen=True)
class Pick:
    """A Gather from an invariant by the number of the iteration."""

    label: str
    source: int  # slots
    result: int
    axis: int
    single: bool  # the axis is dropped

    def __call__(self, part: Tensor) -> Tensor:
        """The result of the Gather, from a slice."""
        return part.squeeze(self.axis) if self.single else part


class Hoisted:
    """A body without what it computes from invariants alone.

    Args:
        graph: the body.
        loop: its loop, whose body has the parameters of the graph in their order.

    Attributes:
        loop: the loop over what is left; numbers of the iteration that are not read are no inputs of it.
        before: the nodes that run once, before the loop.
    """

    def __init__(self, graph: Graph, loop: Loop) -> None:
        self.graph = graph
        slots = dict(zip(loop.body.parameters, graph.parameter_slots, strict=True))
        self._given = [(port.source, slots[port.parameter]) for port in loop.invariants]
        names = {slots[port.parameter]: port.parameter for port in loop.invariants}
        known = {slot for _, slot in self._given}
        constants = {slot for slot, _ in graph.constant_slots}
        self.before: list[Node] = []
        self.nodes: list[Node] = []
        for node in graph.nodes:
            inputs = set(node.inputs)
            alone = bool(inputs & known) and inputs <= known | constants
            if alone and not node.layer.bodies and not hasattr(node.run, "reports"):
                self.before.append(node)
                known.update(node.outputs)
                names |= dict.fromkeys(node.outputs, node.layer.name)
            else:
                self.nodes.append(node)
        numbers = {slots[p.parameter]: p.rank for p in loop.inputs if isinstance(p, Iteration)}
        found = ((i, _pick(node, known, numbers)) for i, node in enumerate(self.nodes))
        self.picks = {i: pick for i, pick in found if pick is not None}
        # what the steps read and give
        read = {slot for i, node in enumerate(self.nodes) if i not in self.picks for slot in node.inputs}
        read.update(graph.result_slots)
        own = {slot for _, slot in self._given}
        unread = (own | numbers.keys()) - read
        ports = [port for port in loop.inputs if slots[port.parameter] not in unread]
        parameters = [name for name in loop.body.parameters if slots[name] not in unread]
        self._made = {f"{names[slot]} #{slot}": slot for slot in sorted((known - own) & read)}
        self._sources = [port.source for port in ports if not isinstance(port, Iteration)]
        ports += [Invariant(label, label) for label in self._made]
        picks = [*self.picks.values()]
        ports += [Slice(pick.label, pick.label, axis=pick.axis, part_size=1) for pick in picks]
        self.slots = [*(slots[name] for name in parameters), *self._made.values(), *(p.result for p in picks)]
        self.name, self.results = loop.body.name, loop.body.results
        self.parameters = (*parameters, *self._made, *(pick.label for pick in picks))
        self.loop = Loop(self, ports, loop.outputs, loop.back_edges).settled()
        said = repr((graph.content, self.slots, sorted(self.picks.items())))
        self.hidden = FileBody(self, self.name, hashlib.sha256(said.encode()).hexdigest())

    def feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The sources of `loop`, from those of the loop as it was.

        Raises:
            IRError: a layer does not take its inputs.
        """
        found = {source: feeds[source] for source in self._sources}
        if not self._made and not self.picks:
            return found
        slots: list[Any] = [None] * self.graph.slot_count
        for slot, name in self.graph.constant_slots:
            slots[slot] = getattr(self.graph, name)
        for source, slot in self._given:
            slots[slot] = feeds[source]
        for node in self.before:
            for slot, result in zip(node.outputs, node.run_on(node.arguments(slots)), strict=False):
                slots[slot] = result
        found |= {label: slots[slot] for label, slot in self._made.items()}
        return found | {pick.label: slots[pick.source] for pick in self.picks.values()}

    def constants(self) -> list[Tensor]:
        """Every constant of the body."""
        return list(self.constants_by_slot().values())

    def constants_by_slot(self) -> dict[int, Tensor]:
        """Every constant of the body, and where it is read."""
        return {slot: getattr(self.graph, name) for slot, name in self.graph.constant_slots}

    def reading(self, constants: Sequence[Tensor]) -> Callable[..., tuple[Any, ...]]:
        """The body with other tensors for its constants, in the order of `constants`."""
        return partial(self, constants=dict(zip(self.constants_by_slot(), constants, strict=True)))

    def __call__(
        self, *values: Any, fit: Fit | None = None, constants: Mapping[int, Tensor] | None = None
    ) -> tuple[Any, ...]:
        """Run it; `fit(node, arguments)` may change what a layer is given. `constants`: others, by slot."""
        slots: dict[int, Any] = dict(self.constants_by_slot() if constants is None else constants)
        slots |= dict(zip(self.slots, values, strict=True))
        for i, node in enumerate(self.nodes):
            if i in self.picks:
                slots[node.outputs[0]] = self.picks[i](slots[node.outputs[0]])
                continue
            arguments = node.arguments({slot: slots.get(slot) for slot in node.inputs})
            if fit is not None:
                fit(node, arguments)
            slots.update(zip(node.outputs, node.run_on(arguments), strict=False))
        return tuple(slots[slot] for slot in self.graph.result_slots)


def _pick(node: Node, known: set[int], numbers: Mapping[int, int]) -> Pick | None:
    """A Gather that takes one element after the other of what does not change."""
    if node.layer.type.lower() != "gather" or node.inputs[1] not in numbers:
        return None
    rank = numbers[node.inputs[1]]
    axis = node.fixed.get(2)
    if isinstance(axis, list) and len(axis) == 1:
        axis = axis[0]
    if node.inputs[0] not in known or rank > 1 or type(axis) is not int:
        return None
    if node.layer.said.int("batch_dims", 0) != 0:
        return None
    label = f"{node.layer.name} #{node.outputs[0]}"
    return Pick(label, node.inputs[0], node.outputs[0], axis, rank == 0)
