"""SVG: elements, paths, colours, and the parts of a picture that do not depend on what it shows.

Colours are Okabe and Ito's, told apart by colour-blind eyes, with the same lightness contrast on white.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

Point = tuple[float, float]
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
LEFT = 24.0  # margin of a picture


@dataclass(frozen=True)
class Theme:
    """Colours of how often something runs: of lines and filled boxes, and of the ground."""

    ink: str
    paper: str


ONCE = Theme("#0072b2", "#e6f1f8")
STEP = Theme("#c45500", "#fdf0e4")
AROUND = Theme("#5f6670", "#f1f2f4")
SAVED, TEXT, FAINT, WIRE = "#00795a", "#1d2127", "#5f6670", "#8a929c"
_ARROWS = {WIRE: "to-wire", STEP.ink: "to-step", SAVED: "to-kept"}

TITLE, SMALL = 12.0, 10.5  # sizes of text in boxes
BOLD = {"font_weight": "bold"}


@dataclass(frozen=True)
class Mark:
    """An entry of the legend: a sign, filled with a colour or drawn in it, and what it means."""

    sign: Literal["box", "arrow", "dot", "frame", ""]
    words: str
    stroke: str = TEXT
    fill: str = "#ffffff"


def text_width(text: str, size: float) -> float:
    """About how wide a text is in a sans-serif font; a little more than most fonts need."""
    narrow = sum(c in "il.,:;|'()[]! tfjI1·" for c in text)
    wide = sum(c in "mwMWGOQ%@→∂" for c in text)
    return size * (0.58 * (len(text) - narrow - wide) + 0.33 * narrow + 0.86 * wide)


def cut(text: str, size: float, room: float) -> str:
    """The text, shortened so that it fits.

    >>> cut("a very long title", 10.0, 60.0)
    'a very lon…'
    """
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


class Canvas:
    """Collects the elements of a picture; `svg` puts them together, on white."""

    def __init__(self) -> None:
        self.root = self._at = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg")

    def element(self, name: str, content: str | None = None, /, **attributes: object) -> None:
        """Any element; underscores in attribute names stand for hyphens."""
        ElementTree.SubElement(self._at, name, _attributes(attributes)).text = content

    @contextmanager
    def group(self, name: str = "g", **attributes: object) -> Iterator[None]:
        """What is drawn in this block of code is in a group."""
        around, self._at = self._at, ElementTree.SubElement(self._at, name, _attributes(attributes))
        yield
        self._at = around

    def box(self, x: float, y: float, w: float, h: float, **attributes: object) -> None:
        """A rectangle by its corner and size."""
        self.element("rect", x=x, y=y, width=w, height=h, **attributes)

    def text(self, x: float, y: float, text: str, size: float, **attributes: object) -> None:
        """A line of text; y is its base line."""
        self.element("text", text, x=x, y=y, font_size=size, **attributes)

    def arrow(self, d: str, colour: str = WIRE, width: float = 1.4, **attributes: object) -> None:
        """A path with a head at its end."""
        head = f"url(#{_ARROWS[colour]})"
        self.element(
            "path", d=d, fill="none", stroke=colour, stroke_width=width, marker_end=head, **attributes
        )

    def dot(self, x: float, y: float) -> None:
        """The mark of what is saved for backward."""
        self.element("circle", cx=x, cy=y, r=5, fill=SAVED, stroke="#ffffff", stroke_width=1.5)

    def frame(self, x: float, y: float, w: float, h: float) -> None:
        """The dashed frame around what was declined."""
        self.box(x, y, w, h, rx=7, fill="none", stroke=TEXT, stroke_width=2, stroke_dasharray="4 3")

    def heading(self, top: float, lines: Iterable[tuple[str, float, str]]) -> float:
        """Lines of text with their sizes and colours from `top` down, the large ones bold; where they end."""
        for words, size, colour in lines:
            top += size + 6
            self.text(LEFT, top, words, size, fill=colour, **(BOLD if size > 14 else {}))
        return top

    def legend(self, y: float, width: float, marks: Iterable[Mark]) -> float:
        """What the marks mean, from left to right, on as many lines as it takes; where they end."""
        x = LEFT
        for mark in marks:
            room = text_width(mark.words, TITLE) + (48 if mark.sign else 18)
            if x + room > width and x > LEFT:
                x, y = LEFT, y + 22
            if mark.sign == "box":
                self.box(x, y - 10, 22, 13, rx=3, fill=mark.fill, stroke=mark.stroke)
            elif mark.sign == "arrow":
                self.arrow(f"M{x:.1f} {y - 4:.1f}h22", STEP.ink, 2.4)
            elif mark.sign == "dot":
                self.dot(x + 12, y - 4)
            elif mark.sign == "frame":
                self.frame(x, y - 11, 22, 15)
            self.text(x + (30 if mark.sign else 0), y, mark.words, TITLE, fill=TEXT)
            x += room
        return y + 24

    def svg(self, width: float, height: float, title: str) -> str:
        """The whole picture."""
        drawn, self.root[:] = list(self.root), []
        self.element("title", title)
        with self.group("defs"):
            for colour, name in _ARROWS.items():
                with self.group(
                    "marker", id=name, viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7, markerHeight=7,
                    markerUnits="userSpaceOnUse", orient="auto",
                ):  # fmt: skip
                    self.element("path", d="M0 0L8 4L0 8z", fill=colour)
        self.box(0, 0, width, height, fill="#ffffff")
        self.root.extend(drawn)
        size = {"viewBox": f"0 0 {_number(width)} {_number(height)}", "width": width, "height": height}
        style = {"role": "img", "font_family": FONT, "style": "max-width:100%;height:auto"}
        self.root.attrib.update(_attributes(size | style))
        ElementTree.indent(self.root, "")
        return ElementTree.tostring(self.root, encoding="unicode")


def _attributes(values: Mapping[str, object]) -> dict[str, str]:
    """Attributes of an element as text.

    >>> _attributes({"stroke_width": 1.25})
    {'stroke-width': '1.2'}
    """
    return {name.replace("_", "-"): _number(value) for name, value in values.items()}


def _number(value: object) -> str:
    """A number with one digit at most; anything else as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def down(points: Sequence[Point]) -> str:
    """A smooth path from top to bottom through points: each piece leaves and enters upright."""
    (x, y), *rest = points
    out = f"M{_number(x)} {_number(y)}"
    for u, v in rest:
        bend = _number((y + v) / 2)
        out += f"C{_number(x)} {bend} {_number(u)} {bend} {_number(u)} {_number(v)}"
        x, y = u, v
    return out


