"""A loop's ops gathered into boxes worth drawing, and the arrows between them.

Views, constants and casts vanish into the arrows, but for `cat`, where arrows meet. Cheap arithmetic of one
line of the user's becomes one box, and so does all that the backward loop computes again; matmuls,
transcendentals, noise and torch calls stay boxes of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from .calls import looks
from .records import Loop, Op
from .titles import Titles, count, shape, short

_ALONE = frozenset(
    name
    for line in (
        "exp expm1 log log1p sin cos tanh sigmoid erf pow atan2",
        "rand randn argmax argmin cat stack",
    )
    for name in line.split()
)

_JOINS = ("cat", "stack")

Style = Literal["matmul", "other", "join"]
Kind = Literal["box", "enter", "kept", "carry", "next", "leave"]
End = tuple[Kind, int]


@dataclass(frozen=True)
class Box:
    """Ops drawn as one: its region by number, and what is written in it."""

    region: int
    ops: tuple[Op, ...]
    title: str
    below: str
    style: Style


@dataclass
class Picture:
    """Boxes, and arrows between (kind, number) ends.

    Ends are a box, an entering or leaving value, what was kept, a carried value at the top of its scan
    ("carry") and its next value at the bottom ("next"), which are numbered alike.
    """

    boxes: list[Box]
    carries: list[tuple[int, str, str]]  # (region, parameter, result)
    enters: list[str]
    leaves: list[str]
    arrows: dict[tuple[End, End], None] = field(default_factory=dict)
    kept: set[End] = field(default_factory=set)  # where what is kept for backward comes from


def fold(loop: Loop, kept: frozenset[str], known: frozenset[str] = frozenset()) -> Picture:
    """Gather a loop's ops into boxes.

    Args:
        loop: the loop.
        kept: names of values that are kept for the backward loop.
        known: names of values that the forward loop made, so that this one makes them again.
    """
    groups = _groups(loop, known)
    titles = Titles(loop)
    boxes = [_box(loop, region, ops, titles, known) for region, ops in groups]
    carries = [(i, a, b) for i, region in enumerate(loop.regions) for a, b in region.carries]
    entering = [port.name for port in loop.enters if port.role in ("x", "gradient")]
    turning = {b for _, _, b in carries} if loop.direction == "backward" else set()
    in_boxes = {name for box in boxes for op in box.ops if op.kind == "sum" for name in op.outputs}
    leaving = [label for label, inner in loop.sources.items() if inner not in turning | in_boxes]
    picture = Picture(boxes, carries, entering, leaving)
    anchors: dict[str, tuple[End, ...]] = {name: (("enter", i),) for i, name in enumerate(entering)}
    anchors |= {name: (("carry", i),) for i, (_, name, _) in enumerate(carries)}
    anchors |= {name: (("box", i),) for i, box in enumerate(boxes) for op in box.ops for name in op.outputs}
    moved = _moved(loop)

    def sources(name: str) -> tuple[End, ...]:
        if name not in anchors:
            anchors[name] = ()
            anchors[name] = tuple(dict.fromkeys(end for n in moved.get(name, ()) for end in sources(n)))
        return anchors[name]

    def join(name: str, target: End) -> None:
        for end in sources(name):
            if end != target:
                picture.arrows[end, target] = None

    for i, box in enumerate(boxes):
        for op in box.ops:
            for name in op.inputs:
                join(name, ("box", i))
    for i, (_, _, result) in enumerate(carries):
        join(result, ("next", i))
    for i, label in enumerate(leaving):
        join(loop.sources[label], ("leave", i))
    if loop.direction == "forward":
        picture.kept = {end for name in kept for end in sources(name)}
    return picture


def _vanishes(op: Op) -> bool:
    """True for ops that are drawn as part of an arrow."""
    return op.weight == "move" and (op.name not in _JOINS or op.kind == "shared")


def _moved(loop: Loop) -> dict[str, tuple[str, ...]]:
    """What each value that vanishes was made of."""
    ops = [op for region in loop.regions for op in region.ops if _vanishes(op)]
    return {name: op.inputs for op in ops for name in op.outputs}


def _groups(loop: Loop, known: frozenset[str]) -> list[tuple[int, list[Op]]]:
    """Ops that are drawn, those of one line that do arithmetic together as long as no cycle comes of it."""
    ops = [(i, op) for i, region in enumerate(loop.regions) for op in region.ops if not _vanishes(op)]
    makers: dict[str, int] = {name: n for n, (_, op) in enumerate(ops) for name in op.outputs}
    moved = _moved(loop)
    found: dict[str, set[int]] = {}

    def makes(name: str) -> set[int]:
        if name not in found:
            found[name] = {makers[name]} if name in makers else set()
            found[name] |= {n for inner in moved.get(name, ()) for n in makes(inner)}
        return found[name]

    after: dict[int, set[int]] = {n: set() for n in range(len(ops))}
    for n, (_, op) in enumerate(ops):
        for name in op.inputs:
            for maker in makes(name):
                if maker != n:
                    after[maker].add(n)
    group = {n: n for n in after}
    members = {n: [n] for n in after}
    again: dict[int, int] = {}  # the first op that a region computes again: they read no other ops
    for n, (region, op) in enumerate(ops):
        if op.kind == "row" and known.issuperset(op.outputs):
            first = group[n] = again.setdefault(region, n)
            if first != n:
                members[first] += members.pop(n)
    for n, (region, op) in enumerate(ops):
        for reader in sorted(after[n]):
            a, b = group[n], group[reader]
            alike = (region, op.line) == (ops[reader][0], ops[reader][1].line)
            if a == b or not alike or {a, b} & set(again.values()) or not _both_merge(op, ops[reader][1]):
                continue
            if not _reaches(a, b, members, group, after):
                members[a] += members[b]
                for m in members.pop(b):
                    group[m] = a
    return [(ops[chosen[0]][0], [ops[n][1] for n in sorted(chosen)]) for chosen in members.values()]


def _both_merge(a: Op, b: Op) -> bool:
    return all(op.weight in ("cheap", "costly") and op.name not in _ALONE for op in (a, b))


def _reaches(
    start: int, goal: int, members: dict[int, list[int]], group: dict[int, int], after: dict[int, set[int]]
) -> bool:
    """True if a third group lies on a way from one group to another: as one they would make a cycle."""
    todo = [g for m in members[start] for n in after[m] if (g := group[n]) not in (start, goal)]
    seen = set(todo)
    while todo:
        for m in members[todo.pop()]:
            for n in after[m]:
                if group[n] == goal:
                    return True
                if group[n] not in seen and group[n] != start:
                    seen.add(group[n])
                    todo.append(group[n])
    return False


def _box(loop: Loop, region: int, ops: list[Op], titles: Titles, known: frozenset[str]) -> Box:
    last, kind = ops[-1], loop.regions[region].kind
    results = ", ".join(result for op in ops if op.kind == "sum" and (result := titles.result(op)))
    style: Style = "other"
    title, below = _words(ops), results or shape(last.shape)
    if last.kind == "row" and known.issuperset(last.outputs):
        title, below = "computed again", f"{count(len(ops), 'op')}, from what was kept"
    elif last.is_matmul:
        style, title, below = "matmul", titles.matmul(last), short(last.flops, "FLOP")
        if last.kind == "sum":
            title = results or "matmul over rows"
            below = f"{'matmul over rows' if results else shape(last.shape)}, {below}"
        elif "·" in title:
            title = title.removeprefix("matmul ")
    elif kind == "prologue":
        read = dict.fromkeys(name for op in ops for n in op.inputs if (name := loop.origin(n)))
        title, below = " ".join((title, ", ".join(read))), "once, on weights"
    elif kind == "epilogue":
        below = results or "once, on sums"
    elif last.name in _JOINS:
        style = "join"
    elif looks(last.name):
        below = "Python reads it"
    return Box(region, tuple(ops), title, below, style)


def _words(ops: list[Op]) -> str:
    """'2 mul, add'; for many ops what they come to, or how many they are."""
    counts = Counter(op.name for op in ops)
    if "sum" in counts and counts.keys() & {"rsqrt", "sqrt"}:
        return f"normalise ({len(ops)} ops)"
    if len(counts) > 3:
        return f"{len(ops)} ops"
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())
