"""What a body computes from invariants alone is computed once, before its loop.

    for t: k = f(m); h = g(x[t], k, h)     ->     k = f(m); for t: h = g(x[t], k, h)

What a Loop picks from an invariant by the number of its iteration becomes a slice of it.

A matmul of one row with an invariant matrix of each sequence, as attention over a memory has, becomes a sum
of products along the last axis: the matrix is transposed once, and the loop reads it as it lies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.file_model import FileBody
from stepnet.ir.loop import Invariant, Iteration, Loop, Slice

from .graph import Graph, Node
from .records import Layer

Value = tuple[int, bool]  # a slot of the graph, and whether its last two axes are swapped


Fit = Callable[["Node", list[Any]], None]


@dataclass(frozen=True)
class Product:
    """A matmul with an invariant. `matrix` is held so that its last axis is the one that is summed over."""

    row: int
    turned: bool  # whether the other operand is transposed
    matrix: Value
    after: bool  # row x matrix, else matrix x column

    def __call__(self, row: Tensor, matrix: Tensor) -> Tensor:
        """The result of the matmul."""
        if self.turned == self.after:  # as a row, which a matrix x column has transposed
            row = row.transpose(-1, -2)
        fits = row.dim() == matrix.dim() >= 3 and row.dtype == matrix.dtype
        if not fits or row.shape[-2] != 1 or row.shape[-1] != matrix.shape[-1]:  # not as the file declares it
            if self.after:
                return torch.matmul(row, matrix.transpose(-1, -2))
            return torch.matmul(matrix, row.transpose(-1, -2))
        return (row * matrix).sum(-1).unsqueeze(-2 if self.after else -1)


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
        products: whether matmuls of rows with invariants become sums of products.

    Attributes:
        loop: the loop over what is left; numbers of the iteration that are not read are no inputs of it.
    """

    def __init__(self, graph: Graph, loop: Loop, *, products: bool) -> None:
        self.graph = graph
        slots = dict(zip(loop.body.parameters, graph.parameter_slots, strict=True))
        self._given = [(port.source, slots[port.parameter]) for port in loop.invariants]
        known = {slot for _, slot in self._given}
        constants = {slot for slot, _ in graph.constant_slots}
        self.before: list[Node] = []
        self.nodes: list[Node] = []
        names: dict[int, str] = {}
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
        self.products: dict[int, Product] = {}
        if products:
            found = ((i, _product(node, known)) for i, node in enumerate(self.nodes))
            self.products = {i: product for i, product in found if product is not None}
        self._read = self._values_read(graph, known)
        own = {slot for _, slot in self._given}
        kept = {slots[p.parameter] for p in loop.inputs} - known | {
            s for s, turned in self._read if not turned
        }
        read = {s for i, n in enumerate(self.nodes) if i not in self.picks for s in n.inputs}
        kept -= numbers.keys() - read - set(graph.result_slots)
        ports = [port for port in loop.inputs if slots[port.parameter] in kept]
        self._extra = [value for value in self._read if value[1] or value[0] not in own]
        names |= {slots[port.parameter]: port.parameter for port in loop.invariants}
        labels = [f"{names[slot]}{', transposed' if turned else ''} #{slot}" for slot, turned in self._extra]
        self._sources = [port.source for port in ports if not isinstance(port, Iteration)]
        self._labels = labels
        parameters = [name for name in loop.body.parameters if slots[name] in kept]
        picked = [pick.label for pick in self.picks.values()]
        self.slots: list[Value] = [*((slots[name], False) for name in parameters), *self._extra]
        self.slots += [(pick.result, False) for pick in self.picks.values()]
        self.name, self.results = loop.body.name, loop.body.results
        self.parameters = (*parameters, *labels, *picked)
        ports += [Invariant(label, label) for label in labels]
        ports += [Slice(pick.label, pick.label, axis=pick.axis, part_size=1) for pick in self.picks.values()]
        self.loop = Loop(self, ports, loop.outputs, loop.back_edges).settled()
        said = repr((graph.content, self.slots, sorted(self.picks.items()), sorted(self.products.items())))
        self.hidden = FileBody(self, self.name, hashlib.sha256(said.encode()).hexdigest())

    def _values_read(self, graph: Graph, known: set[int]) -> list[Value]:
        """Of what is known before the loop, what is read in it or is a result."""
        found: dict[Value, None] = {}
        for i, node in enumerate(self.nodes):
            if i in self.picks:
                continue
            if i in self.products:
                found[self.products[i].matrix] = None
            else:
                found |= dict.fromkeys((slot, False) for slot in node.inputs if slot in known)
        return list(found | dict.fromkeys((slot, False) for slot in graph.result_slots if slot in known))

    def feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The sources of `loop`, from those of the loop as it was.

        Raises:
            IRError: a layer does not take its inputs.
            Unsupported: a matrix is none.
        """
        found = {source: feeds[source] for source in self._sources}
        if not self._extra and not self.picks:
            return found
        slots: list[Any] = [None] * self.graph.slot_count
        for slot, name in self.graph.constant_slots:
            slots[slot] = getattr(self.graph, name)
        for source, slot in self._given:
            slots[slot] = feeds[source]
        for node in self.before:
            for slot, result in zip(node.outputs, node.run_on(node.arguments(slots)), strict=False):
                slots[slot] = result
        for label, (slot, turned) in zip(self._labels, self._extra, strict=True):
            value = slots[slot]
            if turned and value.dim() < 2:
                raise Unsupported("a matrix has one dimension, and the file declares more")
            found[label] = value.transpose(-1, -2).contiguous() if turned else value
        for pick in self.picks.values():
            found[pick.label] = slots[pick.source]
        return found

    def constants(self) -> list[Tensor]:
        """Every constant of the body."""
        return list(self.constants_by_slot().values())

    def constants_by_slot(self) -> dict[int, Tensor]:
        """Every constant of the body, and where it is read."""
        return {slot: getattr(self.graph, name) for slot, name in self.graph.constant_slots}

    def reading(self, constants: Sequence[Tensor]) -> Callable[..., tuple[Any, ...]]:
        """The body with other tensors for its constants, in the order of `constants`."""
        return partial(self, constants=dict(zip(self.constants_by_slot(), constants, strict=True)))

    def start(self, values: Sequence[Any], constants: Mapping[int, Tensor] | None) -> dict[Value, Any]:
        """Constants and arguments by slot."""
        own = self.constants_by_slot() if constants is None else constants
        slots: dict[Value, Any] = {(slot, False): t for slot, t in own.items()}
        return slots | dict(zip(self.slots, values, strict=True))

    def __call__(
        self, *values: Any, fit: Fit | None = None, constants: Mapping[int, Tensor] | None = None
    ) -> tuple[Any, ...]:
        """Run it; `fit(node, arguments)` may change what a layer is given. `constants`: others, by slot."""
        slots = self.start(values, constants)
        for i, node in enumerate(self.nodes):
            if i in self.picks:
                slots[node.outputs[0], False] = self.picks[i](slots[node.outputs[0], False])
                continue
            product = self.products.get(i)
            if product is not None:
                slots[node.outputs[0], False] = product(slots[product.row, False], slots[product.matrix])
                continue
            arguments = node.arguments({slot: slots.get((slot, False)) for slot in node.inputs})
            if fit is not None:
                fit(node, arguments)
            for slot, result in zip(node.outputs, node.run_on(arguments), strict=False):
                slots[slot, False] = result
        return tuple(slots[slot, False] for slot in self.graph.result_slots)


def _product(node: Node, known: set[int]) -> Product | None:
    """A matmul of one row with a matrix of each sequence that does not change, as the file declares them."""
    if node.layer.type.lower() != "matmul" or len(known.intersection(node.inputs)) != 1:
        return None
    after = node.inputs[1] in known
    turned = [node.layer.said.bool(name, False) for name in ("transpose_a", "transpose_b")]
    row, matrix = (0, 1) if after else (1, 0)
    shape = _declared(node.layer, row)
    if len(shape) < 3 or len(_declared(node.layer, matrix)) != len(shape):
        return None
    if shape[-1 if turned[row] == after else -2] != 1:
        return None
    return Product(node.inputs[row], turned[row], (node.inputs[matrix], turned[matrix] != after), after)


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


def _declared(layer: Layer, i: int) -> tuple[int, ...]:
    return layer.inputs[i].shape or ()
