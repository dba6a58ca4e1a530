"""The loops of a row function: which ops share one pass over the features of a row.

An op joins the pass of what it reads if it reads it element by element; what needs a whole reduction, or
elements in another order, waits for the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, TOTALS, Stage

from .program import Program
from .row_products import over_last
from .views import broadcast, contiguous


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
    seen = p.access.get(operand)
    base = operand if seen is None else seen.base
    maker = made[base]
    if OPS[node.op].stage is Stage.WHOLE:
        return False
    if OPS[maker.op].stage is not Stage.POINTWISE and maker.op != "embed":
        return False
    if is_size_one(p, base):
        return True
    shape = iteration_shape(p, node)
    if iteration_shape(p, maker) != shape:
        return False
    if seen is None:
        return True
    wide = broadcast(seen, shape)
    return wide.offset == 0 and wide.strides == contiguous(shape)


def row_function(p: Program, nodes: list[Node], homes: dict[str, list[str]]) -> RowFunction:
    """Arrange the nodes of a stage into loops."""
    made = {name: node for node in nodes for name in node.outputs}
    first: dict[int, int] = {}
    free: set[int] = set()

    def bases(node: Node) -> list[tuple[str, str]]:
        return [(n, p.base(n)) for n in node.inputs]

    for node in nodes:
        at, loose = 0, OPS[node.op].stage is Stage.POINTWISE
        for operand, base in bases(node):
            maker = made.get(base)
            if maker is None:
                continue
            waits = node.op != "cat" and not reads_in_step(p, node, operand, made)
            at = max(at, first[id(maker)] + waits)
            loose &= id(maker) in free or is_size_one(p, base)
        first[id(node)] = at
        if loose:
            free.add(id(node))
    # what only reads memory can wait for its first reader, and then stays in a register
    readers: dict[str, list[tuple[Node, str]]] = {}
    for node in nodes:
        for operand, base in bases(node):
            readers.setdefault(base, []).append((node, operand))
    for node in reversed(nodes):
        if id(node) not in free or homes.get(node.output) or node.output not in readers:
            continue
        if any(reader.op == "cat" for reader, _ in readers[node.output]):
            continue
        latest = min(
            first[id(r)] - (not reads_in_step(p, r, operand, made)) for r, operand in readers[node.output]
        )
        first[id(node)] = max(first[id(node)], latest)

    for node in nodes:  # a copy that nobody reads is made in the pass that reads its source anyway
        if node.op == "copy" and node.output not in readers and id(node) in free:
            base, shape = p.base(node.inputs[0]), iteration_shape(p, node)
            near = [
                first[id(r)] for r, _ in readers[base] if iteration_shape(p, r) == shape and r is not node
            ]
            first[id(node)] = max([first[id(node)], *near[:1]])

    lines = []
    for base, uses in readers.items():
        maker = made.get(base)
        if (
            maker is None
            or maker.op == "cat"
            or maker.op in TOTALS
            or homes.get(base)
            or is_size_one(p, base)
        ):
            continue
        if not over_last(maker, p.graph.values):  # below
            continue
        for reader, operand in uses:
            if reader.op == "cat":
                continue
            apart = first[id(reader)] != first[id(maker)]
            if apart or not reads_in_step(p, reader, operand, made):
                lines.append(base)
                break
    lines += [node.output for node in nodes if not over_last(node, p.graph.values)]
    loops: list[LoopNest] = []
    for at in range(max(first.values(), default=-1) + 1):
        groups: dict[tuple[int, ...], LoopNest] = {}
        alone: list[LoopNest] = []
        for node in nodes:
            if first[id(node)] != at or node.op == "cat":
                continue
            shape = iteration_shape(p, node)
            if OPS[node.op].stage is Stage.WHOLE:
                alone.append(LoopNest(shape, [node]))
                continue
            key = () if all(n == 1 for n in shape) else shape
            groups.setdefault(key, LoopNest(key)).nodes.append(node)
        loops += [*sorted(groups.values(), key=lambda loop: loop.shape != ()), *alone]
    return RowFunction(loops, lines)
