"""Products of rows that are looked up, made of the table: once a call, in place of once a step.

    table[word] W             ->   (table W)[word]
    cat(table[word], a) W     ->   (table W1)[word] + a W2

Of steps that read no row from outside, for such loops take many steps; and of small tables, which are
multiplied in the time of a few steps, or tables whose product is kept from call to call. Numbers of 16 bits
would be rounded at other places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepnet.ir.graph import Graph, Node
from stepnet.ir.tables import is_kept

from .new_values import numbered

_MOST = 256  # rows of a table


def multiply_tables(graph: Graph, outside: Sequence[str], kept: bool = False) -> Graph:
    """Write such products so; `outside`: the parameters whose rows come from outside; `kept`: whether those
    that are worth it are kept."""
    read = {name for node in graph.nodes for name in node.inputs} | {*graph.results}
    return graph if read.intersection(outside) else _Tables(graph, kept).run()


class _Tables:
    def __init__(self, graph: Graph, kept: bool) -> None:
        self.graph, self.kept = graph, kept
        self.values = dict(graph.values)
        self.makers = graph.producers
        self.nodes: list[Node] = []

    def run(self) -> Graph:
        for node in self.graph.nodes:
            parts = self._parts(node)
            if any(self._is_looked_up(name, node) for name in parts):
                self._write(node, parts)
            else:
                self.nodes.append(node)
        graph = replace(self.graph, nodes=tuple(self.nodes), values=self.values)
        return replace(graph, nodes=tuple(graph.needed(graph.results)))

    def _parts(self, node: Node) -> tuple[str, ...]:
        """What stands side by side on the left of a product by a matrix that is the same for all rows."""
        if node.op != "matmul":
            return ()
        left, right = node.inputs
        if self.values[right].kind != "shared" or len(self.values[right].shape) != 2:
            return ()
        maker = self.makers.get(left)
        last = len(self.values[left].shape) - 1
        beside = maker is not None and maker.op == "cat" and maker.attr("dim") == last
        return maker.inputs if maker is not None and beside else (left,)

    def _is_looked_up(self, name: str, product: Node) -> bool:
        maker = self.makers.get(name)
        if maker is None or maker.op != "embed" or self.values[name].kind != "row":
            return False
        table = self.values[maker.inputs[0]]
        if len(table.shape) != 2 or self.values[name].dtype not in ("float32", "float64"):
            return False
        if table.shape[0] <= _MOST:
            return True
        columns = self.values[product.inputs[1]].shape[1]
        weights = replace(table, shape=(table.shape[1], columns))
        return self.kept and table.kind == "shared" and is_kept(table, weights)

    def _write(self, node: Node, parts: Sequence[str]) -> None:
        """The sum of what the parts give: each that is looked up by its table, the others in one product."""
        matrix, at = node.inputs[1], 0
        terms, others, rows = list[str](), list[str](), list[str]()  # rows: of the matrix, for the others
        columns = self.values[matrix].shape[1]
        for name in parts:
            size = self.values[name].shape[-1]
            part = matrix
            if len(parts) > 1:
                how = {"dim": 0, "start": at, "end": at + size, "step": 1}
                part = self._new(node, "slice", (matrix,), (size, columns), **how)
            at += size
            if self._is_looked_up(name, node):
                table, index = self.makers[name].inputs
                product = self._new(node, "matmul", (table, part), (self.values[table].shape[0], columns))
                terms.append(self._new(node, "embed", (product, index), self.values[node.output].shape))
            else:
                others.append(name)
                rows.append(part)
        if others:
            size = sum(self.values[name].shape[-1] for name in others)
            shape = (*self.values[others[0]].shape[:-1], size)
            left = self._joined(node, others, shape, dim=len(shape) - 1)
            right = self._joined(node, rows, (size, columns), dim=0)
            terms.append(self._new(node, "matmul", (left, right), self.values[node.output].shape))
        while len(terms) > 1:
            terms[:2] = [self._new(node, "add", tuple(terms[:2]), self.values[node.output].shape)]
        self.nodes[-1] = replace(self.nodes[-1], outputs=node.outputs)

    def _joined(self, node: Node, names: list[str], shape: tuple[int, ...], dim: int) -> str:
        return names[0] if len(names) == 1 else self._new(node, "cat", tuple(names), shape, dim=dim)

    def _new(self, node: Node, op: str, inputs: tuple[str, ...], shape: tuple[int, ...], **attrs: Any) -> str:
        """A further value, of rows if what it is made of is."""
        kind = "row" if any(self.values[name].kind == "row" for name in inputs) else "shared"
        like = replace(self.values[node.output], shape=shape)
        name = numbered(node.output, len(self.values), like, kind, self.values)
        self.nodes.append(Node(op, inputs, (name,), tuple(attrs.items()), node.line))
        return name
