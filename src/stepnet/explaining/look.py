"""Colours and sizes of the picture, and the small drawings in it. Colours are Okabe and Ito's, told apart by
colour-blind eyes, with the same lightness contrast on white.
"""

from __future__ import annotations

from dataclasses import dataclass

from .draw import Canvas, text_width
from .records import Region


@dataclass(frozen=True)
class Look:
    """Colours of a kind of region: of lines and filled boxes, and of the ground."""

    ink: str
    paper: str


ONCE = Look("#0072b2", "#e6f1f8")
STEP = Look("#c45500", "#fdf0e4")
AROUND = Look("#5f6670", "#f1f2f4")
KEPT, TEXT, FAINT, WIRE = "#00795a", "#1d2127", "#5f6670", "#8a929c"

TITLE, SMALL = 12.0, 10.5  # text in boxes
PILL = 26.0  # height of a value's name


def look(region: Region) -> Look:
    """The colours of a region."""
    if region.kind == "map" or region.passes:
        return ONCE
    return STEP if region.kind in ("scan", "loop") else AROUND


def box_size(title: str, below: str, style: str) -> tuple[float, float]:
    """Width and height of a box with two lines of text, or one where arrows join."""
    if style == "join":
        return text_width(title, SMALL) + 18, 19.0
    heavy = style == "matmul"
    wide = max(text_width(title, TITLE) * (1.05 if heavy else 1.0), text_width(below, SMALL)) + 20
    return min(max(wide, 64.0), 250.0), 44.0 if heavy else 38.0


def pill_width(label: str) -> float:
    """Width of a value's name."""
    return text_width(label, TITLE) + 22


def brief(label: str) -> str:
    """'gradient of w' as '∂w'."""
    return label.replace("gradient of ", "∂")


def pill(canvas: Canvas, x: float, y: float, label: str, colour: str) -> None:
    """A value's name around a centre."""
    width = pill_width(label)
    canvas.box(x - width / 2, y - PILL / 2, width, PILL, rx=PILL / 2, fill="#ffffff", stroke=colour)
    canvas.text(x, y + 4, label, TITLE, fill=TEXT, text_anchor="middle")


def dot(canvas: Canvas, x: float, y: float) -> None:
    """The mark of what is kept for backward."""
    canvas.element("circle", cx=x, cy=y, r=5, fill=KEPT, stroke="#ffffff", stroke_width=1.5)


def dashed(canvas: Canvas, x: float, y: float, w: float, h: float) -> None:
    """The frame round what was declined."""
    canvas.box(x, y, w, h, rx=7, fill="none", stroke=TEXT, stroke_width=2, stroke_dasharray="4 3")


def rows_icon(canvas: Canvas, x: float, y: float, colours: Look, ragged: bool, shown: range) -> None:
    """Sequences as rows of steps, those of the steps `shown` inked."""
    for row, length in enumerate((7, 5, 6, 3) if ragged else (7, 7, 7, 7)):
        for step in range(length):
            opacity = 1 if step in shown else 0.22
            canvas.box(x + 6.5 * step, y + 6.5 * row, 5, 5, fill=colours.ink, fill_opacity=opacity)
