"""The forward loop where rows of y are there: run once more for what backward reads.

A state whose new value is a leaf of y is known at each step. What it is multiplied by then waits for nothing:

    for t: h = y[t] = g(A[t] + h @ U)     ->     H = y one step earlier;  B = A + H @ U
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepnet.ir.graph import Graph
from stepnet.ir.plan import Carry, LoopPlan

from .fission import fission


def known_results(
    loop: LoopPlan, carries: Sequence[Carry], y: Sequence[str], kept: Sequence[str], *, fuse: bool
) -> LoopPlan | None:
    """The loop that gives all that is kept but leaves of y that are carried: parameters of its body.

    Args:
        loop: the forward loop.
        carries: its carried values.
        y, kept: what is asked of it as rows.
        fuse: as in `fission`.

    Returns:
        None where it would multiply step after step as much as the loop itself: elements alone take little.
    """
    body = loop.body
    turning = {c.parameter for region in loop.regions for c in region.carries}
    alone = {node.output for node in body.nodes if len(node.outputs) == 1}
    given = {name for name in alone.intersection(y) if body.values[name].kind == "row"}
    known = [c for c in carries if c.parameter in turning and c.result in given - {c.parameter}]
    if not known:
        return None
    names = tuple(dict.fromkeys(c.result for c in known))
    wanted = tuple(name for name in dict.fromkeys((*y, *kept)) if name not in names)
    nodes = tuple(node for node in body.nodes if not set(names).intersection(node.outputs))
    rest = _read(replace(body, nodes=nodes), [c for c in carries if c not in known], wanted)
    ends = tuple(dict.fromkeys((*wanted, *(c.result for c in rest))))
    nodes = tuple(replace(body, nodes=nodes).needed(ends))
    again = Graph("again", (*body.parameters, *names), nodes, ends, body.values)
    made = fission(again, (*rest, *known), wanted, fuse=fuse, beside=True)
    return made if _products(made) < _products(loop) else None


def _read(body: Graph, carries: Sequence[Carry], wanted: Sequence[str]) -> list[Carry]:
    """The carries that what is wanted depends on."""
    found: list[Carry] = []
    while True:
        ends = [*wanted, *(c.result for c in found)]
        read = {name for node in body.needed(ends) for name in node.inputs} | set(ends)
        more = [c for c in carries if c.parameter in read and c not in found]
        if not more:
            return [c for c in carries if c in found]
        found += more


def _products(loop: LoopPlan) -> int:
    """How many products a step makes of what waits for the step before."""
    scans = [region for region in loop.regions if region.kind == "scan" and region.carries]
    return sum(node.op == "matmul" for region in scans for node in region.nodes)
