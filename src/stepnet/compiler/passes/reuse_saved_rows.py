"""Rows that another run has kept are read where a loop would compute them again.

The derivative of a step computes the step, too, of which the run of the step kept what its gradient needs.
Two values are the same where the same op made them of the same, down to inputs that are the same tensors. A
carried value is the same at each step if it is so at first, and each step makes the same of what is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import RANDOM, VIEWS, is_cheap
from stepnet.ir.plan import LoopPlan

from .fission import fission

_EITHER_WAY = frozenset({"add", "mul", "maximum", "minimum"})


@dataclass(frozen=True)
class KnownRows:
    """A loop that reads rows of another one.

    Attributes:
        loop: the loop, of which these rows are parameters; among them are carried values, whose last ones it
            does not give then.
        rows: by name, what the other loop calls them.
    """

    loop: LoopPlan
    rows: Mapping[str, str]


def read_known_rows(
    loop: LoopPlan, other: LoopPlan, same: Mapping[str, str], kept: Collection[str], *, fuse: bool
) -> KnownRows | None:
    """The loop with the rows that the other one keeps as parameters; None if no product is spared.

    Args:
        loop, other: the loops.
        same: by parameter of the loop, the parameter of the other one that is given the same.
        kept: the rows of the other one that are at hand.
        fuse: see `fission`.
    """
    body, rows = loop.body, {}
    found = _same_values(loop, other, same)
    at_hand = {name for name in kept if name in other.body.values and other.body.values[name].kind == "row"}

    def known(name: str) -> str | None:
        value = body.values[name]
        for of in found.get(name, ()):
            kind = other.body.values[of]
            if of in at_hand and (kind.kind, kind.shape, kind.dtype) == ("row", value.shape, value.dtype):
                return of if value.kind == "row" else None
        return None

    for node in body.nodes:  # what all results of are at hand need not be made
        names = [known(name) if name else "" for name in node.outputs]
        if None not in names:
            rows.update((name, of) for name, of in zip(node.outputs, names, strict=True) if name and of)
    # a carried value that is a row of the other run is read there at each step, and carried no more
    changed = (c.parameter for c in loop.carries if c.parameter != c.result)
    rows |= {name: of for name in changed if (of := known(name)) is not None}
    carries = [c for c in loop.carries if c.parameter not in rows]
    ends = [*loop.wanted, *(c.result for c in carries)]
    left = body.with_nodes(n for n in body.nodes if not any(name in rows for name in n.outputs))
    nodes = left.needed(ends)
    # to read a table costs what cheap arithmetic does: it is worth it for a product
    spared = {id(node) for node in body.nodes}.difference(map(id, nodes))
    if not any(id(n) in spared and not is_cheap(n.op) and n.op not in VIEWS for n in body.nodes):
        return None
    read = {name for node in nodes for name in node.inputs} | {*ends}
    rows = {name: of for name, of in rows.items() if name in read}
    parameters = (*(n for n in body.parameters if n not in rows), *rows)
    results = dict.fromkeys((*(n for n in body.results if n in loop.wanted), *(c.result for c in carries)))
    cut = replace(body, parameters=parameters, nodes=tuple(nodes), results=tuple(results))
    return KnownRows(fission(cut, carries, loop.wanted, fuse=fuse), rows)


def _same_values(loop: LoopPlan, other: LoopPlan, same: Mapping[str, str]) -> dict[str, list[str]]:
    """By value of the loop, those of the other one that are the same at each step."""
    new, of_other = ({c.parameter: c.result for c in each.carries} for each in (loop, other))
    same = {name: of for name, of in same.items() if (name in new) == (of in of_other)}
    while True:
        fresh: count[int] = count()
        numbers: dict[Any, int] = {}
        theirs = _numbered(other.body, {name: next(fresh) for name in other.body.parameters}, numbers, fresh)
        given = {n: theirs[same[n]] if n in same else next(fresh) for n in loop.body.parameters}
        ours = _numbered(loop.body, given, numbers, fresh)
        wrong = [n for n, of in same.items() if n in new and ours[new[n]] != theirs[of_other[of]]]
        if not wrong:
            break
        same = {name: of for name, of in same.items() if name not in wrong}
    by_number: dict[int, list[str]] = {}
    for name, number in theirs.items():
        by_number.setdefault(number, []).append(name)
    return {name: by_number[number] for name, number in ours.items() if number in by_number}


def _numbered(
    body: Graph, given: Mapping[str, int], numbers: dict[Any, int], fresh: count[int]
) -> dict[str, int]:
    """A number for each value, the same for the same op of the same values. `numbers`: those given so far."""
    found = dict(given)
    for node in body.nodes:
        key = _made(body, node, found)
        for k, name in enumerate(node.outputs):
            if name:
                found[name] = next(fresh) if key is None else numbers.setdefault((key, k), next(fresh))
    return found


def _made(body: Graph, node: Node, found: Mapping[str, int]) -> Any:
    """How a node makes what it makes; None for what is made anew each time, or cannot be compared."""
    if node.op in RANDOM or node.op == "opaque":
        return None
    inputs = [found[name] for name in node.inputs]
    kinds = tuple((v.kind, v.shape, v.dtype) for v in (body.values[n] for n in node.outputs if n))
    key = node.op, tuple(sorted(inputs) if node.op in _EITHER_WAY else inputs), node.attrs, kinds
    try:
        hash(key)
    except TypeError:
        return None
    return key
