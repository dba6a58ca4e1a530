"""One loop of the picture: a panel for each region, boxes in it, arrows between."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from . import look as looks
from .draw import Canvas, Point, across, corners, cut, down, text_width
from .fold import Box, End, Kind, Picture
from .layers import Item, Placed, arrange, spread
from .look import PILL, SMALL, TITLE, brief, look
from .records import Loop, Region
from .titles import count, shape, share, short, when

if TYPE_CHECKING:
    from .explanation import Explanation

_HEAD, _PAD, _BETWEEN = 60.0, 18.0, 52.0
_LANE = 10.0  # between lines that go round a loop
_ICON = 74.0  # where a panel's header begins, beside the icon


@dataclass
class _Panel:
    """A region's column: the ends in it in the order in which `placed` has them."""

    region: Region
    ends: list[End]
    sizes: list[tuple[float, float]]
    placed: Placed
    lanes: int
    header: tuple[str, str]
    left: float = 0.0
    top: float = 0.0  # of what is in it

    @property
    def width(self) -> float:
        inner = self.placed.width + 2 * _PAD + (self.lanes * _LANE + 26 if self.lanes else 0)
        head, cost = self.header
        return max(inner, _ICON + 12 + max(text_width(head, 13) * 1.1, text_width(cost, 11)))

    @property
    def height(self) -> float:
        return self.placed.height + 2 * (_PAD + self._round)

    @property
    def _round(self) -> float:
        return 12 + 6 * self.lanes if self.lanes else 0

    @property
    def origin(self) -> Point:
        room = self.width - (self.lanes * _LANE + 26 if self.lanes else 0)
        return self.left + (room - self.placed.width) / 2, self.top + _PAD + self._round


