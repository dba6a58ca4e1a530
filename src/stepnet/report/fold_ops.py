"""A loop's ops gathered into boxes worth drawing, and the arrows between them.

Views, constants and casts become part of an arrow, but for `cat`, where arrows meet. Cheap arithmetic of one
line of code becomes one box, and so does everything that the backward loop recomputes; matmuls,
transcendentals, noise and torch calls stay boxes of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

import networkx as nx

from .boxes import Box
from .cost import reads_values
from .records import LoopSummary, Op, Region
from .svg import AROUND, ONCE, STEP, Theme
from .words import Titles, count, counted, shape, short

_ALONE = {
    "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "pow", "atan2",
    "rand", "randn", "argmax", "argmin", "cat", "stack",
}  # fmt: skip
_JOINS = ("cat", "stack")
Kind = Literal["op", "input", "state", "next state", "output"]


@dataclass(frozen=True)
class Drawn:
    """A box of the picture, in a region by its index, or outside of all."""

    kind: Kind
    box: Box
    region: int | None = None


@dataclass(frozen=True)
class Folded:
    """The boxes of a loop and the arrows between them, by number; next states in the order of the states."""

    nodes: list[Drawn]
    arrows: list[tuple[int, int]]


def fold(
    loop: LoopSummary, saved: Collection[str], known: Collection[str], declined: Collection[str | None]
) -> Folded:
    """Gather a loop's ops into boxes.

    Args:
        loop: the loop.
        saved: names of values that are saved for the backward loop.
        known: names of values that the forward loop computed, so that this one recomputes them.
        declined: lines of code for which an executor declined.
    """
    groups = _groups(loop, known)
    carries = [(i, *pair) for i, region in enumerate(loop.regions) for pair in region.carries]
    shapes = {port.name: port.shape for port in (*loop.enters, *loop.leaves)}
    inputs = [port.name for port in loop.enters if port.role in ("x", "gradient")]
    shown = {name for _, ops in groups for op in ops if op.kind == "sum" for name in op.outputs}
    shown |= {result for _, _, result in carries} if loop.direction == "backward" else set()
    outputs = [label for label, inner in loop.sources.items() if inner not in shown]

    nodes = [Drawn("input", _value(f"{name} {shape(shapes[name])}", AROUND)) for name in inputs]
    producers = {name: [i] for i, name in enumerate(inputs)}
    for i, parameter, _ in carries:
        producers[parameter] = [len(nodes)]
        nodes.append(Drawn("state", _value(parameter, STEP), i))
    targets: list[tuple[str, int]] = []  # (value, the box that reads it)
    for i, parameter, result in carries:
        targets.append((result, len(nodes)))
        label = result if result.startswith("gradient") else f"next {parameter}"
        nodes.append(Drawn("next state", _value(label, STEP), i))
    titles, blamed = Titles(loop), _blamed(loop, groups, declined)
    for group in groups:
        i, ops = group
        producers |= {name: [len(nodes)] for op in ops for name in op.outputs}
        targets = [*targets, *((name, len(nodes)) for op in ops for name in op.inputs)]
        box = replace(_op_box(loop.regions[i], ops, titles, known), declined=group in blamed)
        nodes.append(Drawn("op", box, i))
    for label in outputs:
        targets.append((loop.sources[label], len(nodes)))
        nodes.append(Drawn("output", _value(f"{label} {shape(shapes[label])}", AROUND)))

    sources = _followed(loop, producers)
    arrows = dict.fromkeys((a, b) for name, b in targets for a in sources(name) if a != b)
    if loop.direction == "forward":
        for i in {i for name in saved for i in sources(name)}:
            nodes[i] = replace(nodes[i], box=replace(nodes[i].box, saved=True))
    return Folded(nodes, list(arrows))


def theme(region: Region) -> Theme:
    """The colours of a region."""
    if region.kind in ("map", "sequences") or region.passes:
        return ONCE
    return STEP if region.kind in ("scan", "loop") else AROUND


def _value(label: str, colours: Theme) -> Box:
    label = _brief(label)
    return Box(label, (), label, colours, round=True)


def _brief(label: str) -> str:
    """'gradient of w' as '∂w'."""
    return label.replace("gradient of ", "∂")


def _vanishes(op: Op) -> bool:
    """True for ops that are drawn as part of an arrow."""
    return op.weight == "move" and (op.name not in _JOINS or op.kind == "shared")


def _followed(loop: LoopSummary, makers: dict[str, list[int]]) -> Callable[[str], list[int]]:
    """Which of `makers` a value comes from, through what is drawn as part of an arrow."""
    vanished = [op for region in loop.regions for op in region.ops if _vanishes(op)]
    moved = {name: op.inputs for op in vanished for name in op.outputs}

    def made_by(name: str) -> list[int]:
        if name not in makers:
            makers[name] = []
            found = (n for read in moved.get(name, ()) for n in made_by(read))
            makers[name] = list(dict.fromkeys(found))
        return makers[name]

    return made_by


def _groups(loop: LoopSummary, known: Collection[str]) -> list[tuple[int, tuple[Op, ...]]]:
    """The ops of each box with their region: arithmetic of one line of code, as long as no cycle results."""
    ops = [(i, op) for i, region in enumerate(loop.regions) for op in region.ops if not _vanishes(op)]
    made_by = _followed(loop, {name: [n] for n, (_, op) in enumerate(ops) for name in op.outputs})
    pairs = ((n, m) for m, (_, op) in enumerate(ops) for name in op.inputs for n in made_by(name))
    edges = sorted({(n, m) for n, m in pairs if n != m})
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(len(ops)))
    group = {n: [n] for n in range(len(ops))}  # of each op those of its box, the one list for all of them

    def merge(a: int, b: int) -> None:
        nx.contracted_nodes(graph, group[a][0], group[b][0], self_loops=False, copy=False)
        group[a].extend(group[b])
        group.update(dict.fromkeys(group[b], group[a]))

    recomputed: dict[int, int] = {}  # the first such op of each region: they read no other ops
    for n, (region, op) in enumerate(ops):
        if (
            op.kind == "row"
            and all(name in known for name in op.outputs)
            and recomputed.setdefault(region, n) != n
        ):
            merge(recomputed[region], n)
    fixed = [group[n] for n in recomputed.values()]
    for n, m in edges:
        (i, first), (j, second) = ops[n], ops[m]
        alike = (i, first.line) == (j, second.line) and _mergeable(first) and _mergeable(second)
        if not alike or group[n] is group[m] or group[n] in fixed or group[m] in fixed:
            continue
        ends = group[n][0], group[m][0]
        graph.remove_edge(*ends)
        if nx.has_path(graph, *ends):  # through a third box: merged, they would make a cycle
            graph.add_edge(*ends)
        else:
            merge(n, m)
    boxes = {id(members): members for members in group.values()}.values()
    return [(ops[members[0]][0], tuple(ops[n][1] for n in sorted(members))) for members in boxes]


def _mergeable(op: Op) -> bool:
    return op.weight in ("cheap", "costly") and op.name not in _ALONE


def _blamed(
    loop: LoopSummary, groups: list[tuple[int, tuple[Op, ...]]], lines: Collection[str | None]
) -> list[tuple[int, tuple[Op, ...]]]:
    """The boxes that made an executor decline: those of the line it named, torch calls first."""
    per_step = [group for group in groups if loop.regions[group[0]].kind in ("scan", "loop")]
    named = [group for group in per_step if any(op.line in lines for op in group[1])]
    return [group for group in named if any(op.weight == "call" for op in group[1])] or named


def _op_box(region: Region, ops: tuple[Op, ...], titles: Titles, known: Collection[str]) -> Box:
    last = ops[-1]
    results = ", ".join(result for op in ops if op.kind == "sum" and (result := titles.result(op)))
    title, below, product, join = _summary(ops), results or shape(last.shape), False, False
    if last.kind == "row" and all(name in known for name in last.outputs):
        title, below = "computed again", f"{count(len(ops), 'op')}, from what was kept"
    elif last.is_matmul:
        title, below, product = titles.matmul(last), short(last.flops, "FLOP"), True
        if last.kind == "sum":
            title = results or "matmul over rows"
            below = f"{'matmul over rows' if results else shape(last.shape)}, {below}"
        elif "·" in title:
            title = title.removeprefix("matmul ")
    elif region.kind == "prologue":
        read = dict.fromkeys(name for op in ops for n in op.inputs if (name := titles.loop.origin(n)))
        title, below = " ".join((title, ", ".join(read))), "once, on weights"
    elif region.kind == "epilogue":
        below = results or "once, on sums"
    elif last.name in _JOINS:
        join = True
    elif reads_values(last.name):
        below = "Python reads it"
    tip = [f"{op.name} {shape(op.shape)}, {short(op.flops, 'FLOP')}" for op in ops]
    lines = [line for line in region.lines if line.at and any(op in line.ops for op in ops)]
    tip += [f"{line.at}  {line.code or ''}".rstrip() for line in lines]
    return Box(
        _brief(title), () if join else (_brief(below),), "\n".join(tip), theme(region),
        fill="ink" if product else "white", round=join, small=join,
    )  # fmt: skip


def _summary(ops: tuple[Op, ...]) -> str:
    """'2 mul, add'; for many ops what they amount to, or how many they are."""
    names = Counter(op.name for op in ops).keys()
    if "sum" in names and names & {"rsqrt", "sqrt"}:
        return f"normalise ({len(ops)} ops)"
    return f"{len(ops)} ops" if len(names) > 3 else ", ".join(counted(ops))
