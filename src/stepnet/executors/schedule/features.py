"""Scans whose features go their own way: none is read to make another one of the next step.

A feature is an index along the first dimension of a row: a unit of minGRU, a head of linear attention.
Threads that take some features each need not meet at every step, however few and long the sequences are,
and make the numbers that one thread makes.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, TOTALS, Stage

from .loops import iteration_shape
from .program import Program
from .views import Access, broadcast, contiguous

_LINE = 64  # bytes that two threads should not both write to


@dataclass(frozen=True)
class Features:
    """How many features a row has, and how many of them a thread takes at least."""

    count: int
    unit: int

    @property
    def parts(self) -> int:
        """How many threads can have some."""
        return -(-self.count // self.unit)


def features(p: Program) -> Features | None:
    """The features that threads may share out; None where one is read to make another, or one is empty."""
    carried = [p.value(carry.parameter) for carry in p.carries]
    made = [p.value(name) for node in p.nodes for name in node.outputs]
    if not all(value.size for value in (*carried, *made)):
        return None
    counts = {outer(value.shape)[1] for value in carried}
    if len(counts) != 1 or counts == {1}:
        return None
    (count,) = counts
    if not all(map(_Steps(p, count).add, p.nodes)):
        return None
    width = max(value.bytes // count for value in carried)
    return Features(count, max(1, _LINE // width))


def outer(shape: tuple[int, ...]) -> tuple[int, int]:
    """The first dimension that is not of size 1, and its size.

    >>> outer((1, 4, 3)), outer((1,)), outer(())
    ((1, 4), (0, 1), (0, 1))
    """
    return next(((axis, size) for axis, size in enumerate(shape) if size != 1), (0, 1))


class _Steps:
    """Which nodes of a step keep features apart; what is of no feature every thread makes for itself."""

    def __init__(self, p: Program, count: int) -> None:
        self.p, self.count = p, count
        self.apart = {carry.parameter for carry in p.carries}
        self.common: set[str] = set()
        self.kept = {*p.outputs, *(carry.result for carry in p.carries)}

    def add(self, node: Node) -> bool:
        """Whether a node may run in parts."""
        stage, p = OPS[node.op].stage, self.p
        if node.op == "cat":
            self.apart.add(node.output)
            return (
                self.apart.issuperset(node.inputs) and outer(p.value(node.output).shape)[1] % self.count == 0
            )
        if stage not in (Stage.POINTWISE, Stage.REDUCE) and node.op not in TOTALS:
            return False
        shape = iteration_shape(p, node)
        axis, size = outer(shape)
        read = [seen for seen in map(self.p.seen, node.inputs) if seen.base in self.apart]
        if size % self.count:
            self.common.add(node.output)
            return not read and node.op not in TOTALS and node.output not in self.kept
        self.apart.add(node.output)
        if stage is Stage.REDUCE and (node.op not in ("sum", "amax", "amin") or axis in node.attr("dims")):
            return False
        return all(self._is_in_step(seen, shape, axis) for seen in read)

    def _is_in_step(self, seen: Access, shape: tuple[int, ...], axis: int) -> bool:
        """Whether a node reads of each feature what lies in that feature."""
        whole = self.p.value(seen.base).shape
        step = contiguous(whole)[outer(whole)[0]]
        wide = broadcast(seen, shape)
        blocks, offset = divmod(wide.offset, step)
        inside = [(n - 1) * s for k, (n, s) in enumerate(zip(shape, wide.strides, strict=True)) if k != axis]
        return (
            wide.strides[axis] == step
            and blocks % self.count == 0
            and min((0, *inside)) == 0
            and offset + sum(inside) < step
        )
