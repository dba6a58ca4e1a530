"""A picture of the recurrences: every peer's time over ours, on a logarithmic scale."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .harness import Row
from .peers import ORDER
from .report import Outcome
from .work import WORKS

COLUMNS = (("dense", "forward"), ("ragged", "forward"), ("dense", "train"), ("ragged", "train"))
# Colours that stay apart for colour-blind eyes (Okabe and Ito), and a mark for each, for print.
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#999999", "#000000")
STYLES: dict[str, tuple[str, str]] = dict(zip(ORDER, zip(COLOURS, "os^DvPhx", strict=True), strict=True))


def draw(outcomes: Sequence[Outcome], path: Path) -> list[Path]:
    """Write the picture beside the JSON file; nothing without recurrences or without matplotlib."""
    shown = [
        (outcome.topic.name, [row for row in outcome.rows if row.refused is None])
        for outcome in outcomes
        if outcome.topic.name in WORKS
    ]
    shown = [(name, rows) for name, rows in shown if rows]
    if not shown or importlib.util.find_spec("matplotlib") is None:
        return []
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 1.4 + 2.5 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), len(COLUMNS), squeeze=False, sharey="row")
    seen: dict[str, Any] = {}
    for line, (name, rows) in zip(panels, shown, strict=True):
        for panel, (layout, kind) in zip(line, COLUMNS, strict=True):
            chosen = [r for r in rows if (r.facts["layout"], r.facts["pass"]) == (layout, kind)]
            seen |= _panel(panel, chosen)
        line[0].set_ylabel(WORKS[name].title)
    for panel, (layout, kind) in zip(panels[0], COLUMNS, strict=True):
        panel.set_title(f"{layout}, {'forward alone' if kind == 'forward' else 'forward and backward'}")
    order = [name for name in STYLES if name in seen]
    figure.legend([seen[name] for name in order], order, loc="outside lower center", ncols=len(order))
    figure.suptitle("Time over stepnet's, with quartiles (above 1 stepnet is faster); sizes are T,B,H")
    target = path.with_suffix(".png")
    figure.savefig(target, dpi=110)
    return [target]


def _panel(panel: Any, rows: Sequence[Row]) -> dict[str, Any]:
    """One kind of work of one cell: a group of marks for each size."""
    panel.set_yscale("log")
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.grid(axis="y", which="major", alpha=0.4)
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    names = [name for name in STYLES if any(name in row.ratios for row in rows)]
    marks = {}
    for place, name in enumerate(names):
        shift = 0.7 * ((place + 0.5) / len(names) - 0.5)
        points = [(x + shift, row.ratios[name]) for x, row in enumerate(rows) if name in row.ratios]
        middle = [ratio.median for _, ratio in points]
        spread = [
            [ratio.median - ratio.low for _, ratio in points],
            [ratio.high - ratio.median for _, ratio in points],
        ]
        colour, mark = STYLES[name]
        marks[name] = panel.errorbar(
            [x for x, _ in points], middle, yerr=spread, fmt=mark, color=colour, markersize=5, linewidth=1
        )
    labels = [",".join(str(row.facts[key]) for key in ("T", "B", "H")) for row in rows]
    panel.set_xticks(range(len(rows)), labels, fontsize=7, rotation=35, ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.5, len(rows) - 0.5)
    for x in range(1, len(rows)):
        panel.axvline(x - 0.5, color="black", alpha=0.15, linewidth=0.6)
    return marks
