"""SVG by hand: a list of elements, a few shapes, and how wide a text will be."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


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
    """Collects elements; `svg` wraps them up."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def element(self, name: str, content: str | None = None, /, **attributes: object) -> None:
        """Any element; underscores in attribute names stand for hyphens."""
        self.parts.append(element(name, content, **attributes))

    def box(self, x: float, y: float, w: float, h: float, **attributes: object) -> None:
        """A rectangle by its corner and size."""
        self.element("rect", x=x, y=y, width=w, height=h, **attributes)

    def text(self, x: float, y: float, text: str, size: float, **attributes: object) -> None:
        """A line of text; y is its base line."""
        self.element("text", escape(text), x=x, y=y, font_size=size, **attributes)

    def path(self, d: str, **attributes: object) -> None:
        """A line that is not filled."""
        self.element("path", d=d, fill="none", **attributes)

    def open(self, name: str, **attributes: object) -> None:
        """Begin a group."""
        self.parts.append(element(name, "", **attributes).removesuffix(f"</{name}>"))

    def close(self, name: str) -> None:
        """End a group."""
        self.parts.append(f"</{name}>")

    def svg(self, width: float, height: float, title: str) -> str:
        """The whole drawing."""
        inner = "\n".join((element("title", escape(title)), *self.parts))
        return element(
            "svg",
            f"\n{inner}\n",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_number(width)} {_number(height)}",
            width=width,
            height=height,
            role="img",
            font_family=FONT,
            style="max-width:100%;height:auto",
        )


def element(name: str, content: str | None = None, /, **attributes: object) -> str:
    """An element as text.

    >>> element("path", d="M0 0", stroke_width=1.25)
    '<path d="M0 0" stroke-width="1.2"/>'
    """
    pairs = "".join(
        f' {key.replace("_", "-") if key != "viewBox" else key}="{escape(_number(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{pairs}/>" if content is None else f"<{name}{pairs}>{content}</{name}>"


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
        for other in (before, after):
            length = max(abs(other[0] - at[0]) + abs(other[1] - at[1]), 1e-6)
            part = min(radius, length / 2) / length
            x = at[0] + (other[0] - at[0]) * part
            y = at[1] + (other[1] - at[1]) * part
            if other is before:
                out += f"L{_number(x)} {_number(y)}"
            else:
                out += f"Q{_number(at[0])} {_number(at[1])} {_number(x)} {_number(y)}"
    return f"{out}L{_number(points[-1][0])} {_number(points[-1][1])}"


def arrow_head(name: str, colour: str) -> str:
    """The head of an arrow, which lines point to by its name."""
    head = element("path", d="M0 0L8 4L0 8z", fill=colour)
    return element(
        "marker", head, id=name, viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7, markerHeight=7,
        markerUnits="userSpaceOnUse", orient="auto",
    )  # fmt: skip
