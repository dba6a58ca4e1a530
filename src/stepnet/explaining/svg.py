"""An explanation as a picture: the step's graph, a panel for each region, coloured by how often it runs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from stepnet.executors.naive import PLAIN

from . import look
from .draw import Canvas, arrow_head, element, text_width
from .fold import fold
from .panels import LoopPanels
from .titles import extent, share, short

if TYPE_CHECKING:
    from .explanation import Explanation

_LEFT = 24.0


def svg(it: Explanation) -> str:
    """The whole picture."""
    canvas = new_canvas()
    width, y = draw(canvas, it, 0.0)
    return finished(canvas, width, y, f"What stepnet does with the step {it.name}")


def new_canvas() -> Canvas:
    """A canvas that has the heads of arrows."""
    canvas = Canvas()
    wires = (("to-wire", look.WIRE), ("to-step", look.STEP.ink), ("to-kept", look.KEPT))
    canvas.element("defs", "".join(arrow_head(name, colour) for name, colour in wires))
    return canvas


def finished(canvas: Canvas, width: float, height: float, title: str) -> str:
    """The picture on white."""
    canvas.parts.insert(1, element("rect", width=width, height=height, fill="#ffffff"))
    return canvas.svg(width, height, title)


def draw(canvas: Canvas, it: Explanation, top: float) -> tuple[float, float]:
    """Draw one recurrence from `top` down; returns its width and where it ends."""
    y = _head(canvas, it, top)
    width = 780.0
    kept = frozenset(saved.name for saved in it.saved if saved.extra)
    made: frozenset[str] = frozenset()
    for loop in it.loops:
        picture = fold(loop, kept, made)
        made |= {name for region in loop.regions for op in region.ops for name in op.outputs}
        title = f"{loop.direction.capitalize()}, {short(loop.flops, 'FLOP')}"
        canvas.text(_LEFT, y + 16, title, 15, fill=look.TEXT, font_weight="bold")
        right, y = LoopPanels(it, loop, picture).draw(canvas, y + 30)
        width, y = max(width, right + _LEFT), y + 30
    return width, _legend(canvas, it, y, width)


def _head(canvas: Canvas, it: Explanation, top: float) -> float:
    canvas.text(_LEFT, top + 36, it.name, 20, fill=look.TEXT, font_weight="bold")
    sizes = extent(it.steps, it.shortest, it.sequences, it.rows, it.dtype, it.reverse)
    canvas.text(_LEFT, top + 58, sizes, 13, fill=look.FAINT)
    y = top + 78.0
    if it.compiled:
        once = sum(region.flops for region in it.regions if not region.per_step)
        words = (
            f"Runs by {it.label}. {share(once, it.flops)} of the arithmetic waits for no "
            "earlier step: it is done on many rows at once."
        )
    elif it.executor == PLAIN.name:
        words = "Runs by the plain loop: the whole step waits for the step before."
    else:
        words = "The backend asked for declines the step; nothing runs."
    canvas.text(_LEFT, y, words, 13, fill=look.TEXT)
    for refused in it.refusals:
        at = f" ({refused.line})" if refused.line else ""
        lines = textwrap.wrap(f"{refused.label} declined: {refused.reason}{at}", 110)
        lines += textwrap.wrap(f"remedy: {refused.remedy}", 110) if refused.remedy else []
        for line in lines:
            y += 18
            canvas.text(_LEFT, y, line, 12, fill=look.STEP.ink)
    return y + 22


def _legend(canvas: Canvas, it: Explanation, y: float, width: float) -> float:
    """What the marks mean, from left to right, on as many lines as it takes."""
    lines = {refused.line for refused in it.refusals} - {None}
    marks = [
        ("once", "matmul on many rows at once", it.compiled),
        ("step", "matmul at every step", bool(it.loops)),
        ("other", "other arithmetic", bool(it.loops)),
        ("turn", "state, from step to step", bool(it.loops)),
        ("kept", f"kept for backward, {short(it.saved_bytes, 'B')}", it.saved_bytes > 0),
        ("declined", "declined", any(op.line in lines for region in it.regions for op in region.ops)),
        ("", "∂w: gradient of w", len(it.loops) > 1),
    ]
    x = _LEFT
    for mark, words, shown in marks:
        room = text_width(words, 12) + (48 if mark else 18)
        if not shown:
            continue
        if x + room > width and x > _LEFT:
            x, y = _LEFT, y + 22
        _mark(canvas, mark, x, y)
        canvas.text(x + (30 if mark else 0), y, words, 12, fill=look.TEXT)
        x += room
    return y + 24


def _mark(canvas: Canvas, mark: str, x: float, y: float) -> None:
    fills = {"once": look.ONCE.ink, "step": look.STEP.ink, "other": "#ffffff"}
    if mark in fills:
        stroke = look.TEXT if mark == "other" else fills[mark]
        canvas.box(x, y - 10, 22, 13, rx=3, fill=fills[mark], stroke=stroke)
    elif mark == "turn":
        line = f"M{x:.1f} {y - 4:.1f}h22"
        canvas.path(line, stroke=look.STEP.ink, stroke_width=2.4, marker_end="url(#to-step)")
    elif mark == "kept":
        look.dot(canvas, x + 12, y - 4)
    elif mark == "declined":
        look.dashed(canvas, x, y - 11, 22, 15)
