"""The loops of a row function: which ops share one pass over the features of a row.

An op joins the pass of what it reads if it reads it element by element; what needs a whole reduction, or
elements in another order, waits for the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepnet.errors import Unsupported
from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, Stage

from .program import Program
from .views import broadcast, contiguous


@dataclass
class Loop:
    """Ops over one iteration shape in one pass; `keep` leading dimensions are not reduced over."""

    shape: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)
    keep: int = 0


@dataclass
class RowFunction:
    """Loops in order, and the values that need a buffer of one row to pass between them."""

    loops: list[Loop]
    lines: list[str]
    stage_of: dict[str, int]


def iteration_shape(p: Program, node: Node) -> tuple[int, ...]:
    """What a node loops over: its result, or what it reduces."""
    if OPS[node.op].stage is Stage.REDUCE or node.op == "sum_rows":
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
    """Arrange the nodes of a stage into loops.

    Raises:
        Unsupported: a reduction over dimensions that are not the last ones.
    """
    made = {name: node for node in nodes for name in node.outputs}
    first: dict[int, int] = {}
    free: set[int] = set()
    kept: dict[tuple[int, tuple[int, ...]], int] = {}  # of the reductions of a pass over one shape

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
        if OPS[node.op].stage is Stage.REDUCE:  # one pass leaves as many dimensions for all its reductions
            shape = iteration_shape(p, node)
            while kept.setdefault((at, shape), _kept(node, shape)) != _kept(node, shape):
                at += 1
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

    lines = []
    for base, uses in readers.items():
        maker = made.get(base)
        if maker is None or maker.op in ("cat", "sum_rows") or homes.get(base) or is_size_one(p, base):
            continue
        for reader, operand in uses:
            if reader.op == "cat":
                continue
            apart = first[id(reader)] != first[id(maker)]
            if apart or not reads_in_step(p, reader, operand, made):
                lines.append(base)
                break
    loops: list[Loop] = []
    for at in range(max(first.values(), default=-1) + 1):
        groups: dict[tuple[int, ...], Loop] = {}
        alone: list[Loop] = []
        for node in nodes:
            if first[id(node)] != at or node.op == "cat":
                continue
            shape = iteration_shape(p, node)
            if OPS[node.op].stage is Stage.WHOLE:
                alone.append(Loop(shape, [node]))
                continue
            key = () if all(n == 1 for n in shape) else shape
            loop = groups.setdefault(key, Loop(key))
            loop.nodes.append(node)
            if OPS[node.op].stage is Stage.REDUCE and key:
                loop.keep = max(loop.keep, _kept(node, shape))
        loops += [*sorted(groups.values(), key=lambda loop: loop.shape != ()), *alone]
    return RowFunction(loops, lines, {n: first[id(node)] for n, node in made.items()})


def reduced_dims(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions a reduction goes over."""
    if node.op not in ("argmax", "argmin"):
        return node.attr("dims")
    dim = node.attr("dim")
    return tuple(range(len(shape))) if dim is None else (dim,)


def _kept(node: Node, shape: tuple[int, ...]) -> int:
    """How many leading dimensions a reduction leaves."""
    dims = set(reduced_dims(node, shape))
    big = [d for d, size in enumerate(shape) if size != 1]
    reduced = [d for d in big if d in dims]
    kept = [d for d in big if d not in dims]
    if not kept:
        return 0
    if reduced and max(kept) > min(reduced):
        raise Unsupported(f"'{node.op}' over dimensions that are not the last ones", line=node.line)
    return max(kept) + 1
