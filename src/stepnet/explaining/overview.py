"""All recurrences of a model at a glance: a line and a bar for each, then each in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import look
from .draw import Canvas, cut, text_width
from .svg import draw, finished, new_canvas
from .text import WIDTH, text
from .titles import count, share, short

if TYPE_CHECKING:
    from .explanation import Explanation, ModelExplanation

_BAR = 240.0  # of the recurrence that computes most


def model_text(it: ModelExplanation) -> str:
    """A table of the recurrences, then each that is not told before."""
    ways = [_steps(one) for one in it.recurrences]
    names = [f"{number}  {one.name}" for number, one in enumerate(it.recurrences, 1)]
    name, way = (max(map(len, column)) for column in (names, ways))
    lines = [
        _head(it),
        "",
        f"{'':{name + way + 4}}  {'runs by':14}{'FLOP':>10}{'on many rows':>14}{'kept':>10}",
    ]
    lines += [
        f"  {names[k]:{name}}  {ways[k]:{way}}  {one.label:14}{short(one.flops, ''):>10}"
        f"{share(_once(one), one.flops):>14}{short(one.saved_bytes, 'B'):>10}"
        for k, one in enumerate(it.recurrences)
    ]
    for number, one in enumerate(it.recurrences, 1):
        first = it.recurrences.index(one) + 1
        lines += ["", "", "=" * WIDTH, ""]
        lines.append(f"{number}  {one.name}: as {first}" if first < number else f"{number}  {text(one)}")
    return "\n".join(line.rstrip() for line in lines)


def model_svg(it: ModelExplanation) -> str:
    """A bar for each recurrence, then the graph of each that is not drawn before."""
    canvas = new_canvas()
    canvas.text(24.0, 36, it.name, 20, fill=look.TEXT, font_weight="bold")
    canvas.text(24.0, 58, _head(it).removeprefix(f"{it.name}: "), 13, fill=look.FAINT)
    width, y = 780.0, _bars(canvas, it, 76.0)
    for one in _distinct(it):
        canvas.path(f"M24 {y + 8:.1f}H756", stroke=look.WIRE)
        right, y = draw(canvas, one, y + 14)
        width = max(width, right)
    return finished(canvas, width, y, f"What stepnet does with the recurrences of {it.name}")


def _bars(canvas: Canvas, it: ModelExplanation, y: float) -> float:
    most = max(max(one.flops for one in it.recurrences), 1)
    for number, one in enumerate(it.recurrences, 1):
        canvas.text(24.0, y + 12, cut(f"{number}  {one.name}", 12, 190), 12, fill=look.TEXT)
        canvas.text(220.0, y + 12, cut(_steps(one), 12, 150), 12, fill=look.FAINT)
        once, whole = (_BAR * flops / most for flops in (_once(one), one.flops))
        canvas.box(375.0, y, once, 15, fill=look.ONCE.ink)
        canvas.box(375.0 + once, y, whole - once, 15, fill=look.STEP.ink)
        words = f"{short(one.flops, 'FLOP')}, {one.label}"
        canvas.text(381.0 + whole, y + 12, words, 11, fill=look.FAINT)
        y += 22
    x = 375.0
    for colours, words in ((look.ONCE, "on many rows at once"), (look.STEP, "at every step")):
        canvas.box(x, y + 2, 11, 11, fill=colours.ink)
        canvas.text(x + 16, y + 12, words, 11, fill=look.TEXT)
        x += text_width(words, 11) + 34
    return y + 22


def _head(it: ModelExplanation) -> str:
    executors = {one.label for one in it.recurrences}
    how = f", all by {executors.pop()}" if len(executors) == 1 and len(it.recurrences) > 1 else ""
    number = count(len(it.recurrences), "recurrence")
    return (
        f"{it.name}: {number}{how}, {short(it.flops, 'FLOP')}, {short(it.saved_bytes, 'B')} kept for backward"
    )


def _steps(it: Explanation) -> str:
    arrow = "←" if it.reverse else "→"
    return f"{arrow} {count(it.steps, 'step')} of {it.sequences:,}"


def _once(it: Explanation) -> int:
    return sum(region.flops for region in it.regions if not region.per_step)


def _distinct(it: ModelExplanation) -> Iterator[Explanation]:
    for number, one in enumerate(it.recurrences):
        if it.recurrences.index(one) == number:
            yield one
