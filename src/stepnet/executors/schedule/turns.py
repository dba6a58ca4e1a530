"""Scans of which threads may take turns: one goes through steps while others make what is beside those.

Products of rows from outside wait for no step, nor does any step wait for what is made of its states but not
carried on. Each thread makes the products of every so-manieth chunk of steps, goes through what the steps
carry on when its turn comes, and makes the rest. Where there is nothing of the kind, rows may still take
longer to come from memory than to compute: each thread has those of its chunk brought to its cache. The
numbers are those of one thread, however few and long the sequences are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, TOTALS, Stage

from .loops import iteration_shape
from .program import Program

_COSTLY = 10  # numbers of cheap ops in the time of one of exp, tanh and the like
_PRODUCT = 0.4  # of the time of such a number, which a multiplication in a product takes (measured)
_MOST = 1 << 13  # bytes of a row that are handed on to what is made after its step
_CHEAP = (Stage.POINTWISE, Stage.SHAPE)
_LEAST_MOVED = 512  # bytes of a row, below which the steps themselves take longer (measured)
_MOST_MOVED = 1 << 14  # of which a cache holds too few


def by_turns(p: Program) -> tuple[Program, float]:
    """A scan whose second stage is what may wait until some steps are done; and how long all takes that is
    done beside steps, over the steps' own time: 0 where threads may take no turns."""
    if any(node.op == "matmul" for node in p.nodes):
        return p, 0.0
    after = _after(p)
    ids = {id(node) for node in after}
    made = {name for node in p.nodes if id(node) not in ids for name in node.outputs} - {*p.outputs}
    handed = made.intersection(p.base(name) for node in after for name in node.inputs)
    if sum(p.value(name).bytes for name in handed) > _MOST:
        after, ids = [], set()
    products = [node for node in p.nodes if not p.by_row.keys().isdisjoint(map(p.base, node.inputs))]
    parts = {name for node in products for name in node.outputs}
    apart = sum(math.prod(p.value(node.inputs[1]).shape[-2:]) for node in (*p.early, *p.late))
    beside = _PRODUCT * apart + sum(_numbers(p, node, parts) for node in after)
    steps = sum(_numbers(p, node, parts) for node in p.nodes if id(node) not in ids)
    levels = {id(node): int(id(node) in ids) for node in p.nodes}
    return replace(p, level=levels), beside / max(1, steps)


def waits_for_memory(p: Program, beside: float) -> bool:
    """Whether rows take longer to come from memory and go there than steps to compute, beside which there is
    nothing else to do: threads then bring the rows of their chunk to a cache while others go through steps.
    """
    if beside or any(OPS[node.op].costly or OPS[node.op].stage not in _CHEAP for node in p.nodes):
        return False
    moved = sum(p.value(name).bytes for name in (*p.row_inputs, *p.outputs))
    least = max(_LEAST_MOVED, sum(_numbers(p, node, set()) for node in p.nodes))
    return least <= moved <= _MOST_MOVED


def _after(p: Program) -> list[Node]:
    """The nodes that neither make a state nor read one where it stands; totals are made in order."""
    needed = {carry.result for carry in p.carries}
    states = (needed | {carry.parameter for carry in p.carries}) - {*p.outputs}
    after: list[Node] = []
    for node in reversed(p.nodes):
        read = set(map(p.base, node.inputs))
        in_order = node.op in TOTALS and node.output in p.totals
        if in_order or needed.intersection(node.outputs) or read & states:
            needed |= read
        else:
            after.append(node)
    return after[::-1]


def _numbers(p: Program, node: Node, parts: set[str]) -> float:
    """The time that a node takes, as numbers of cheap ops. `parts`: products with the elements of a small
    weight, each multiplied and added in one go."""
    if node.op == "sum" and not parts.isdisjoint(map(p.base, node.inputs)):
        return 0
    if not parts.isdisjoint(node.outputs):
        return _PRODUCT * math.prod(iteration_shape(p, node))
    return math.prod(iteration_shape(p, node)) * (_COSTLY if OPS[node.op].costly else 1)
