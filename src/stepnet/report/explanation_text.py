"""An explanation as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from stepnet.executors.naive import PLAIN

from .cost import reads_values
from .explanation import Explanation, ModelExplanation
from .records import LoopSummary, Region, Saved
from .text import WIDTH, columns, to_text, verbatim
from .words import Titles, direction, extent, shape, share, short, summary, when

_FOR_FEW = {
    "turns": "of few long sequences, threads take turns at the steps and make the rest beside them",
    "features": "no feature is made of another: of few long sequences each thread takes some features",
}
_CODE = 44  # columns for the user's code
_COUNTS = (
    "FLOP: 2 K for each element of a matmul over K, 10 for exp, tanh and the like, 1 for other arithmetic.\n"
    "Bytes: what crosses a region's border; what has no rows, such as a weight, once."
)


def text(it: Explanation | ModelExplanation) -> str:
    """The whole explanation, of one recurrence or of a model."""
    if isinstance(it, ModelExplanation):
        return _model_text(it)
    source = "" if it.source is None else f"\n\nGENERATED C\n\n{it.source.rstrip()}"
    return to_text(_parts(it)) + source


def _model_text(it: ModelExplanation) -> str:
    """A table of the recurrences, then each that is not explained before."""
    rows = [("", "", "runs by", "FLOP", "on many rows", "kept")]
    for number, one in enumerate(it.recurrences, 1):
        figures = (short(one.flops, ""), share(one.batched_flops, one.flops), short(one.saved_bytes, "B"))
        rows.append((f"{number}  {one.name}", direction(one), one.label, *figures))
    overview = columns(rows, indent=2, right=(3, 4, 5), widths={2: 14, 3: 8, 4: 12, 5: 8})
    parts = [to_text([verbatim(f"{it.name}: {summary(it)}"), overview])]
    for number, one in enumerate(it.recurrences, 1):
        first = it.recurrences.index(one) + 1
        content = f"{one.name}: as {first}" if first < number else str(one)
        parts.append(f"{'=' * WIDTH}\n\n{number}  {content}")
    return "\n\n\n".join(parts)


def _parts(it: Explanation) -> Iterator[RenderableType]:
    title = f"{it.name}: {extent(it)}"
    yield Group(verbatim(title), Text(_verdict(it)))
    declined = [Group("DECLINED", *_refusals(it))] if it.refusals else []
    if not it.compiled:
        yield from declined
    for loop in it.loops:
        yield from _loop(it, loop)
    if it.saved:
        yield _saved(it)
    if it.linear:
        yield "\n".join(_linear(it))
    if it.compiled:
        yield from declined
    if it.notes:
        yield columns([("note:", note) for note in it.notes], gap=1)
    if it.loops:
        calls = {op.name for op in it.find() if op.weight == "call" and not reads_values(op.name)}
        yield f"{_COUNTS}\nNot counted: {', '.join(sorted(calls))}." if calls else _COUNTS


def _verdict(it: Explanation) -> str:
    if it.executor == "refused":
        return "The backend that was asked for by name declines the step: recurrent raises Unsupported."
    if it.executor == PLAIN.name:
        then = " Torch's autograd keeps what it needs of every step." if it.training else ""
        return f"Runs by the plain loop: the whole step, op by op in torch, at every step.{then}"
    end = "with its gradients " if it.training else ""
    return (
        f"Runs by {it.label}. A run {end}costs {short(it.flops, 'FLOP')}; "
        f"{share(it.batched_flops, it.flops)} of that is done on many rows at once, not step after step."
    )


def _loop(it: Explanation, loop: LoopSummary) -> Iterator[RenderableType]:
    titles = Titles(loop)
    yield _figures(loop.direction.upper(), "FLOP", "reads", "writes")
    for region in loop.regions:
        if region.kind != "prologue" or any(op.weight != "move" for op in region.ops):
            yield Group(*_region(it, region, titles))  # else views of weights, and constants


def _figures(title: str, *figures: str) -> Text:
    return verbatim(title.ljust(WIDTH - 33) + "".join(figure.rjust(11) for figure in figures))


def _region(it: Explanation, region: Region, titles: Titles) -> Iterator[RenderableType]:
    figures = (short(region.flops, ""), short(region.bytes_read, "B"), short(region.bytes_written, "B"))
    where = f"({region.kind}, {region.label})"
    yield _figures(f"  {when(region, it.rows, it.sequences)}  {where}", *figures)
    if region.in_blocks:
        yield "    a block of rows at a time, beside the steps that need it, while it is in the cache"
    if region.carries:
        states = (b if b.startswith("gradient of ") else a for a, b in region.carries)
        yield columns([("from step to step:", ", ".join(states))], indent=4, gap=1)
    if region.for_few is not None:
        yield f"    {_FOR_FEW[region.for_few]}"
    every = region.kind != "prologue"
    lines = [line for line in region.lines if every or any(op.weight != "move" for op in line.ops)]
    rows = [
        (line.at or "", textwrap.shorten(line.code or "", _CODE, placeholder=" ..."), titles.ops(line.ops))
        for line in lines
    ]
    if any(line.at for line in lines):
        yield columns(rows, indent=4, widths={1: _CODE})
    elif rows:
        yield columns([row[2:] for row in rows], indent=4)


def _saved(it: Explanation) -> RenderableType:
    """Values of the same shape, line and reason in one row, those that cost memory first."""
    groups: dict[tuple[str, str, str], list[Saved]] = {}
    for saved in it.saved:
        key = (f"{saved.label} {shape(saved.shape)}", saved.line or "", saved.why)
        groups.setdefault(key, []).append(saved)
    rows = []
    for (what, line, why), group in sorted(groups.items(), key=lambda item: not item[1][0].extra):
        number = f"{len(group)} " if len(group) > 1 else ""
        total = short(sum(saved.bytes for saved in group), "B")
        rows.append((number + what, line, total if group[0].extra else "nothing", why))
    head = f"KEPT FOR BACKWARD  {short(it.saved_bytes, 'B')}, {short(it.saved_per_row, 'B')} a row"
    return Group(head, columns(rows, indent=4, right=(2,), widths={2: 8}))


def _linear(it: Explanation) -> Iterator[str]:
    yield f"LINEAR RECURRENCE  {', '.join(it.linear)}"
    yield "    h = a * h + b, of one or more such states, with a and b that no state goes into"
    if any(region.passes for region in it.regions):
        yield "    run on all rows at once: each pass joins steps twice as far apart as the one before"


def _refusals(it: Explanation) -> Iterator[RenderableType]:
    for refused in it.refusals:
        yield columns([(f"{refused.label}:", refused.reason)], indent=2, gap=1)
        rows = [("at", f"{refused.line}  {refused.code or ''}")] if refused.line else []
        rows += [("remedy", refused.remedy)] if refused.remedy else []
        if rows:
            yield columns(rows, indent=4, widths={0: 6})
