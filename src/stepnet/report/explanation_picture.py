"""An explanation as a picture: the step's graph, a panel for each region, coloured by how often it runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stepnet.executors.naive import PLAIN

from . import svg
from .boxes import Box
from .explanation import Explanation, ModelExplanation
from .fold_ops import Folded, Node, fold, theme
from .graph import Graph
from .layers import spread
from .records import LoopSummary, Region
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
        pulls = [0.5 * ((n in leaving) - (n in entering)) for n in self.nodes]
        states, results = (
            [k for k in place.values() if kinds[k] == kind] for kind in ("state", "next state")
        )
        self.graph = Graph(
            [folded.nodes[n].box for n in self.nodes],
            edges,
            [{"state": -1, "next state": 1}.get(kind, 0) for kind in kinds],
            pulls=pulls,
            back_edges=list(zip(results, states, strict=True)),
        )
        steps = f"{count(region.runs, 'step')}, one by one"
        cost = f"{short(region.flops, 'FLOP')}, {share(region.flops, loop.flops)}"
        self.head = steps if region.per_step else when(region, it.rows, 0)
        self.cost = f"{region.label}: {cost}"
        self.turn = "to the next step" if loop.direction == "forward" else "to the step before"
        self.left = 0.0

    @property
    def width(self) -> float:
        head = max(svg.text_width(self.head, 13) * 1.1, svg.text_width(self.cost, 11))
        return max(self.graph.width + 2 * _PAD, _ICON + 12 + head)

    @property
    def height(self) -> float:
        return self.graph.height + 2 * _PAD

    def move(self, top: float, shift: float) -> None:
        """Put the graph into the panel, lowered by a shift."""
        self.graph.move(self.left + (self.width - self.graph.width) / 2, top + _PAD + shift)

    def draw(self, canvas: svg.Canvas, top: float, tall: float) -> None:
        """The ground with its header."""
        colours, region = theme(self.region), self.region
        canvas.box(self.left, top, self.width, _HEAD + tall, rx=12, fill=colours.paper, stroke=colours.ink)
        shown = range(3, 4) if region.per_step else range(2, 4) if region.in_blocks else range(7)
        _rows_icon(canvas, self.left + 16, top + 16, colours, self.ragged, shown)
        canvas.text(self.left + _ICON, top + 26, self.head, 13, fill=colours.ink, **svg.BOLD)
        canvas.text(self.left + _ICON, top + 42, self.cost, 11, fill=svg.FAINT)

    def draw_back_edges(self, canvas: svg.Canvas) -> None:
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
    """The panels of a loop side by side, inputs at the left and outputs at the right."""

    def __init__(self, it: Explanation, loop: LoopSummary, folded: Folded) -> None:
        self.arrows, self.nodes = folded.arrows, list(folded.nodes)
        self.saved_node: int | None = None  # what the backward loop reads of the forward one
        if any(port.role == "kept" for port in loop.enters):
            label = f"kept, {short(it.saved_per_row, 'B')} a row"
            box = Box(label, (), label, svg.Theme(svg.SAVED, "#ffffff"), round=True)
            self.saved_node = len(self.nodes)
            self.nodes.append(Node("input", box))
        inner = ("sequences", "map", "scan", "loop")
        panels = (_RegionPanel(it, loop, i, folded) for i, r in enumerate(loop.regions) if r.kind in inner)
        self.panels = [panel for panel in panels if panel.nodes]
        self.inputs, self.outputs = self._sides(loop.regions)
        self.centre: dict[int, svg.Point] = {}
        self.column: dict[int, int] = {}

    def _sides(self, regions: Sequence[Region]) -> tuple[list[int], list[int]]:
        """The nodes left and right of the panels: inputs and outputs, work on weights and on sums."""
        drawn = {n for arrow in self.arrows for n in arrow} | {self.saved_node}
        left, right = [], []
        for n, node in enumerate(self.nodes):
            kind = None if node.region is None else regions[node.region].kind
            if kind == "prologue" or (node.kind == "input" and n in drawn):
                left.append(n)
            elif kind == "epilogue" or node.kind == "output":
                right.append(n)
        return left, right

    def draw(self, canvas: svg.Canvas, top: float) -> tuple[float, float]:
        """Draw at a height; the right and the lower border."""
        boxes = [node.box for node in self.nodes]
        inside = top + _HEAD
        sides = (sum(boxes[n].height + 14 for n in side) for side in (self.inputs, self.outputs))
        tall = max([90.0 if self.panels else 120.0, *sides, *(panel.height for panel in self.panels)])
        x = svg.LEFT + max((boxes[n].width + _BETWEEN for n in self.inputs), default=0.0)
        for i, panel in enumerate(self.panels):
            panel.left = x
            x += panel.width + _BETWEEN
            self.column |= dict.fromkeys(panel.nodes, i)
        for panel in self.panels[::-1]:  # what reads a panel is placed before it
            self._settle(panel, inside, tall)
        self._place_side(self.inputs, svg.LEFT, inside, tall, column=-1)
        edge = x if self.outputs else x - _BETWEEN
        self._place_side(self.outputs, edge, inside, tall, column=len(self.panels))
        for panel in self.panels:
            panel.draw(canvas, top, tall)
        for a, b in self.arrows:
            self._arrow(canvas, a, b)
        if self.saved_node is not None and self.panels:
            (x, y), width = self.centre[self.saved_node], boxes[self.saved_node].width
            canvas.arrow(svg.across((x + width / 2, y), (self.panels[0].left - 2, y)), svg.SAVED, 1.8)
        for panel in self.panels:
            panel.draw_back_edges(canvas)
        for n, (x, y) in self.centre.items():
            boxes[n].draw(canvas, x, y)
        return edge + max((boxes[n].width for n in self.outputs), default=0), inside + tall

    def _settle(self, panel: _RegionPanel, top: float, tall: float) -> None:
        """Place a panel's boxes; those of a low panel beside what reads them."""
        panel.move(top, 0.0)
        at = {n: panel.graph.centre(k) for k, n in enumerate(panel.nodes)}
        shifts = [self.centre[b][1] - at[a][1] for a, b in self.arrows if a in at and b in self.centre]
        spare = tall - panel.height
        shift = min(max(sum(shifts) / len(shifts), 0.0), spare) if shifts else spare / 2
        panel.move(top, shift)
        self.centre |= {n: (x, y + shift) for n, (x, y) in at.items()}

    def _place_side(self, nodes: list[int], left: float, top: float, tall: float, column: int) -> None:
        """Place what stands beside the panels at the height of its neighbours."""
        wishes = {}
        for n in nodes:
            near = [(b if a == n else a) for a, b in self.arrows if n in (a, b)]
            heights = [self.centre[other][1] for other in near if other in self.centre]
            alone = top + tall * (0.85 if n == self.saved_node else 0.5)
            wishes[n] = sum(heights) / len(heights) if heights else alone
        order = sorted(nodes, key=wishes.__getitem__)
        boxes = [self.nodes[n].box for n in order]
        heights = spread([wishes[n] for n in order], [box.height for box in boxes], 14.0)
        borders = [(y - box.height / 2, y + box.height / 2) for y, box in zip(heights, boxes, strict=True)]
        low, high = (borders[0][0], borders[-1][1]) if borders else (top, top)
        nudge = max(top - low, 0.0) - max(high - (top + tall), 0.0)
        widest = max((box.width for box in boxes), default=0.0)
        for n, y, box in zip(order, heights, boxes, strict=True):
            x = left + (widest - box.width / 2 if column < 0 else box.width / 2)
            self.centre[n], self.column[n] = (x, y + nudge), column

    def _arrow(self, canvas: svg.Canvas, a: int, b: int) -> None:
        if a not in self.centre or b not in self.centre:
            return
        (x, y), (u, v) = self.centre[a], self.centre[b]
        source, target = self.nodes[a].box, self.nodes[b].box
        column = self.column[a]
        if column == self.column[b]:
            bends: list[svg.Point] = []
            if 0 <= column < len(self.panels):
                panel = self.panels[column]
                bends = panel.graph.bends(panel.nodes.index(a), panel.nodes.index(b))
            canvas.arrow(svg.down([(x, y + source.height / 2), *bends, (u, v - target.height / 2 - 2)]))
        else:
            far = self.column[b] - column > 1
            line = svg.across((x + source.width / 2, y), (u - target.width / 2 - 2, v))
            canvas.arrow(line, opacity=0.55 if far else 1)
