"""Sums of values that are zero but for a part each, written as their parts side by side.

    cat(a, 0, 0) + cat(0, b, 0) + cat(0, 0, c)   ->   cat(a + 0, b + 0, c + 0)

So the gradient of slices is what the gradient of a split is: one value, not as many wide ones as there are
slices. The sum adds a zero to each part, and so is one added here: of -0.0 that makes 0.0. A sum over rows
stays as it is: nothing is added to it before its last row.
"""

from __future__ import annotations

from dataclasses import replace
from math import copysign
from typing import NamedTuple

from stepnet.ir.graph import Graph, Kind, Node, Value

from .new_values import numbered


class _Padded(NamedTuple):
    """A value that is zero but for some parts: the dimension, and each part by where it begins."""

    dim: int
    parts: dict[int, str]


def join_paddings(graph: Graph) -> Graph:
    """The same graph with such sums written as their parts."""
    return _Joiner(graph).run()


class _Joiner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = dict(graph.values)
        self.nodes: list[Node] = []
        self.padded: dict[str, _Padded] = {}
        self.plus_zero: dict[str, str] = {}
        self.zeros = {n.output for n in graph.nodes if n.op == "full" and _is_zero(n.attr("value"))}

    def run(self) -> Graph:
        joined = False
        for node in self.graph.nodes:
            found = (
                self._of_cat(node) if node.op == "cat" else self._of_sum(node) if node.op == "add" else None
            )
            if found is not None:
                self.padded[node.output] = found
            if found is None or node.op == "cat":
                self.nodes.append(node)
            else:
                joined = True
                self._write(node, found)
        return replace(self.graph, nodes=tuple(self._read()), values=self.values) if joined else self.graph

    def _of_cat(self, node: Node) -> _Padded | None:
        dim, at, parts = node.attr("dim"), 0, dict[int, str]()
        for name in node.inputs:
            if name not in self.zeros:
                parts[at] = name
            at += self.values[name].shape[dim]
        return _Padded(dim, parts) if len(parts) < len(node.inputs) else None

    def _of_sum(self, node: Node) -> _Padded | None:
        a, b = (self.padded.get(name) for name in node.inputs)
        if a is None or b is None or a.dim != b.dim or self.values[node.output].kind == "sum":
            return None
        alike = {
            (v.kind, v.shape, v.dtype) for v in map(self.values.__getitem__, (*node.inputs, node.output))
        }
        parts = dict(sorted([*a.parts.items(), *b.parts.items()]))
        ends = [0, *(at + self.values[name].shape[a.dim] for at, name in parts.items())]
        apart = len(parts) == len(a.parts) + len(b.parts) and all(
            e <= at for e, at in zip(ends, parts, strict=False)
        )
        return _Padded(a.dim, parts) if apart and len(alike) == 1 else None

    def _write(self, node: Node, found: _Padded) -> None:
        like, at, inputs = self.values[node.output], 0, list[str]()
        for begin, name in (*found.parts.items(), (like.shape[found.dim], None)):
            if begin > at:
                inputs.append(self._zeros(node, like, found.dim, begin - at))
            if name is not None:
                inputs.append(self._plus_zero(node, name))
                at = begin + self.values[name].shape[found.dim]
        self.nodes.append(Node("cat", tuple(inputs), node.outputs, (("dim", found.dim),), node.line))

    def _plus_zero(self, node: Node, name: str) -> str:
        if name not in self.plus_zero:
            value = self.values[name]
            zero = self._new(node, "full", (), "shared", (), value.dtype, value=0.0)
            self.plus_zero[name] = self._new(node, "add", (name, zero), value.kind, value.shape, value.dtype)
        return self.plus_zero[name]

    def _zeros(self, node: Node, like: Value, dim: int, size: int) -> str:
        shape = (*like.shape[:dim], size, *like.shape[dim + 1 :])
        return self._new(node, "full", (), like.kind, shape, like.dtype, value=0.0)

    def _new(
        self, node: Node, op: str, inputs: tuple[str, ...], kind: Kind, shape: tuple[int, ...], dtype: str,
        **attrs: object,
    ) -> str:  # fmt: skip
        like = Value(node.output, kind, shape, dtype)
        name = numbered(node.output, len(self.values), like, kind, self.values)
        self.nodes.append(Node(op, inputs, (name,), tuple(attrs.items()), node.line))
        return name

    def _read(self) -> list[Node]:
        """The nodes but for parts of sums that nobody reads any more."""
        read, kept = set(self.graph.results), list[Node]()
        for node in reversed(self.nodes):
            if node.op not in ("cat", "add", "full") or read.intersection(node.outputs):
                read.update(node.inputs)
                kept.append(node)
        return kept[::-1]


def _is_zero(value: float) -> bool:
    return value == 0 and copysign(1, value) > 0
