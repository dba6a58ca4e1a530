"""Nets placed and drawn: boxes in layers, loops as panels around their bodies, back edges round them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stepnet.explaining import look as looks
from stepnet.explaining.draw import Canvas, Point, corners, cut, down
from stepnet.explaining.layers import Item, Placed, arrange
from stepnet.explaining.titles import short

from .blocks import Block, block
from .folding import Box, boxes
from .records import BackEdge, Loop, Net, Port
from .words import plain, steps_text, verdict

_GROUND = "#fffaf5"
_LANE = 11.0  # between back edges
_PAD = 16.0
_SIDE = 172.0  # the column of words beside a body
_COLUMNS = 29  # of characters in it


@dataclass
class Drawing:
    """A net at its place: `tops` and `bottoms` are where edges reach the ends of it, by their layers' ids."""

    net: Net
    ports: Mapping[int, Sequence[Port]] = field(default_factory=dict)
    back_edges: Sequence[BackEdge] = ()

    def __post_init__(self) -> None:
        self.boxes: list[Box] = boxes(self.net)
        self.box_of = {layer.id: i for i, box in enumerate(self.boxes) for layer in box.layers}
        next_of: dict[int, list[str]] = {}
        for edge in self.back_edges:
            next_of.setdefault(edge.result_id, []).append(edge.parameter)
        self.parts: list[Block | Panel] = [
            Panel(box.first.name, box.first.loop)
            if box.first.loop is not None and box.first.loop.bodies
            else block(box, self.ports, next_of)
            for box in self.boxes
        ]
        self.edges = sorted(
            {
                (self.box_of[source], i)
                for i, box in enumerate(self.boxes)
                for layer in box.layers
                for source, _ in layer.reads
                if self.box_of[source] != i
            }
        )
        self.placed: Placed = arrange([self._item(i) for i in range(len(self.boxes))], self.edges, drop=30.0)
        self.lanes = len(self.back_edges)

    def _item(self, i: int) -> Item:
        kind = self.boxes[i].first.type
        end = -1 if kind == "Parameter" else 1 if kind == "Result" else 0
        return Item(self.parts[i].width, self.parts[i].height, end)

    @property
    def _round(self) -> float:
        return 14 + 6.0 * self.lanes if self.lanes else 0.0

    @property
    def width(self) -> float:
        """With the room for back edges at the right."""
        return self.placed.width + (self.lanes * _LANE + 24 if self.lanes else 0)

    @property
    def height(self) -> float:
        """With the room for back edges above and below."""
        return self.placed.height + 2 * self._round

    def draw(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw it with its corner at a point."""
        at = [(left + x, top + self._round + y) for x, y in self.placed.centres]
        self.tops: dict[int, Point] = {}
        self.bottoms: dict[int, Point] = {}
        for i, box in enumerate(self.boxes):
            for layer in box.layers:
                half = self.parts[i].height / 2
                self.tops[layer.id] = (at[i][0], at[i][1] - half)
                self.bottoms[layer.id] = (at[i][0], at[i][1] + half)
        for i, part in enumerate(self.parts):  # panels first: edges end inside of them
            if isinstance(part, Panel):
                part.draw(canvas, at[i][0] - part.width / 2, at[i][1] - part.height / 2)
        for path in self._paths(at, left, top):
            canvas.path(down(path), stroke=looks.WIRE, stroke_width=1.3, marker_end="url(#to-wire)")
        for i, part in enumerate(self.parts):
            if isinstance(part, Block):
                part.draw(canvas, *at[i])
        self._turns(canvas, left)

    def _paths(self, at: Sequence[Point], left: float, top: float) -> Iterator[list[Point]]:
        drawn: set[tuple[Point, ...]] = set()
        for i, box in enumerate(self.boxes):
            for layer in box.layers:
                for k, (source, index) in enumerate(layer.reads):
                    j = self.box_of[source]
                    if i == j:
                        continue
                    bends = [(left + x, top + self._round + y) for x, y in self.placed.bends.get((j, i), ())]
                    for start in self._starts(j, index, at):
                        for end in self._ends(i, k, at):
                            path = [*start, *bends, *end]
                            path[-1] = (path[-1][0], path[-1][1] - 2)
                            if tuple(path) not in drawn:
                                drawn.add(tuple(path))
                                yield path

    def _starts(self, i: int, output: int, at: Sequence[Point]) -> list[list[Point]]:
        part = self.parts[i]
        low = at[i][1] + part.height / 2
        if isinstance(part, Panel):
            return [[point, (point[0], low)] for point in part.leaving(output)]
        return [[(at[i][0], low)]]

    def _ends(self, i: int, read: int, at: Sequence[Point]) -> list[list[Point]]:
        part = self.parts[i]
        high = at[i][1] - part.height / 2
        if isinstance(part, Panel):
            inside = part.entering(self.boxes[i].first.reads[read])
            aside = at[i][0] - part.width / 2 + _PAD + _SIDE / 2
            return [[(point[0], high), point] for point in inside] or [[(aside, high)]]
        return [[(at[i][0], high)]]

    def _turns(self, canvas: Canvas, left: float) -> None:
        """The edges that go round: from a Result at the bottom to a Parameter at the top."""
        border = left + self.placed.width + 14
        ranked = sorted(self.back_edges, key=lambda edge: -self.tops[edge.parameter_id][0])
        for lane, edge in enumerate(ranked):
            (u, v), (x, y) = self.bottoms[edge.result_id], self.tops[edge.parameter_id]
            u, x = u + 12 + 5 * (lane % 2), x + 12
            side, over = border + lane * _LANE, 10 + 6.0 * lane
            points = [(u, v), (u, v + over), (side, v + over), (side, y - over), (x, y - over), (x, y - 2)]
            canvas.path(
                corners(points), stroke=looks.STEP.ink, stroke_width=2.4, marker_end="url(#to-step)",
                **{"class": "back-edge"},
            )  # fmt: skip


class Panel:
    """A loop: words beside its body; an If has two bodies side by side."""

    def __init__(self, name: str, loop: Loop) -> None:
        self.name, self.loop = name, loop
        self.bodies: dict[str, Drawing] = {}
        for body, net in loop.bodies.items():
            ports: dict[int, list[Port]] = {}
            for port in (*loop.takes[body], *loop.gives[body]):
                ports.setdefault(port.inner_id, []).append(port)
            self.bodies[body] = Drawing(net, ports, loop.back_edges)
        self.words = list(self._words())

    def _words(self) -> Iterator[tuple[str, float, str]]:
        """Lines of text: words, size and colour."""
        loop = self.loop
        yield cut(plain(loop.kind), 14, _SIDE - 10), 14.0, looks.STEP.ink
        for line in textwrap.wrap(plain(self.name), _COLUMNS)[:3]:
            yield line, 11.0, looks.TEXT
        told = [steps_text(loop), verdict(loop)]
        if loop.compiled:
            if loop.once.flops:
                told.append(f"{short(loop.once.flops, 'FLOP')} once, for all steps")
            if loop.hoisted:
                told.append(f"with the product of {', '.join(loop.hoisted)} with its input")
        if loop.step.flops and loop.kind != "If":
            told.append(f"{short(loop.step.flops, 'FLOP')} at each step")
        for text in told:
            lines = textwrap.wrap(plain(text), _COLUMNS)
            for i, line in enumerate(lines[:5]):
                yield (line if i < 4 or len(lines) == 5 else f"{line[:-2]}…"), 10.5, looks.FAINT

    @property
    def width(self) -> float:
        """With the words."""
        return 2 * _PAD + _SIDE + sum(d.width for d in self.bodies.values()) + 28.0 * (len(self.bodies) - 1)

    @property
    def height(self) -> float:
        """As high as what is in it."""
        tall = max((d.height for d in self.bodies.values()), default=0.0)
        return 2 * _PAD + max(tall + self._caption, 22 + 15.0 * len(self.words))

    @property
    def _caption(self) -> float:
        return 20.0 if len(self.bodies) > 1 else 0.0

    def draw(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw it with its corner at a point."""
        canvas.open("g", **{"class": "loop"})
        canvas.box(left, top, self.width, self.height, rx=12, fill=_GROUND, stroke=looks.STEP.ink)
        y = top + _PAD + 12
        for i, (words, size, colour) in enumerate(self.words):
            bold = {"font_weight": "bold"} if i == 0 else {}
            canvas.text(left + _PAD, y, words, size, fill=colour, **bold)
            y += 18 if i == 0 else 15
        x = left + _PAD + _SIDE
        for name, drawing in self.bodies.items():
            if self._caption:
                canvas.text(x, top + _PAD + 8, name, 12, fill=looks.STEP.ink)
            drawing.draw(canvas, x, top + _PAD + self._caption)
            x += drawing.width + 28
        canvas.close("g")

    def entering(self, read: tuple[int, int]) -> list[Point]:
        """Where a value that the loop reads goes in."""
        found = []
        for body, drawing in self.bodies.items():
            taken = [port for port in self.loop.takes[body] if port.source == read]
            found += [drawing.tops[port.inner_id] for port in taken]
        return found

    def leaving(self, output: int) -> list[Point]:
        """Where an output of the loop comes from."""
        found = []
        for body, drawing in self.bodies.items():
            left = [port for port in self.loop.gives[body] if port.output == output]
            found += [drawing.bottoms[port.inner_id] for port in left]
        return found
