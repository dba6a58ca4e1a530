"""Rows abreast: a row function goes through as many rows at a time as a vector has lanes.

Features of nine fill half a vector and leave one over, at each turn of each loop. Where loops are mostly that
short, an element of sixteen rows is one vector: what they read is turned before, and what they write after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod

from stepnet.ir.graph import ITEM_SIZE, Node
from stepnet.ir.ops import OPS, SCATTERS, Stage

from .loops import LoopNest, RowFunction, iteration_shape, reads_in_step
from .program import Program
from .row_products import PLACES
from .views import Access, broadcast, collapse, contiguous

_VECTOR = 64  # bytes
# A function such as tanh, a search for a place, and a sum over the lanes of a vector, in other ops.
_COSTLY, _SEARCH, _ADD_UP = 10, 4, 4
_GAIN, _LEAST = 1.5, 50  # times, and ops of a row, of less of which that is not worth its C
# What takes memory as a dimension behind its own may have lanes there.
_ALONG = frozenset({"gather", *SCATTERS, "cumsum", "cumprod", "cumargmax", "cumargmin"})
_MOST = 1 << 15  # bytes of what is turned and made: the first cache holds it


@dataclass(frozen=True)
class Abreast:
    """How rows go abreast.

    Attributes:
        lanes: so many at a time.
        least: rows left, of fewer of which one after the other takes less time.
        read, written: the values that are turned, from and to memory.
        lines: all that have an array of the elements of each lane.
    """

    lanes: int
    least: int
    read: list[str]
    written: list[str]
    lines: list[str]


def abreast(
    p: Program, function: RowFunction, nodes: list[Node], homes: Mapping[str, list[str]],
    inputs: Iterable[str], parts: Mapping[str, list[tuple[str, Access]]],
) -> Abreast | None:  # fmt: skip
    """How the rows of a row function go abreast; None where they had better not, or cannot.

    Args:
        nodes: those of its loops.
        homes, parts: where values are stored, and which are joined into which.
        inputs: the values that it reads, of each row.
    """
    made = {name: node for node in nodes for name in node.outputs}
    read = [name for name in inputs if name not in made]
    written = [name for name in made if homes.get(name)]
    if not all(_fits(p, node, made, read, parts) for node in nodes):
        return None
    lines = [*read, *written, *(name for name in _lines(p, function, made) if name not in written)]
    lanes = _VECTOR // ITEM_SIZE[p.real]
    sums = [node.output for node in nodes if node.op == "sum_rows"]
    if lanes * sum(p.value(name).bytes for name in (*lines, *sums)) > _MOST:
        return None
    alone, beside = (sum(_work(p, loop, n) for loop in function.loops) for n in (0, lanes))
    beside += sum(p.value(name).size for name in (*read, *written))
    if alone < _GAIN * beside or alone - beside < _LEAST:
        return None
    return Abreast(lanes, ceil(lanes * beside / alone), read, written, lines)


def _fits(
    p: Program, node: Node, made: Mapping[str, Node], read: list[str],
    parts: Mapping[str, list[tuple[str, Access]]],
) -> bool:  # fmt: skip
    """Whether C can do a node in each lane."""
    stage, bases = OPS[node.op].stage, [p.base(name) for name in node.inputs]
    if any(cat not in made for name in node.outputs for cat, _ in parts.get(name, ())):
        return False
    if stage is Stage.WHOLE:
        return node.op in _ALONG and all(base in made or base in read for base in bases)
    if stage is Stage.REDUCE:  # its results are in an array, which is not copied into what joins it
        return any(size != 1 for size in iteration_shape(p, node)) and node.output not in parts
    if node.op == "cat":
        return all(base in made for base in bases)
    return stage is Stage.POINTWISE or node.op == "sum_rows"


def _lines(p: Program, function: RowFunction, made: dict[str, Node]) -> list[str]:
    """The values that one loop hands to another, or that stand in memory while they are made."""
    loop_of = {id(node): loop for loop in function.loops for node in loop.nodes}
    found: dict[str, None] = {}
    for node in made.values():
        if OPS[node.op].stage is Stage.REDUCE:
            found[node.output] = None
        for operand in node.inputs if node.op != "cat" else ():
            base = p.base(operand)
            maker = made.get(base)
            if maker is None:
                continue
            apart = loop_of.get(id(maker)) is not loop_of[id(node)]
            if apart or not reads_in_step(p, node, operand, made):
                found[base] = None
    return [*found]


def _work(p: Program, loop: LoopNest, lanes: int) -> float:
    """The vectors that a loop computes, of a row: of `lanes` rows at a time, or of its last dimension."""
    shape, nodes = loop.shape, loop.nodes
    if OPS[nodes[0].op].stage is Stage.WHOLE:
        return prod(shape)
    reduced = [n for n in nodes if OPS[n.op].stage is Stage.REDUCE]
    walks = [p.seen(name) for node in nodes for name in node.inputs]
    walks += [Access.of(node.output, p.value(node.output).shape) for node in reduced]
    steps = [broadcast(seen, shape).strides if shape else () for seen in walks]
    if 0 in shape:
        return 0
    dims, (_, *steps) = collapse(shape, [contiguous(shape), *steps])
    ops = sum(_COSTLY if OPS[n.op].costly else _SEARCH if n.op in PLACES else 1 for n in nodes)
    width = _VECTOR // ITEM_SIZE[p.real]
    if lanes or all(node.op in ("mul", "sum") for node in nodes):  # small products gain nothing (measured)
        return ops * prod(dims) / width
    last = dims[-1] if dims else 1
    turns = prod(dims) // last
    summed = sum(not step[-1] for step in steps[len(steps) - len(reduced) :]) if dims else 0
    return turns * (ops * (last // width + (last % width).bit_count()) + _ADD_UP * summed)
