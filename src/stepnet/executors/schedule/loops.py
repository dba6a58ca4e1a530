"""The loops of a row function: which ops share one pass over the features of a row.

An op joins the pass of what it reads if it reads it element by element; what needs a whole reduction, or
elements in another order, waits for the next pass. So does a function such as tanh of what others made, if
those are some: a CPU looks only so far ahead, and in a long chain of them finds too little to do at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, TOTALS, Stage

from .program import Program
from .row_products import over_last
from .views import broadcast, contiguous

_LONG, _SOME = 32, 3  # features of a row, and such functions before, of fewer of which that takes longer


@dataclass
class LoopNest:
    """Ops over one iteration shape in one pass."""

    shape: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)


@dataclass
class RowFunction:
    """Loops in order; the values that need a buffer of one row, to pass between loops or to be summed in."""

    loops: list[LoopNest]
    lines: list[str]


def iteration_shape(p: Program, node: Node) -> tuple[int, ...]:
    """What a node loops over: its result, or what it reduces."""
    if OPS[node.op].stage is Stage.REDUCE or node.op in TOTALS:
        return p.value(node.inputs[0]).shape
    return p.value(node.output).shape


def is_size_one(p: Program, name: str) -> bool:
    """True for a value of one element a row, which lives in a C variable."""
    return p.value(name).size == 1


def reads_in_step(p: Program, node: Node, operand: str, made: dict[str, Node]) -> bool:
    """True if a node reads a value of the same row function just as it is made, element by element."""
    seen = p.seen(operand)
    maker = made[seen.base]
    if OPS[node.op].stage is Stage.WHOLE:
        return False
    if OPS[maker.op].stage is not Stage.POINTWISE and maker.op != "embed":
        return False
    if is_size_one(p, seen.base):
        return True
    shape = iteration_shape(p, node)
    if iteration_shape(p, maker) != shape:
        return False
    wide = broadcast(seen, shape)
    return wide.offset == 0 and wide.strides == contiguous(shape)


def row_function(p: Program, nodes: list[Node], homes: dict[str, list[str]]) -> RowFunction:
    """Arrange the nodes of a stage into loops."""
    return _Arranged(p, nodes, homes).row_function()


class _Arranged:
    """The nodes of a stage, each with the pass that it is made in.

    Attributes:
        made: the node of each value.
        readers: the nodes that read what lies at a base, each by the operand that it reads it as.
        passes: by id of a node, the number of its pass.
        free: ids of the nodes that read memory alone, element by element, and so may wait.
        after_costly: ids of the nodes that are functions such as tanh, or come after one in their pass.
        costly: how many of those are in each pass.
    """

    def __init__(self, p: Program, nodes: list[Node], homes: dict[str, list[str]]) -> None:
        self.p, self.nodes, self.homes = p, nodes, homes
        self.made = {name: node for node in nodes for name in node.outputs}
        self.readers: dict[str, list[tuple[Node, str]]] = {}
        for node in nodes:
            for operand in node.inputs:
                self.readers.setdefault(p.base(operand), []).append((node, operand))
        self.passes: dict[int, int] = {}
        self.free: set[int] = set()
        self.after_costly: set[int] = set()
        self.costly = Counter[int]()

    def row_function(self) -> RowFunction:
        for node in self.nodes:
            self._as_early_as_it_can(node)
        for node in reversed(self.nodes):
            self._as_late_as_its_readers(node)
        for node in self.nodes:
            self._beside_its_source(node)
        lines = [base for base, uses in self.readers.items() if self._needs_line(base, uses)]
        lines += [node.output for node in self.nodes if not over_last(node, self.p.graph.values)]
        count = max(self.passes.values(), default=-1) + 1
        return RowFunction([nest for at in range(count) for nest in self._nests(at)], lines)

    def _in_step(self, node: Node, operand: str) -> bool:
        return reads_in_step(self.p, node, operand, self.made)

    def _is_costly(self, node: Node) -> bool:
        op = OPS[node.op]
        return op.costly and op.stage is Stage.POINTWISE and self.p.value(node.output).size >= _LONG

    def _waits(self, node: Node, operand: str) -> bool:
        """Whether a node cannot be in the pass that makes what it reads, or had better not be."""
        maker = id(self.made[self.p.base(operand)])
        chained = maker in self.after_costly and self._is_costly(node)
        return (chained and self.costly[self.passes[maker]] >= _SOME) or not self._in_step(node, operand)

    def _as_early_as_it_can(self, node: Node) -> None:
        at, loose, makers = 0, OPS[node.op].stage is Stage.POINTWISE, list[int]()
        for operand in node.inputs:
            base = self.p.base(operand)
            maker = self.made.get(base)
            if maker is None:
                continue
            makers.append(id(maker))
            waits = node.op != "cat" and self._waits(node, operand)
            at = max(at, self.passes[id(maker)] + waits)
            loose &= id(maker) in self.free or is_size_one(self.p, base)
        self.passes[id(node)] = at
        self.costly[at] += self._is_costly(node)
        if self._is_costly(node) or any(self.passes[k] == at for k in self.after_costly.intersection(makers)):
            self.after_costly.add(id(node))
        if loose:
            self.free.add(id(node))

    def _as_late_as_its_readers(self, node: Node) -> None:
        """What only reads memory can wait for its first reader, and then stays in a register."""
        if id(node) not in self.free or self.homes.get(node.output) or node.output not in self.readers:
            return
        uses = self.readers[node.output]
        if any(reader.op == "cat" for reader, _ in uses):
            return
        latest = min(self.passes[id(reader)] - self._waits(reader, operand) for reader, operand in uses)
        self.passes[id(node)] = max(self.passes[id(node)], latest)

    def _beside_its_source(self, node: Node) -> None:
        """A copy that nobody reads is made in the pass that reads its source anyway."""
        if node.op != "copy" or node.output in self.readers or id(node) not in self.free:
            return
        shape = iteration_shape(self.p, node)
        near = [
            self.passes[id(reader)]
            for reader, _ in self.readers[self.p.base(node.inputs[0])]
            if iteration_shape(self.p, reader) == shape and reader is not node
        ]
        self.passes[id(node)] = max([self.passes[id(node)], *near[:1]])

    def _needs_line(self, base: str, uses: list[tuple[Node, str]]) -> bool:
        """Whether a value passes from one loop to another, or is read in another order than it is made in.
        Totals have a line of their own, what is summed over other dimensions than the last one always."""
        maker = self.made.get(base)
        if maker is None or maker.op == "cat" or maker.op in TOTALS:
            return False
        if self.homes.get(base) or is_size_one(self.p, base) or not over_last(maker, self.p.graph.values):
            return False
        at = self.passes[id(maker)]
        return any(
            self.passes[id(reader)] != at or not self._in_step(reader, operand)
            for reader, operand in uses
            if reader.op != "cat"
        )

    def _nests(self, at: int) -> list[LoopNest]:
        """The loops of a pass, one for each shape: what is one number first, what takes whole rows last."""
        groups: dict[tuple[int, ...], LoopNest] = {}
        alone: list[LoopNest] = []
        for node in self.nodes:
            if self.passes[id(node)] != at or node.op == "cat":
                continue
            shape = iteration_shape(self.p, node)
            if OPS[node.op].stage is Stage.WHOLE:
                alone.append(LoopNest(shape, [node]))
                continue
            key = () if all(n == 1 for n in shape) else shape
            groups.setdefault(key, LoopNest(key)).nodes.append(node)
        return [*sorted(groups.values(), key=lambda loop: loop.shape != ()), *alone]
