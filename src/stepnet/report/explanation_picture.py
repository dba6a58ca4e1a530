"""An explanation as a picture: the step's graph, a panel for each region, coloured by how often it runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import pairwise

from stepnet.executors.naive import PLAIN

from . import svg
from .boxes import Box
from .explanation import Explanation, ModelExplanation
from .fold_ops import Drawn, Folded, fold, theme
from .graph import Graph
from .layers import spread
from .records import LoopSummary
from .words import count, direction, extent, share, short, summary, when

_HEAD, _PAD, _BETWEEN = 60.0, 18.0, 52.0
_ICON = 74.0  # where a panel's header begins, beside the icon
_NARROWEST = 780.0
_BAR = 240.0  # of the recurrence that computes most


def picture(it: Explanation | ModelExplanation) -> str:
    """The picture of one recurrence or of a model."""
    if isinstance(it, ModelExplanation):
        return _model_picture(it)
    canvas = svg.Canvas()
    width, y = _draw(canvas, it, 0.0)
    return canvas.svg(width, y, f"What stepnet does with the step {it.name}")


def _model_picture(it: ModelExplanation) -> str:
    """A bar for each recurrence, then the graph of each that is not drawn before."""
    canvas = svg.Canvas()
    y = canvas.heading(10.0, [(it.name, 20, svg.TEXT), (summary(it), 13, svg.FAINT)])
    width, y = _NARROWEST, _bars(canvas, it, y + 18)
    for number, one in enumerate(it.recurrences):
        if it.recurrences.index(one) == number:
            canvas.element("path", d=f"M24 {y + 8:.1f}H756", stroke=svg.WIRE)
            right, y = _draw(canvas, one, y + 14)
            width = max(width, right)
    return canvas.svg(width, y, f"What stepnet does with the recurrences of {it.name}")


def _bars(canvas: svg.Canvas, it: ModelExplanation, y: float) -> float:
    most = max(max(one.flops for one in it.recurrences), 1)
    for number, one in enumerate(it.recurrences, 1):
        canvas.text(svg.LEFT, y + 12, svg.cut(f"{number}  {one.name}", 12, 190), 12, fill=svg.TEXT)
        canvas.text(220.0, y + 12, svg.cut(direction(one), 12, 150), 12, fill=svg.FAINT)
        once, whole = (_BAR * flops / most for flops in (one.batched_flops, one.flops))
        canvas.box(375.0, y, once, 15, fill=svg.ONCE.ink)
        canvas.box(375.0 + once, y, whole - once, 15, fill=svg.STEP.ink)
        words = f"{short(one.flops, 'FLOP')}, {one.label}"
        canvas.text(381.0 + whole, y + 12, words, 11, fill=svg.FAINT)
        y += 22
    marks = (("on many rows at once", svg.ONCE), ("at every step", svg.STEP))
    return canvas.legend(y + 12, _NARROWEST, [svg.Mark("box", words, it.ink, it.ink) for words, it in marks])


def _draw(canvas: svg.Canvas, it: Explanation, top: float) -> tuple[float, float]:
    """Draw one recurrence from `top` down; its width and where it ends."""
    y, width = canvas.heading(top + 10, _heading(it)) + 22, _NARROWEST
    saved = {saved.name for saved in it.saved if saved.extra}
    declined = {refused.line for refused in it.refusals} - {None}
    known: set[str] = set()
    for loop in it.loops:
        folded = fold(loop, saved, known, declined)
        known |= loop.makers.keys()
        title = f"{loop.direction.capitalize()}, {short(loop.flops, 'FLOP')}"
        canvas.text(svg.LEFT, y + 16, title, 15, fill=svg.TEXT, **svg.BOLD)
        right, y = _LoopPicture(it, loop, folded).draw(canvas, y + 30)
        width, y = max(width, right + svg.LEFT), y + 30
    return width, canvas.legend(y, width, _marks(it, declined))


def _heading(it: Explanation) -> Iterator[tuple[str, float, str]]:
    yield it.name, 20.0, svg.TEXT
    yield extent(it), 13.0, svg.FAINT
    if it.compiled:
        words = (
            f"Runs by {it.label}. {share(it.batched_flops, it.flops)} of the arithmetic waits "
            "for no earlier step: it is done on many rows at once."
        )
    elif it.executor == PLAIN.name:
        words = "Runs by the plain loop: the whole step waits for the step before."
    else:
        words = "The backend asked for declines the step; nothing runs."
    yield words, 13.0, svg.TEXT
    for refused in it.refusals:
        at = f" ({refused.line})" if refused.line else ""
        reason = f"{refused.label} declined: {refused.reason}{at}"
        for text in (reason, f"remedy: {refused.remedy}" if refused.remedy else ""):
            yield from ((line, 12.0, svg.STEP.ink) for line in textwrap.wrap(text, 110))


def _marks(it: Explanation, declined: set[str | None]) -> Iterator[svg.Mark]:
    if it.compiled:
        yield svg.Mark("box", "matmul on many rows at once", svg.ONCE.ink, svg.ONCE.ink)
    if it.loops:
        yield svg.Mark("box", "matmul at every step", svg.STEP.ink, svg.STEP.ink)
        yield svg.Mark("box", "other arithmetic")
        yield svg.Mark("arrow", "state, from step to step")
    if it.saved_bytes:
        yield svg.Mark("dot", f"kept for backward, {short(it.saved_bytes, 'B')}")
    if any(op.line in declined for op in it.find()):
        yield svg.Mark("frame", "declined")
    if len(it.loops) > 1:
        yield svg.Mark("", "∂w: gradient of w")


class _RegionPanel:
    """A region: a header over the graph of its boxes."""

    def __init__(self, it: Explanation, loop: LoopSummary, number: int, folded: Folded) -> None:
        self.region = region = loop.regions[number]
        self.ragged = it.shortest < it.steps
        self.nodes = [n for n, node in enumerate(folded.nodes) if node.region == number]
        kinds = [folded.nodes[n].kind for n in self.nodes]
        place = {n: k for k, n in enumerate(self.nodes)}
        edges = [(place[a], place[b]) for a, b in folded.arrows if a in place and b in place]
        if region.kind == "map":  # boxes without neighbours in this region stand in one column
            joined = {k for edge in edges for k in edge}
            edges += pairwise(k for k in place.values() if k not in joined)
        leaving = {a for a, b in folded.arrows if b not in place}
        entering = {b for a, b in folded.arrows if a not in place}
        states, results = (
            [k for k in place.values() if kinds[k] == kind] for kind in ("state", "next state")
        )
        self.graph = Graph(
            [folded.nodes[n].box for n in self.nodes],
            edges,
            [{"state": -1, "next state": 1}.get(kind, 0) for kind in kinds],
            pulls=[0.5 * ((n in leaving) - (n in entering)) for n in self.nodes],
            back_edges=list(zip(results, states, strict=True)),
        )
        steps = f"{count(region.runs, 'step')}, one by one"
        cost = f"{short(region.flops, 'FLOP')}, {share(region.flops, loop.flops)}"
        self.head = steps if region.per_step else when(region, it.rows, 0)
        self.cost = f"{region.label}: {cost}"
        self.turn = "to the next step" if loop.direction == "forward" else "to the step before"
        self.left = self.top = 0.0

    @property
    def width(self) -> float:
        head = max(svg.text_width(self.head, 13) * 1.1, svg.text_width(self.cost, 11))
        return max(self.graph.width + 2 * _PAD, _ICON + 12 + head)

    @property
    def height(self) -> float:
        return _HEAD + self.graph.height + 2 * _PAD

    def move(self, left: float, top: float) -> None:
        """Put its corner at a point of the picture."""
        self.left, self.top = left, top
        self.graph.move(left + (self.width - self.graph.width) / 2, top + _HEAD + _PAD)

    def draw(self, canvas: svg.Canvas) -> None:
        """The ground with its header, and the back edges."""
        colours, region = theme(self.region), self.region
        left, top = self.left, self.top
        canvas.box(left, top, self.width, self.height, rx=12, fill=colours.paper, stroke=colours.ink)
        shown = range(3, 4) if region.per_step else range(2, 4) if region.in_blocks else range(7)
        _rows_icon(canvas, left + 16, top + 16, colours, self.ragged, shown)
        canvas.text(left + _ICON, top + 26, self.head, 13, fill=colours.ink, **svg.BOLD)
        canvas.text(left + _ICON, top + 42, self.cost, 11, fill=svg.FAINT)
        self.graph.draw_back_edges(canvas)
        if self.graph.back_edges:
            x, y = self.graph.lanes_right + 11, self.graph.centre(0)[1] + 60
            turn = f"rotate(90 {x:.1f} {y:.1f})"
            canvas.text(x, y, self.turn, 11, fill=svg.STEP.ink, text_anchor="middle", transform=turn)


def _rows_icon(
    canvas: svg.Canvas, x: float, y: float, colours: svg.Theme, ragged: bool, shown: range
) -> None:
    """Sequences as rows of steps, those of the steps `shown` inked."""
    for row, length in enumerate((7, 5, 6, 3) if ragged else (7, 7, 7, 7)):
        for step in range(length):
            opacity = 1 if step in shown else 0.22
            canvas.box(x + 6.5 * step, y + 6.5 * row, 5, 5, fill=colours.ink, fill_opacity=opacity)


class _LoopPicture:
    """The panels of a loop from left to right, beside inputs and outputs, and work on weights and on sums."""

    def __init__(self, it: Explanation, loop: LoopSummary, folded: Folded) -> None:
        self.nodes, self.arrows = [*folded.nodes], folded.arrows
        inner = ("sequences", "map", "scan", "loop")
        panels = (_RegionPanel(it, loop, i, folded) for i, r in enumerate(loop.regions) if r.kind in inner)
        self.panels = [panel for panel in panels if panel.nodes]
        self.kept: int | None = None  # the node of what the backward loop reads of the forward one
        if any(port.role == "kept" for port in loop.enters):
            label = f"kept, {short(it.saved_per_row, 'B')} a row"
            self.kept = len(self.nodes)
            box = Box(label, (), label, svg.Theme(svg.SAVED, "#ffffff"), round=True)
            self.nodes.append(Drawn("input", box))
        drawn = {n for arrow in self.arrows for n in arrow} | {self.kept}
        inside = {n: part for part, panel in enumerate(self.panels) for n in panel.nodes}
        beside = [
            n for n, node in enumerate(self.nodes) if n not in inside and (node.kind != "input" or n in drawn)
        ]
        self.parts: list[_RegionPanel | Box] = [*self.panels, *(self.nodes[n].box for n in beside)]
        self.part = inside | {n: part for part, n in enumerate(beside, len(self.panels))}
        edges = {(self.part[a], self.part[b]) for a, b in self.arrows if a in self.part and b in self.part}
        if self.kept is not None and self.panels:
            edges.add((self.part[self.kept], 0))
        self.at: dict[int, svg.Point] = {}  # of nodes that were moved
        ends = [{"input": -1, "output": 1}.get(self.nodes[n].kind, 0) for n in beside]
        self.graph = Graph(
            self.parts,
            sorted((a, b) for a, b in edges if a != b),
            [*(0 for _ in self.panels), *ends],
            drop=_BETWEEN,
            across=True,
        )

    def draw(self, canvas: svg.Canvas, top: float) -> tuple[float, float]:
        """Draw at a height; the right and the lower border."""
        self.graph.move(svg.LEFT, top)
        for i, panel in enumerate(self.panels):
            x, y = self.graph.centre(i)
            panel.move(x - panel.width / 2, y - panel.height / 2)
            panel.draw(canvas)
        self._level()
        for a, b in self.arrows:
            if a in self.part and b in self.part:
                self._arrow(canvas, a, b)
        if self.kept is not None and self.panels:
            (x, y), first = self.centre(self.kept), self.panels[0]
            start = x + self.nodes[self.kept].box.width / 2, y
            end = first.left - 2, min(max(y, first.top + _PAD), first.top + first.height - _PAD)
            canvas.arrow(svg.across(start, end), svg.SAVED, 1.8)
        for n in self.part:
            self.nodes[n].box.draw(canvas, *self.centre(n))
        return svg.LEFT + self.graph.width, top + self.graph.height

    def _level(self) -> None:
        """Put columns without panels at the heights of what their boxes are joined to."""
        columns: dict[float, list[int]] = {}
        for n in self.part:
            if not isinstance(self.parts[self.part[n]], _RegionPanel):
                columns.setdefault(self.centre(n)[0], []).append(n)
        for i in range(len(self.panels)):
            columns.pop(self.graph.centre(i)[0], None)
        for x, nodes in columns.items():
            wishes = {}
            for n in nodes:
                near = [b if a == n else a for a, b in self.arrows if n in (a, b)]
                heights = [self.centre(other)[1] for other in near if other in self.part]
                wishes[n] = sum(heights) / len(heights) if heights else self.centre(n)[1]
            nodes.sort(key=wishes.__getitem__)
            sizes = [self.nodes[n].box.height for n in nodes]
            heights = spread([wishes[n] for n in nodes], sizes, 14.0)
            above = self.graph.top - (heights[0] - sizes[0] / 2)
            below = heights[-1] + sizes[-1] / 2 - (self.graph.top + self.graph.height)
            shift = max(above, 0.0) - max(below, 0.0)
            self.at |= {n: (x, y + shift) for n, y in zip(nodes, heights, strict=True)}

    def centre(self, n: int) -> svg.Point:
        """The middle of a node."""
        if n in self.at:
            return self.at[n]
        part = self.parts[self.part[n]]
        if isinstance(part, _RegionPanel):
            return part.graph.centre(part.nodes.index(n))
        return self.graph.centre(self.part[n])

    def _arrow(self, canvas: svg.Canvas, a: int, b: int) -> None:
        (x, y), (u, v) = self.centre(a), self.centre(b)
        source, target = self.nodes[a].box, self.nodes[b].box
        part = self.parts[self.part[a]]
        if self.part[a] == self.part[b] and isinstance(part, _RegionPanel):
            bends = part.graph.bends(part.nodes.index(a), part.nodes.index(b))
            canvas.arrow(svg.down([(x, y + source.height / 2), *bends, (u, v - target.height / 2 - 2)]))
        else:
            line = svg.across((x + source.width / 2, y), (u - target.width / 2 - 2, v))
            canvas.arrow(line, opacity=0.55 if self.graph.skips(self.part[a], self.part[b]) else 1)