def across(a: Point, b: Point) -> str:
    """A smooth path from left to right: leaves and enters level."""
    bend = max(abs(b[0] - a[0]) / 2, 18.0)
    x, y, u, v = map(_number, (*a, *b))
    return f"M{x} {y}C{_number(a[0] + bend)} {y} {_number(b[0] - bend)} {v} {u} {v}"


def corners(points: Sequence[Point], radius: float = 10.0) -> str:
    """A path of upright and level pieces with rounded corners."""
    out = f"M{_number(points[0][0])} {_number(points[0][1])}"
    for before, at, after in zip(points, points[1:], points[2:], strict=False):
        (a, b), (c, d) = (_towards(at, other, radius) for other in (before, after))
        out += f"L{_number(a)} {_number(b)}Q{_number(at[0])} {_number(at[1])} {_number(c)} {_number(d)}"
    return f"{out}L{_number(points[-1][0])} {_number(points[-1][1])}"


def _towards(at: Point, other: Point, radius: float) -> Point:
    """The point at a distance on the way to another one, at most half of it."""
    length = max(abs(other[0] - at[0]) + abs(other[1] - at[1]), 1e-6)
    part = min(radius, length / 2) / length
    return at[0] + (other[0] - at[0]) * part, at[1] + (other[1] - at[1]) * part
