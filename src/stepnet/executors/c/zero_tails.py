"""Passes over a memory that end where its lines are alike: behind the end of a sequence they hold zeros.

    for l < L: s[l] = sum of K[l, h] q[h]    ->    for l < n: the same; for n <= l < L: s[l] = s[n - 1]
    for l < L: c[h] += w[l] M[l, h]          ->    for l < n: the same, if all w[l] behind are 0

Which lines are alike is found once a call and sequence, by their bits. n counts one of them: what it gives, 0
times infinity included, is what each of the others would give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stepnet.executors.schedule.views import Access
from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, Stage

from .places import Places

_LEAST = 8  # lines, and numbers of a line, of fewer of which all are gone over


@dataclass
class Pass:
    """A pass over lines, and how it may end early.

    Attributes:
        memories: what it reads line by line.
        zeros: numbers of a line, which are to be 0 behind the end.
        same: results of one number a line, which are copied behind the end.
        totals: sums over steps of whole lines.
    """

    memories: list[str] = field(default_factory=list)
    zeros: list[Access] = field(default_factory=list)
    same: list[Node] = field(default_factory=list)
    totals: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class _Made:
    """What a number is made of: numbers of its line, and those of them that it is a multiple of."""

    of: frozenset[Access] = frozenset()
    times: frozenset[Access] = frozenset()


def ends_early(
    w: Places, nodes: list[Node], dims: tuple[int, ...], read: Callable[[str], Access],
    steps: Callable[[Access], tuple[int, ...]], reduced: Callable[[Node], Access],
) -> Pass | None:  # fmt: skip
    """How the pass of some nodes may end early; None where it may not.

    Args:
        dims: what it goes over.
        read, reduced: how it reads an operand, and where the result of a reduction goes.
        steps: the strides of an access along `dims`.
    """
    if len(dims) != 2 or min(dims) < _LEAST or w.features is not None or w.turns:
        return None
    found, made = Pass(), dict[str, _Made]()
    for node in nodes:
        if node.op == "embed":  # a line of a table for each number, wherever that lies
            return None
        parts = [_operand(w, name, dims, read, steps, made, found) for name in node.inputs]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        of, times = frozenset[Access]().union(*(part.of for part in known)), _times(node, known)
        if OPS[node.op].stage is Stage.REDUCE:
            if node.op not in ("sum", "amax", "amin"):
                return None
            if steps(reduced(node)) == (1, 0):
                if of or w.parts.get(node.output):
                    return None
                found.same.append(node)
                continue
        if OPS[node.op].stage is Stage.POINTWISE:
            if w.homes.get(node.output) or w.parts.get(node.output) or node.output in w.lines:
                return None
            made[node.output] = _Made(of, times)
            continue
        if node.op not in ("sum", "sum_steps") or not times or of != times:
            return None
        if node.op == "sum" and not w.homes.get(node.output) and not any(steps(reduced(node))):
            return None  # a variable of the loop, which nothing behind it knows
        found.zeros += times - {*found.zeros}
        if node.op == "sum_steps":
            found.totals.append(node)
    known = all(w.alike.setdefault(name, dims) == dims for name in found.memories)
    return found if found.memories and known else None


def _operand(
    w: Places, name: str, dims: tuple[int, ...], read: Callable[[str], Access],
    steps: Callable[[Access], tuple[int, ...]], made: Mapping[str, _Made], found: Pass,
) -> _Made | None:  # fmt: skip
    """What an operand is made of; None where lines that are alike may have different ones."""
    seen = read(name)
    if seen.base in made:
        return made[seen.base]
    down, across = steps(seen)
    if not down:
        return _Made()
    if not across:
        return _Made(frozenset({seen}), frozenset({seen}))
    whole = seen.base in w.p.whole and not seen.offset and w.p.value(seen.base).size == dims[0] * dims[1]
    if not whole or (down, across) != (dims[1], 1):
        return None
    if seen.base not in found.memories:
        found.memories.append(seen.base)
    return _Made()


def _times(node: Node, parts: list[_Made]) -> frozenset[Access]:
    """The numbers of which a result is a multiple."""
    if node.op == "mul":
        return parts[0].times | parts[1].times
    if node.op in ("neg", "copy", "div", "sum", "sum_steps"):
        return parts[0].times
    if node.op in ("add", "sub"):
        return parts[0].times & parts[1].times
    return frozenset()
