"""Sums over any dimensions and products of two values of a row, as reductions over last dimensions.

Before: `sum(x, dims=0)` and `matmul(a, b)` with a matrix of each row; after: a permuted view of x summed over
its last dimensions, and `sum(a[.., M, 1, K] * b'[.., 1, N, K])`. Views cost nothing in generated code, and a
product is made in the pass that sums it: no memory holds it.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepnet.ir.graph import Node, Value
from stepnet.ir.op_rules import broadcast

_REDUCTIONS = ("sum", "amax", "amin", "argmax", "argmin")


def over_last_dimensions(nodes: Iterable[Node], values: dict[str, Value]) -> list[Node]:
    """The nodes of a scan with other nodes for such; `values` takes on what is new."""
    return _Rewriter(values).run(nodes)


class _Rewriter:
    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self.out: list[Node] = []

    def run(self, nodes: Iterable[Node]) -> list[Node]:
        for node in nodes:
            if node.op in _REDUCTIONS:
                self._reduction(node)
            elif node.op == "matmul" and self.values[node.inputs[1]].kind == "row":
                self._product(node)
            else:
                self.out.append(node)
        return self.out

    def _new(self, op: str, inputs: tuple[str, ...], like: str, shape: tuple[int, ...], line: str | None,
             dtype: str = "", **attrs: object) -> str:  # fmt: skip
        number = 0
        while (name := f"{like}_p{number}") in self.values:  # a user's name may look like one of these
            number += 1
        self.values[name] = Value(name, "row", shape, dtype or self.values[like].dtype)
        self.out.append(Node(op, inputs, (name,), tuple(sorted(attrs.items())), line))
        return name

    def _reduction(self, node: Node) -> None:
        source, shape = node.inputs[0], self.values[node.inputs[0]].shape
        place = node.op in ("argmax", "argmin")
        if place and node.attr("dim") is None:  # of all features
            self.out.append(node)
            return
        dims = {node.attr("dim")} if place else set(node.attr("dims"))
        kept = [d for d in range(len(shape)) if d not in dims]
        wide = [d for d in dims if shape[d] != 1]
        if not wide:
            self._reshaped(source, node)
            return
        if all(d < min(wide) or shape[d] == 1 for d in kept):
            self.out.append(node)
            return
        order = (*kept, *sorted(dims))
        wide = tuple(shape[d] for d in order)
        dtype = self.values[source].dtype
        turned = self._new("permute", (source,), node.output, wide, node.line, dtype, dims=order)
        last = tuple(range(len(kept), len(shape)))
        small = (*(shape[d] for d in kept), *(1 for _ in dims))
        how: dict[str, object] = {"dim": last[0]} if place else {"dims": last}
        total = self._new(node.op, (turned,), node.output, small, node.line, "", **how)
        self._reshaped(total, node)

    def _product(self, node: Node) -> None:
        a, b = (self.values[name] for name in node.inputs)
        lead = broadcast([a.shape[:-2], b.shape[:-2]]) or ()
        m, n, k = a.shape[-2:-1] or (1,), b.shape[-1], a.shape[-1]
        rank = len(b.shape)
        order = (*range(rank - 2), rank - 1, rank - 2)
        flipped = (*b.shape[:-2], n, k)
        name, line = node.output, node.line
        left = self._new("reshape", (a.name,), name, (*a.shape[:-2], *m, 1, k), line)
        turned = self._new("permute", (b.name,), name, flipped, line, dims=order)
        right = self._new("reshape", (turned,), name, (*b.shape[:-2], 1, n, k), line)
        whole = (*lead, *m, n, k)
        parts = self._new("mul", (left, right), name, whole, line)
        if k != 1:
            parts = self._new("sum", (parts,), name, (*whole[:-1], 1), line, dims=(len(whole) - 1,))
        self._reshaped(parts, node)

    def _reshaped(self, total: str, node: Node) -> None:
        self.out.append(Node("reshape", (total,), node.outputs, (), node.line))
