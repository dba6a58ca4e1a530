"""Products over rows of a table that nobody else reads, of parts side by side: one product for each part.

    dW = g' cat(x, h)   ->   dW = cat(g' x, g' h)

Such is the gradient of W in `cat([x, h]) @ W`. The table is never written; where the parts are wide,
executors make both products as one. A zero that is added to a part is left out: it changes the sign of zeros,
of which a sum over rows keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import copysign

from stepnet.ir.graph import Graph, Node

from .new_values import further

_PARTS = 2  # of more of them the calls take longer than to write the table


def without_joined_rows(body: Graph) -> Graph:
    """A body without tables that are made for products over rows alone."""
    return _Parts(body).run()


class _Parts:
    def __init__(self, body: Graph) -> None:
        self.body = body
        self.values = dict(body.values)
        self.makers = {node.output: node for node in body.nodes if len(node.outputs) == 1}
        self.users = body.users()

    def run(self) -> Graph:
        nodes = [new for node in self.body.nodes for new in self._of(node)]
        if len(nodes) == len(self.body.nodes):
            return self.body
        return replace(self.body, nodes=tuple(self._read(nodes)), values=self.values)

    def _of(self, node: Node) -> list[Node]:
        """A node, or products with their sums side by side."""
        if node.op != "matmul_tn":
            return [node]
        a, b = node.inputs
        of_a, of_b = self._parts(a), self._parts(b)
        if bool(of_a) == bool(of_b):  # of two such tables there would be four products
            return [node]
        dim, pairs = (0, [(part, b) for part in of_a]) if of_a else (1, [(a, part) for part in of_b])
        made = [self._product(node, pair, at) for at, pair in enumerate(pairs)]
        together = Node("cat", tuple(new.output for new in made), node.outputs, (("dim", dim),), node.line)
        return [*made, together]

    def _product(self, node: Node, pair: tuple[str, str], at: int) -> Node:
        shape = tuple(self.values[name].shape[0] for name in pair)
        name = further(self.values, f"{node.output}_part{at}", self.values[node.output], shape=shape)
        return replace(node, inputs=pair, outputs=(name,))

    def _parts(self, table: str) -> list[str]:
        """Those of a table that is made for such products alone; else none."""
        node, values = self.makers.get(table), self.values
        if node is None or node.op != "cat" or len(node.inputs) != _PARTS or table in self.body.results:
            return []
        alone = all(user.op == "matmul_tn" and not user.attr("batch") for user in self.users[table])
        rows = all(values[name].kind == "row" and len(values[name].shape) == 1 for name in node.inputs)
        return [self._without_zero(name) for name in node.inputs] if alone and rows else []

    def _without_zero(self, name: str) -> str:
        node = self.makers.get(name)
        if node is None or node.op != "add":
            return name
        rows, zero = node.inputs
        made, value, sum_ = self.makers.get(zero), self.values[rows], self.values[name]
        if (
            made is None
            or made.op != "full"
            or made.attr("value") != 0
            or copysign(1, made.attr("value")) < 0
        ):
            return name
        return rows if replace(value, name=name) == sum_ else name

    def _read(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes but for tables that nobody reads any more."""
        read, kept = set(self.body.results), list[Node]()
        for node in reversed([*nodes]):
            if node.op not in ("cat", "add", "full") or read.intersection(node.outputs):
                read.update(node.inputs)
                kept.append(node)
        return kept[::-1]