class LoopPanels:
    """Places and draws one loop."""

    def __init__(self, it: Explanation, loop: Loop, picture: Picture) -> None:
        self.loop, self.picture = loop, picture
        self.ragged, self.rows = it.shortest < it.steps, it.rows
        self.declined = _declined(it, loop, picture)
        self.place: dict[End, tuple[float, float, float, float]] = {}  # centre and size
        self.column: dict[End, int] = {}
        self.bends: dict[tuple[End, End], list[Point]] = {}
        shapes = {port.name: port.shape for port in (*loop.enters, *loop.leaves)}
        self.labels: dict[End, str] = {}
        for i, name in enumerate(picture.enters):
            self.labels["enter", i] = f"{brief(name)} {shape(shapes[name])}" if name in shapes else name
        for i, name in enumerate(picture.leaves):
            self.labels["leave", i] = f"{brief(name)} {shape(shapes[name])}"
        for i, (_, parameter, result) in enumerate(picture.carries):
            self.labels["carry", i] = brief(parameter)
            self.labels["next", i] = brief(result if result.startswith("gradient") else f"next {parameter}")
        self.reads_kept = any(port.role == "kept" for port in loop.enters)
        if self.reads_kept:
            a_row = sum(saved.bytes_per_row for saved in it.saved if saved.extra)
            self.labels["kept", 0] = f"kept, {short(a_row, 'B')} a row"
        self.panels = [p for i in range(len(loop.regions)) if (p := self._panel(i)) is not None]

    def _panel(self, number: int) -> _Panel | None:
        region, picture = self.loop.regions[number], self.picture
        if region.kind in ("prologue", "epilogue"):
            return None
        turning = [i for i, (at, *_) in enumerate(picture.carries) if at == number]
        mine = [i for i, box in enumerate(picture.boxes) if box.region == number]
        ends = [*_ends("carry", turning), *_ends("next", turning), *_ends("box", mine)]
        if not ends:
            return None
        inside = {end: n for n, end in enumerate(ends)}
        sizes = [self._size(end) for end in ends]
        edges = [(inside[a], inside[b]) for a, b in picture.arrows if a in inside and b in inside]
        joined = {n for edge in edges for n in edge}
        if region.kind == "map":  # what is joined to nothing here stands in one column
            alone = [n for n in inside.values() if n not in joined]
            edges += pairwise(alone)
        items = []
        for end, (width, height) in zip(ends, sizes, strict=True):
            entering = any(b == end and a not in inside for a, b in picture.arrows)
            leaving = any(a == end and b not in inside for a, b in picture.arrows)
            side = {"carry": -1, "next": 1}.get(end[0], 0)
            items.append(Item(width, height, side, 0.5 * (leaving - entering)))
        return _Panel(region, ends, sizes, arrange(items, edges), len(turning), self._header(region))

    def _size(self, end: End) -> tuple[float, float]:
        if end[0] == "box":
            box = self.picture.boxes[end[1]]
            return looks.box_size(brief(box.title), brief(box.below), box.style)
        return looks.pill_width(self.labels[end]), PILL

    def draw(self, canvas: Canvas, top: float) -> tuple[float, float]:
        """Draw at a height; returns the right and the lower border."""
        left, right = self._sides()
        tall = max(
            *(panel.height for panel in self.panels),
            *(sum(self._size(end)[1] + 14 for end in side) for side in (left, right)),
            90.0,
        ) if self.panels else 120.0  # fmt: skip
        x = 24.0 + max((self._size(end)[0] for end in left), default=0) + (_BETWEEN if left else 0)
        for n, panel in enumerate(self.panels):
            panel.left, panel.top = x, top + _HEAD
            x += panel.width + _BETWEEN
            self.column |= dict.fromkeys(panel.ends, n)
        for panel in self.panels[::-1]:  # what reads a panel is placed before it
            self._settle(panel, tall)
        self._side(left, 24.0, top + _HEAD, tall, towards=True)
        edge = x if right else x - _BETWEEN
        self._side(right, edge, top + _HEAD, tall, towards=False)
        for panel in self.panels:
            self._ground(canvas, panel, top, tall)
        for arrow in self.picture.arrows:
            self._arrow(canvas, *arrow)
        if self.reads_kept and self.panels:
            x, y, w, _ = self.place["kept", 0]
            line = across((x + w / 2, y), (self.panels[0].left - 2, y))
            canvas.path(line, stroke=looks.KEPT, stroke_width=1.8, marker_end="url(#to-kept)")
        for panel in self.panels:
            self._turns(canvas, panel)
        for end, (x, y, w, h) in self.place.items():
            self._end(canvas, end)
            if end in self.picture.kept:
                looks.dot(canvas, x + w / 2 - 4, y - h / 2 + 2)
        wide = max((self._size(end)[0] for end in right), default=0)
        return edge + wide, top + _HEAD + tall

    def _sides(self) -> tuple[list[End], list[End]]:
        """What stands left and right of the panels: values that enter and leave, work on weights and sums."""
        picture, kinds = self.picture, [region.kind for region in self.loop.regions]
        drawn = {end for arrow in picture.arrows for end in arrow}
        enters: list[End] = [("enter", i) for i in range(len(picture.enters))]
        leaves: list[End] = [("leave", i) for i in range(len(picture.leaves))]
        boxes = list(enumerate(picture.boxes))
        before: list[End] = [("box", i) for i, box in boxes if kinds[box.region] == "prologue"]
        after: list[End] = [("box", i) for i, box in boxes if kinds[box.region] == "epilogue"]
        kept: list[End] = [("kept", 0)] if self.reads_kept else []
        return [*(end for end in enters if end in drawn), *before, *kept], [*after, *leaves]

    def _settle(self, panel: _Panel, tall: float) -> None:
        """Place a panel's ends; a low one stands beside what reads it."""
        spare = tall - panel.height
        ends = set(panel.ends)
        x, y = panel.origin
        centres = dict(zip(panel.ends, panel.placed.centres, strict=True))
        shifts = [
            self.place[b][1] - (y + centres[a][1])
            for a, b in self.picture.arrows
            if a in ends and b in self.place
        ]
        shift = min(max(sum(shifts) / len(shifts), 0.0), spare) if shifts else spare / 2
        for (end, (cx, cy)), size in zip(centres.items(), panel.sizes, strict=True):
            self.place[end] = (x + cx, y + cy + shift, *size)
        panel.top += shift
        for (a, b), points in panel.placed.bends.items():
            at = [(x + u, y + v + shift) for u, v in points]
            self.bends[panel.ends[a], panel.ends[b]] = at

    def _side(self, ends: list[End], left: float, top: float, tall: float, *, towards: bool) -> None:
        """Place what stands beside the panels at the height of what it is joined to."""
        wishes = {}
        for end in ends:
            near = [(b if a == end else a) for a, b in self.picture.arrows if end in (a, b)]
            found = [self.place[other][1] for other in near if other in self.place]
            wishes[end] = (
                sum(found) / len(found) if found else top + tall * (0.85 if end[0] == "kept" else 0.5)
            )
        order = sorted(ends, key=lambda end: wishes[end])
        sizes = [self._size(end) for end in order]
        heights = spread([wishes[end] for end in order], [h for _, h in sizes], 14.0)
        low = min((y - h / 2 for y, (_, h) in zip(heights, sizes, strict=True)), default=top)
        high = max((y + h / 2 for y, (_, h) in zip(heights, sizes, strict=True)), default=top)
        nudge = max(top - low, 0.0) - max(high - (top + tall), 0.0)
        widest = max((w for w, _ in sizes), default=0.0)
        for end, y, (w, h) in zip(order, heights, sizes, strict=True):
            x = left + widest - w / 2 if towards else left + w / 2
            self.place[end] = (x, y + nudge, w, h)
            self.column[end] = -1 if towards else len(self.panels)

    def _ground(self, canvas: Canvas, panel: _Panel, top: float, tall: float) -> None:
        region, colours = panel.region, look(panel.region)
        canvas.box(panel.left, top, panel.width, _HEAD + tall, rx=12, fill=colours.paper, stroke=colours.ink)
        shown = range(3, 4) if region.per_step else range(2, 4) if region.in_blocks else range(7)
        looks.rows_icon(canvas, panel.left + 16, top + 16, colours, self.ragged, shown)
        head, cost = panel.header
        canvas.text(panel.left + _ICON, top + 26, head, 13, fill=colours.ink, font_weight="bold")
        canvas.text(panel.left + _ICON, top + 42, cost, 11, fill=looks.FAINT)

    def _header(self, region: Region) -> tuple[str, str]:
        steps = f"{count(region.runs, 'step')}, one by one"
        cost = f"{short(region.flops, 'FLOP')}, {share(region.flops, self.loop.flops)}"
        head = steps if region.per_step else when(region, self.rows, 0)
        return head, f"{region.label}: {cost}"

    def _arrow(self, canvas: Canvas, a: End, b: End) -> None:
        if a not in self.place or b not in self.place:
            return
        (x, y, w, h), (u, v, p, q) = self.place[a], self.place[b]
        style = {"stroke": looks.WIRE, "stroke_width": 1.4, "marker_end": "url(#to-wire)"}
        if self.column[a] == self.column[b]:
            points = [(x, y + h / 2), *self.bends.get((a, b), ()), (u, v - q / 2 - 2)]
            canvas.path(down(points), **style)
        else:
            far = self.column[b] - self.column[a] > 1
            canvas.path(across((x + w / 2, y), (u - p / 2 - 2, v)), opacity=0.55 if far else 1, **style)

    def _turns(self, canvas: Canvas, panel: _Panel) -> None:
        """The arrows that go round a loop: from the next value at the bottom to the value at the top."""
        carries = [end for end in panel.ends if end[0] == "carry"]
        if not carries:
            return
        border = panel.left + panel.width - 14 - panel.lanes * _LANE
        ranked = sorted(carries, key=lambda end: -self.place[end][0])
        for lane, end in enumerate(ranked):
            x, y, _, h = self.place[end]
            u, v, _, q = self.place["next", end[1]]
            side, over = border + lane * _LANE, 10 + 6 * lane
            points = [
                (u, v + q / 2), (u, v + q / 2 + over), (side, v + q / 2 + over),
                (side, y - h / 2 - over), (x, y - h / 2 - over), (x, y - h / 2 - 2),
            ]  # fmt: skip
            canvas.path(corners(points), stroke=looks.STEP.ink, stroke_width=2.4, marker_end="url(#to-step)")
        x, y = border + (len(ranked) - 1) * _LANE + 11, self.place[carries[0]][1] + 60
        words = "to the next step" if self.loop.direction == "forward" else "to the step before"
        turn = f"rotate(90 {x:.1f} {y:.1f})"
        canvas.text(x, y, words, 11, fill=looks.STEP.ink, text_anchor="middle", transform=turn)

    def _end(self, canvas: Canvas, end: End) -> None:
        x, y, w, h = self.place[end]
        if end[0] == "box":
            self._box(canvas, self.picture.boxes[end[1]], x, y, w, h)
        else:
            inside = end[0] in ("carry", "next")
            colour = looks.STEP.ink if inside else looks.KEPT if end[0] == "kept" else looks.FAINT
            looks.pill(canvas, x, y, self.labels[end], colour)

    def _box(self, canvas: Canvas, box: Box, x: float, y: float, w: float, h: float) -> None:
        region = self.loop.regions[box.region]
        colours, title, join = look(region), brief(box.title), box.style == "join"
        canvas.open("g")
        tip = [f"{op.name} {shape(op.shape)}, {short(op.flops, 'FLOP')}" for op in box.ops]
        lines = [line for line in region.lines if line.at and any(op in line.ops for op in box.ops)]
        tip += [f"{line.at}  {line.code or ''}".rstrip() for line in lines]
        canvas.element("title", escape("\n".join(tip)))
        fill = colours.ink if box.style == "matmul" else "#ffffff"
        radius = h / 2 if join else 5
        canvas.box(x - w / 2, y - h / 2, w, h, rx=radius, fill=fill, stroke=colours.ink)
        if join:
            canvas.text(x, y + 3.5, title, SMALL, fill=looks.FAINT, text_anchor="middle")
        else:
            heavy = box.style == "matmul"
            ink, faint = ("#ffffff", "#ffffff") if heavy else (looks.TEXT, looks.FAINT)
            bold = {"font_weight": "bold"} if heavy else {}
            canvas.text(x, y - 2, cut(title, TITLE, w - 8), TITLE, fill=ink, text_anchor="middle", **bold)
            below = cut(brief(box.below), SMALL, w - 8)
            canvas.text(x, y + 13, below, SMALL, fill=faint, text_anchor="middle")
        if box in self.declined:
            looks.dashed(canvas, x - w / 2 - 4, y - h / 2 - 4, w + 8, h + 8)
        canvas.close("g")


def _ends(kind: Kind, numbers: list[int]) -> list[End]:
    return [(kind, number) for number in numbers]


def _declined(it: Explanation, loop: Loop, picture: Picture) -> list[Box]:
    """The boxes that made an executor decline: of the line it named, torch calls before anything else."""
    lines = {refused.line for refused in it.refusals} - {None}
    turning = [box for box in picture.boxes if loop.regions[box.region].kind in ("scan", "loop")]
    found = [box for box in turning if any(op.line in lines for op in box.ops)]
    calls = [box for box in found if any(op.weight == "call" for op in box.ops)]
    return calls or found
