"""Boxes placed in layers, with back edges around them: a region of a plan, or a net of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .boxes import draw_back_edge
from .layers import Item, arrange
from .svg import Canvas, Point

_LANE = 11.0  # between back edges


class Part(Protocol):
    """What is placed: a box, or a panel with a graph in it."""

    @property
    def width(self) -> float:
        """From left to right."""
        ...

    @property
    def height(self) -> float:
        """From top to bottom."""
        ...


class Graph:
    """A graph in layers.

    Args:
        parts: its nodes.
        edges: (from, to) by number; no cycles.
        ends: of each node: -1 in the first layer, 1 in the last, else 0.
        pulls: of each node: -1 to the left, 1 to the right.
        back_edges: (from a node of the last layer, to one of the first).
        aside: how far from the middle of a node back edges begin and end, beside other edges.
        drop: between layers.
        across: whether layers are columns, from left to right, not rows from top to bottom.
    """

    def __init__(
        self, parts: Sequence[Part], edges: Sequence[tuple[int, int]], ends: Sequence[int], *,
        pulls: Sequence[float] | None = None, back_edges: Sequence[tuple[int, int]] = (),
        aside: float = 0.0, drop: float = 34.0, across: bool = False,
    ) -> None:  # fmt: skip
        self.parts, self.back_edges, self.aside, self.across = parts, back_edges, aside, across
        sizes = [(part.height, part.width) if across else (part.width, part.height) for part in parts]
        rows = zip(sizes, ends, pulls or [0.0] * len(parts), strict=True)
        self.placed = arrange([Item(*size, end, pull) for size, end, pull in rows], edges, drop=drop)
        self._layers = sorted({y for _, y in self.placed.centres})
        self.left = self.top = 0.0

    @property
    def _around(self) -> float:
        """Room for back edges above and below."""
        return 14 + 6.0 * len(self.back_edges) if self.back_edges else 0.0

    @property
    def width(self) -> float:
        """With the room for back edges at the right."""
        size = self.placed.height if self.across else self.placed.width
        return size + (len(self.back_edges) * _LANE + 24 if self.back_edges else 0)

    @property
    def height(self) -> float:
        """With the room for back edges above and below."""
        return (self.placed.width if self.across else self.placed.height) + 2 * self._around

    def move(self, left: float, top: float) -> None:
        """Put its corner at a point of the picture."""
        self.left, self.top = left, top + self._around

    def centre(self, i: int) -> Point:
        """The middle of a node."""
        x, y = self.placed.centres[i][:: -1 if self.across else 1]
        return self.left + x, self.top + y

    def skips(self, a: int, b: int) -> bool:
        """Whether there are layers between those of two nodes."""
        first, last = (self._layers.index(self.placed.centres[i][1]) for i in (a, b))
        return last - first > 1

    def top_of(self, i: int) -> Point:
        """Where edges enter a node."""
        x, y = self.centre(i)
        return x, y - self.parts[i].height / 2

    def bottom_of(self, i: int) -> Point:
        """Where edges leave a node."""
        x, y = self.centre(i)
        return x, y + self.parts[i].height / 2

    def bends(self, a: int, b: int) -> list[Point]:
        """The points that an edge goes through between its ends."""
        return [(self.left + x, self.top + y) for x, y in self.placed.bends.get((a, b), ())]

    @property
    def lanes_right(self) -> float:
        """The right border of the back edges."""
        return self.left + self.placed.width + 14 + (len(self.back_edges) - 1) * _LANE

    def draw_back_edges(self, canvas: Canvas) -> None:
        """Each from the bottom of a node round the right side to the top of another."""
        ranked = sorted(self.back_edges, key=lambda edge: -self.centre(edge[1])[0])
        for lane, (a, b) in enumerate(ranked):
            (u, v), (x, y) = self.bottom_of(a), self.top_of(b)
            spread = 5 * (lane % 2) if self.aside else 0
            side = self.left + self.placed.width + 14 + lane * _LANE
            start, end = (u + self.aside + spread, v), (x + self.aside, y)
            draw_back_edge(canvas, start, end, side, 10 + 6.0 * lane)
