"""The boxes of a picture: an op or a layer, some of them together, or the name of a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .svg import BOLD, FAINT, SMALL, STEP, TEXT, TITLE, Canvas, Theme, corners, cut, text_width

_WIDEST = 270.0
_ARC = 24.0  # room for the back edge of a recurrence in one box


@dataclass(frozen=True)
class Box:
    """A title and lines of text below it.

    Attributes:
        tip: what a pointer over it shows.
        fill: "ink" for products, "paper" for inputs and outputs of a net, else "white".
        round: a value, not an op.
        small: it only moves data.
        recurrent: a recurrence in one box, which has a back edge of its own.
        saved: its result is saved for backward.
        declined: it made an executor decline.
    """

    title: str
    lines: tuple[str, ...]
    tip: str
    theme: Theme
    fill: Literal["ink", "paper", "white"] = "white"
    round: bool = False
    small: bool = False
    recurrent: bool = False
    saved: bool = False
    declined: bool = False

    @property
    def _title_size(self) -> float:
        """As wide as the title is set: bold text is wider."""
        return TITLE * (1.0 if self.fill == "white" else 1.08)

    @property
    def width(self) -> float:
        """Enough for its lines, up to a limit at which they are cut."""
        texts = [text_width(self.title, self._title_size), *(text_width(line, SMALL) for line in self.lines)]
        return min(max(*texts, 44.0) + 20, _WIDEST) + (2 * _ARC if self.recurrent else 0)

    @property
    def height(self) -> float:
        """Enough for its lines."""
        return (21.0 if self.small else 25.0) + 14.0 * len(self.lines)

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw it around a centre."""
        w, h = self.width - (2 * _ARC if self.recurrent else 0), self.height
        with canvas.group():
            canvas.element("title", self.tip)
            fill = {"ink": self.theme.ink, "paper": self.theme.paper, "white": "#ffffff"}[self.fill]
            radius = min(h / 2, 13) if self.round else 5
            canvas.box(x - w / 2, y - h / 2, w, h, rx=radius, fill=fill, stroke=self.theme.ink)
            ink, faint = ("#ffffff", "#ffffff") if self.fill == "ink" else (TEXT, FAINT)
            at = y - h / 2 + (14.5 if self.small else 17)
            bold = {} if self.fill == "white" else BOLD
            title = cut(self.title, self._title_size, w - 8)
            canvas.text(x, at, title, TITLE, fill=ink, text_anchor="middle", **bold)
            for line in self.lines:
                at += 14
                canvas.text(x, at, cut(line, SMALL, w - 8), SMALL, fill=faint, text_anchor="middle")
            if self.recurrent:
                left, right, low, high = x + w / 4, x + w / 2 + _ARC - 8, y + h / 2, y - h / 2
                draw_back_edge(canvas, (left, low), (left, high), right, 9.0, radius=6.0)
            if self.declined:
                canvas.frame(x - w / 2 - 4, y - h / 2 - 4, w + 8, h + 8)
        if self.saved:
            canvas.dot(x + w / 2 - 4, y - h / 2 + 2)


def draw_back_edge(
    canvas: Canvas, start: tuple[float, float], end: tuple[float, float], side: float, over: float,
    radius: float = 10.0,
) -> None:  # fmt: skip
    """The arrow from a value to the same value at the next step: below, up at one side, and in from above."""
    (u, v), (x, y) = start, end
    points = [(u, v), (u, v + over), (side, v + over), (side, y - over), (x, y - over), (x, y - 2)]
    canvas.arrow(corners(points, radius), STEP.ink, 2.4, **{"class": "back-edge"})
