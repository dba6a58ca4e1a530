"""A model as a picture: its graph from top to bottom, loops as panels around their bodies."""

from __future__ import annotations

from stepnet.explaining import look as looks
from stepnet.explaining.draw import Canvas, arrow_head, element, text_width
from stepnet.explaining.titles import count, short

from .flops import PRODUCTS
from .panels import Drawing
from .records import Inspection
from .words import amount, plain, shape_text

_LEFT = 24.0


def picture(it: Inspection) -> str:
    """The whole picture, as SVG."""
    canvas = Canvas()
    wires = (("to-wire", looks.WIRE), ("to-step", looks.STEP.ink))
    canvas.element("defs", "".join(arrow_head(name, colour) for name, colour in wires))
    under = len(canvas.parts)
    drawing = Drawing(it.net)
    head = _head(it)
    wide = max(drawing.width, *(text_width(line, size) * 1.05 for line, size in head), 560.0)
    y = 14.0
    for line, size in head:
        y += size + 8
        bold = {"font_weight": "bold"} if size > 14 else {}
        canvas.text(_LEFT, y, line, size, fill=looks.TEXT if size > 12 else looks.FAINT, **bold)
    y = _legend(canvas, it, y + 26)
    drawing.draw(canvas, _LEFT + (wide - drawing.width) / 2, y)
    width, height = wide + 2 * _LEFT, y + drawing.height + _LEFT
    canvas.parts.insert(under, element("rect", width=width, height=height, fill="#ffffff"))
    return canvas.svg(width, height, f"The model {plain(it.name or it.file)}")


def _head(it: Inspection) -> list[tuple[str, float]]:
    layers = sum(layer.computes for layer in it.net.all_layers())
    cost = "" if it.cost.unknown else f", {short(it.cost.flops, 'FLOP')} a run"
    at = ", ".join(f"{plain(name)} [{shape_text(shape)}]" for name, shape in it.counted_at.items())
    return [
        (plain(it.name or it.file), 20.0),
        (
            f"{count(layers, 'layer')}, {count(len(it.loops()), 'loop')}, "
            f"{amount(it.parameters, 'parameter')}{cost}",
            13.0,
        ),
        (f"counted at {at}", 11.0),
    ]


def _legend(canvas: Canvas, it: Inspection, y: float) -> float:
    """What colours and lines mean, as far as they are there."""
    layers = list(it.net.all_layers())
    whens = {layer.when for layer in layers}
    turning = any(loop.kind != "If" for _, loop in it.loops())
    marks = [
        ("step", "runs at each step", "step" in whens),
        ("once", "runs once, for all steps", bool(whens & {"rows", "once"})),
        ("heavy", "filled: products", any(layer.type.lower() in PRODUCTS for layer in layers)),
        ("turn", "back edge: to the next step", turning),
    ]
    x = _LEFT
    for mark, words, shown in marks:
        if not shown:
            continue
        colours = looks.STEP if mark == "step" else looks.ONCE if mark == "once" else looks.AROUND
        if mark == "turn":
            line = f"M{x:.1f} {y - 4:.1f}h22"
            canvas.path(line, stroke=looks.STEP.ink, stroke_width=2.4, marker_end="url(#to-step)")
        else:
            fill = colours.ink if mark == "heavy" else "#ffffff"
            canvas.box(x, y - 11, 22, 14, rx=3, fill=fill, stroke=colours.ink)
        canvas.text(x + 29, y, words, 11.5, fill=looks.TEXT)
        x += 29 + text_width(words, 11.5) + 22
    return y + 26
