"""A body graph: named values of known shape, and nodes in an order that can be run.

A value is of one of four kinds. `row`: one for each row, its shape without the batch dimension.
`sequence`: one for each sequence, the same at all its steps; its shape likewise.
`shared`: the same for all rows and steps. `sum`: added up over rows and steps, a gradient of something
shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["row", "sequence", "shared", "sum"]

ITEM_SIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A named value of a graph."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements (of one row or sequence, for a value of each)."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes (of one row or sequence, for a value of each)."""
        return self.size * ITEM_SIZE[self.dtype]


@dataclass(frozen=True)
class Node:
    """One op applied: `outputs = op(inputs, **attrs)`; `line` is where the user wrote it."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    line: str | None = field(default=None, compare=False)

    @property
    def output(self) -> str:
        """The only output."""
        (name,) = self.outputs
        return name

    def attr(self, key: str) -> Any:
        """An attribute by name."""
        for name, value in self.attrs:
            if name == key:
                return value
        raise KeyError(key)


@dataclass(frozen=True)
class Graph:
    """Parameters, nodes and results. Immutable; passes make new ones.

    >>> x, y = Value("x", "row", (3,), "float32"), Value("y", "row", (3,), "float32")
    >>> g = Graph("g", ("x",), (Node("tanh", ("x",), ("y",)),), ("y",), {"x": x, "y": y})
    >>> g.producers["y"].op
    'tanh'
    """

    name: str
    parameters: tuple[str, ...]
    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    values: Mapping[str, Value] = field(compare=False)

    def __post_init__(self) -> None:
        if type(self.values) is not MappingProxyType:  # of another graph, which none changes
            object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    def __reduce__(self) -> Any:
        return Graph, (self.name, self.parameters, self.nodes, self.results, dict(self.values))

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that makes each value."""
        return MappingProxyType({name: node for node in self.nodes for name in node.outputs})

    def users(self) -> dict[str, list[Node]]:
        """The nodes that read each value."""
        found: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return found

    def needed(self, wanted: Iterable[str]) -> list[Node]:
        """The nodes that `wanted` values depend on, in order."""
        live = set(wanted)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if live.intersection(node.outputs):
                live.update(node.inputs)
                kept.append(node)
        return kept[::-1]

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """The same values with other nodes."""
        return replace(self, nodes=tuple(nodes))


def in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Nodes so that each comes after those it reads: the postorder of a depth-first search.

    Not networkx's: generated code is ordered by this, and a process that finds its plans on disk would wait
    0.4 s for the import, as long as for its first call.

    >>> a, b = Node("tanh", ("x",), ("a",)), Node("exp", ("a",), ("b",))
    >>> [node.op for node in in_order([b, a])]
    ['tanh', 'exp']

    Raises:
        ValueError: a value follows from itself.
    """
    makers = {name: node for node in nodes for name in node.outputs}
    done: set[int] = set()
    begun: set[int] = set()
    ordered: list[Node] = []
    for root in nodes:
        work = [(root, False)]
        while work:
            node, operands_done = work.pop()
            if id(node) in done:
                continue
            if operands_done:
                done.add(id(node))
                ordered.append(node)
                continue
            if id(node) in begun:
                raise ValueError(f"the value {node.outputs[0]} follows from itself")
            begun.add(id(node))
            work.append((node, True))
            work.extend((makers[n], False) for n in node.inputs if n in makers)
    return tuple(ordered)
