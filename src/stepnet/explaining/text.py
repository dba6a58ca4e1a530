"""An explanation as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .calls import looks
from .records import Line, Loop, Region, Saved
from .titles import EXECUTORS, Titles, carried, extent, shape, share, short, when

if TYPE_CHECKING:
    from .explanation import Explanation

WIDTH = 110
_CODE = 44  # columns for the user's code
_COUNTS = (
    "FLOP: 2 K for each element of a matmul over K, 10 for exp, tanh and the like, 1 for other arithmetic.",
    "Bytes: what crosses a region's border; what has no rows, such as a weight, once.",
)


def text(it: Explanation) -> str:
    """The whole explanation."""
    parts = [list(_head(it))]
    declined = list(_refusals(it))
    runs = it.executor in ("c", "eager")
    parts += [] if runs else [declined]
    parts += [list(_loop(it, loop)) for loop in it.loops]
    parts += [list(_saved(it)), list(_linear(it)), declined if runs else [], list(_notes(it))]
    if it.loops:
        calls = {op.name for op in it.find() if op.weight == "call" and not looks(op.name)}
        parts.append([*_COUNTS, *([f"Not counted: {', '.join(sorted(calls))}."] if calls else [])])
    if it.source is not None:
        parts.append(["GENERATED C", "", *it.source.rstrip().splitlines()])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(it: Explanation) -> Iterator[str]:
    yield f"{it.name}: {extent(it.steps, it.shortest, it.sequences, it.rows, it.dtype, it.reverse)}"
    yield from textwrap.wrap(_verdict(it), WIDTH)


def _verdict(it: Explanation) -> str:
    if it.executor == "refused":
        return "The backend that was asked for by name declines the step: recurrent raises Unsupported."
    if it.executor == "naive":
        then = " Torch's autograd keeps what it needs of every step." if it.training else ""
        return f"Runs by the plain loop: the whole step, op by op in torch, at every step.{then}"
    once = sum(region.flops for region in it.regions if not region.per_step)
    end = "with its gradients " if it.training else ""
    return (
        f"Runs by {EXECUTORS[it.executor]}. A run {end}costs {short(it.flops, 'FLOP')}; "
        f"{share(once, it.flops)} of that is done on many rows at once, not step after step."
    )


def _loop(it: Explanation, loop: Loop) -> Iterator[str]:
    titles = Titles(loop)
    yield _columns(f"{loop.direction.upper()}", "FLOP", "reads", "writes")
    for region in loop.regions:
        if region.kind == "prologue" and all(op.weight == "move" for op in region.ops):
            continue  # views of weights, and constants
        yield ""
        yield from _region(it, region, titles)


def _columns(title: str, *figures: str) -> str:
    return title.ljust(WIDTH - 33) + "".join(figure.rjust(11) for figure in figures)


def _region(it: Explanation, region: Region, titles: Titles) -> Iterator[str]:
    where = EXECUTORS[region.executor]
    figures = (short(region.flops, ""), short(region.bytes_read, "B"), short(region.bytes_written, "B"))
    yield _columns(f"  {when(region, it.rows, it.sequences)}  ({region.kind}, {where})", *figures)
    if region.in_blocks:
        yield "    a block of rows at a time, beside the steps that need it, while it is in the cache"
    if region.carries:
        yield f"    from step to step: {', '.join(carried(region))}"
    lines = [line for line in region.lines if _worth_a_line(region, line)]
    at = max((len(line.at or "") for line in lines), default=0)
    for line in lines:
        code = textwrap.shorten(line.code or "", _CODE, placeholder=" ...").ljust(_CODE)
        start = f"    {(line.at or '').ljust(at)}  {code}  " if at else "    "
        words = textwrap.wrap(titles.ops(line.ops), WIDTH - len(start))
        yield (start + words[0]).rstrip()
        yield from (" " * len(start) + more for more in words[1:])


def _worth_a_line(region: Region, line: Line) -> bool:
    return region.kind != "prologue" or any(op.weight != "move" for op in line.ops)


def _saved(it: Explanation) -> Iterator[str]:
    if not it.saved:
        return
    a_row = sum(saved.bytes_per_row for saved in it.saved if saved.extra)
    yield f"KEPT FOR BACKWARD  {short(it.saved_bytes, 'B')}, {short(a_row, 'B')} a row"
    groups: dict[tuple[str, ...], list[Saved]] = {}
    for saved in it.saved:
        what = (f"{saved.label} {shape(saved.shape)}", saved.line or "", saved.why)
        groups.setdefault(what, []).append(saved)
    rows = []
    for (what, line, why), group in sorted(groups.items(), key=lambda item: not item[1][0].extra):
        number = f"{len(group)} " if len(group) > 1 else ""
        total = short(sum(saved.bytes for saved in group), "B")
        rows.append((number + what, line, total if group[0].extra else "nothing", why))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for what, line, size, why in rows:
        start = f"    {what.ljust(first)}  {line.ljust(second)}  {size:>8}  "
        yield from textwrap.wrap(why, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _linear(it: Explanation) -> Iterator[str]:
    if it.linear:
        yield f"LINEAR RECURRENCE  {', '.join(it.linear)}"
        yield "    h = a * h + b, element by element, with a and b that no state goes into"
        if any(region.passes for region in it.regions):
            yield "    run on all rows at once: each pass joins steps twice as far apart as the one before"


def _refusals(it: Explanation) -> Iterator[str]:
    if it.refusals:
        yield "DECLINED"
    for refused in it.refusals:
        who = EXECUTORS[refused.executor]
        yield from textwrap.wrap(
            f"{who}: {refused.reason}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
        if refused.line is not None:
            yield f"    at      {refused.line}  {refused.code or ''}".rstrip()
        if refused.remedy is not None:
            yield from textwrap.wrap(
                refused.remedy, WIDTH, initial_indent="    remedy  ", subsequent_indent=" " * 12
            )


def _notes(it: Explanation) -> Iterator[str]:
    for note in it.notes:
        yield from textwrap.wrap(note, WIDTH, initial_indent="note: ", subsequent_indent="      ")
