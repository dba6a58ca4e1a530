"""Products of tables of a row with a vector: element by element, and summed, where generated code does it.

    scores = matmul(energies[L, H], v[H, 1])     ->     sum(energies * v)
    dv = matmul_tn(energies, dscores[L, 1])      ->     the sum over rows and L of energies * dscores
    y = matmul(window[C, 1, K], w[C, K, 1])      ->     sum(window * w), of a filter of each channel

The table is then never stored: it is made, read and summed in one pass.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from stepnet.ir.graph import Graph, Kind, Node, Value

from .new_values import further


def narrow(graph: Graph) -> Graph:
    """A body without such products: those with one vector where it reads values per sequence."""
    return _Narrower(graph).run()


class _Narrower:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = dict(graph.values)
        self.nodes: list[Node] = []
        self.per_sequence = any(value.kind == "sequence" for value in graph.values.values())

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op not in ("matmul", "matmul_tn"):
                self.nodes.append(node)
            elif self._is_by_channel(node):
                self._of_channels(node)
            elif not (self.per_sequence and self._is_narrow(node)):
                self.nodes.append(node)
            elif node.op == "matmul":
                self._product(node)
            else:
                self._sum(node)
        return replace(self.graph, nodes=tuple(self.nodes), values=self.values)

    def _is_narrow(self, node: Node) -> bool:
        a, b = (self.values[name] for name in node.inputs)
        table = a.kind == "row" and a.size > a.shape[-1] > 0
        if node.op == "matmul":
            return table and b.kind == "shared" and len(b.shape) == 2 and 1 in b.shape
        return (
            a.kind == b.kind == "row"
            and a.shape[:-1] != ()
            and 1 in (a.shape[-1], b.shape[-1])
            and (not node.attr("batch") and a.size > a.shape[-1])
        )

    def _is_by_channel(self, node: Node) -> bool:
        """Whether numbers of a filter of each channel meet one of the row each: none is read twice."""
        a, b = (self.values[name] for name in node.inputs)
        if node.op == "matmul_tn":
            by_head = node.attr("batch") and len(a.shape) == 2 and a.shape[0] > 1
            return by_head and 1 in (a.shape[1], b.shape[1])
        lead = a.shape[:-2]
        rows = a.kind == "row" and b.kind == "shared" and b.shape[:-2] == lead
        return rows and prod(lead) > 1 and a.shape[-2] == 1 and 1 in b.shape[-2:]

    def _of_channels(self, node: Node) -> None:
        a, b = self._numbers(node)
        out = self.values[node.output].shape
        if node.op == "matmul_tn":
            wide = (a.shape[0], max(a.shape[1], b.shape[1]))
            parts = self._new(node, "mul", (a.name, b.name), "row", wide)
            rows = self._new(node, "sum_rows", (parts,), "sum", wide)
            self.nodes.append(Node("reshape", (rows,), node.outputs, (), node.line))
        elif a.shape[-1] == 1:
            self.nodes.append(Node("mul", (a.name, b.name), node.outputs, (), node.line))
        else:
            across = self._new(node, "reshape", (b.name,), "shared", a.shape)
            parts = self._new(node, "mul", (a.name, across), "row", a.shape)
            attrs = (("dims", (len(out) - 1,)),)
            self.nodes.append(Node("sum", (parts,), node.outputs, attrs, node.line))

    def _product(self, node: Node) -> None:
        a, b = self._numbers(node)
        vector = self._new(node, "reshape", (b.name,), "shared", (b.size,))
        if b.shape[-1] == 1 != b.shape[0]:
            parts = self._new(node, "mul", (a.name, vector), "row", a.shape)
            attrs = (("dims", (len(a.shape) - 1,)),)
            self.nodes.append(Node("sum", (parts,), node.outputs, attrs, node.line))
        else:
            self.nodes.append(Node("mul", (a.name, vector), node.outputs, (), node.line))

    def _sum(self, node: Node) -> None:
        a, b = self._numbers(node)
        shape = (*a.shape[:-1], max(a.shape[-1], b.shape[-1]))
        parts = self._new(node, "mul", (a.name, b.name), "row", shape)
        dims = tuple(range(len(shape) - 1))
        small = (*(1 for _ in dims), shape[-1])
        lines = self._new(node, "sum", (parts,), "row", small, dims=dims)
        rows = self._new(node, "sum_rows", (lines,), "sum", small)
        self.nodes.append(Node("reshape", (rows,), node.outputs, (), node.line))

    def _numbers(self, node: Node) -> list[Value]:
        """The operands in the type of the sums: products of 16 bits are no op of their own here."""
        to = self.values[node.output].dtype
        found = [self.values[name] for name in node.inputs]
        return [
            v if v.dtype == to else self.values[self._new(node, "cast", (v.name,), v.kind, v.shape)]
            for v in found
        ]

    def _new(self, node: Node, op: str, inputs: tuple[str, ...], kind: Kind, shape: tuple[int, ...],
             **attrs: object) -> str:  # fmt: skip
        like = self.values[node.output]
        name = further(self.values, f"{node.output}_{op}", like, kind=kind, shape=shape)
        self.nodes.append(Node(op, inputs, (name,), tuple(attrs.items()), node.line))
        return name
