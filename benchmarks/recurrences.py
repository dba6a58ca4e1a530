"""Recurrences against peers: a topic for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import peers
from .goals import goal
from .harness import Case, Effort, Row, Topic
from .peak import matmul_peak
from .peers import FIVE_LINES, ORDER
from .stats import Spread
from .work import SIZES, SMALL, WORKS, Setting, Work

EFFORTS = (
    Effort(rounds=9, warmup=2, shortest=0.02, budget=2.5),
    Effort(rounds=3, warmup=1, shortest=0.0, budget=1.0),
)
# Of the largest value of a tensor; all contenders are some 10^-7 to 10^-6 off.
TOLERANCE = 2e-5


def settings(work: Work, quick: bool) -> Iterator[Setting]:
    """Each size, dense and ragged; a batch of one is never ragged."""
    for size in SMALL if quick else SIZES:
        for ragged in (False, True) if size.B > 1 else (False,):
            yield Setting(work, size, ragged)


def cases(work: Work, quick: bool) -> Iterator[Case]:
    """Each setting, forward alone and with all gradients."""
    for setting in settings(work, quick):
        for training in (False, True):
            yield case_of(setting, training)


def case_of(setting: Setting, training: bool, only: Sequence[str] | None = None) -> Case:
    """One kind of work of all peers, or of the files of peers named."""
    found, absent = peers.contenders(setting, training, only)
    threads = torch.get_num_threads()
    wanted = goal(setting.work.name, setting.size, setting.ragged, training)
    return Case(
        name=f"{setting.name} {'train' if training else 'forward'}",
        contenders=found,
        reference=lambda: setting.target(training),
        facts=facts_of(setting, training, absent, wanted)
        | {
            "rows": setting.rows,
            "fill": setting.rows / setting.valid.numel(),
            "sgemm peak, 1 thread, gflop/s": matmul_peak(1, turns=2) * 1e-9,
            f"sgemm peak, {threads} threads, gflop/s": matmul_peak(threads) * 1e-9,
        },
        rtol=0.0,
        atol=TOLERANCE,
    )


def facts_of(setting: Setting, training: bool, absent: Sequence[str], wanted: float | None) -> dict[str, Any]:
    """What a row says of its work, in whatever precision.

    Args:
        absent: peers that are not there, and why.
        wanted: the ratio to be reached, if one was set.
    """
    return {
        "work": setting.work.name,
        "T": setting.size.T,
        "B": setting.size.B,
        "H": setting.size.H,
        "layout": "ragged" if setting.ragged else "dense",
        "pass": "train" if training else "forward",
        "gflop": setting.flops(training) * 1e-9,
        "absent": "; ".join(absent),
    } | ({} if wanted is None else {"goal": wanted})


def limits(rows: Sequence[Row]) -> dict[str, float]:
    """The machine's peaks by name: the best that was seen in the run."""
    found: dict[str, float] = {}
    for row in rows:
        for name, value in row.facts.items():
            if " peak, " in name:
                found[name] = max(found.get(name, 0.0), float(value))
    return found


def fraction(row: Row, rows: Sequence[Row]) -> float:
    """Our useful operations a second over the machine's peak."""
    reached = float(row.facts["gflop"]) / row.times[row.ours].median
    return reached / max(limits(rows).values())


def best_peer(row: Row) -> tuple[str, Spread] | None:
    """The fastest of the others, and its time over ours."""
    others = {name: ratio for name, ratio in row.ratios.items() if name != FIVE_LINES}
    return min(others.items(), key=lambda item: item[1].median) if others else None


def reaches(row: Row) -> bool:
    """Whether the fastest peer takes as much longer than we as is the goal."""
    best = best_peer(row)
    return best is not None and best[1].median >= float(row.facts["goal"])


def bound(row: Row, rows: Sequence[Row]) -> float | None:
    """What the ratio to the fastest peer would be if we ran at the machine's peak: nobody reaches more."""
    best = best_peer(row)
    return None if best is None else best[1].median / fraction(row, rows)


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """The limits, how many goals are reached, and what five lines cost."""
    found = limits(rows)
    judged = [row for row in rows if "goal" in row.facts and best_peer(row) is not None]
    if judged:
        found["rows with a goal"] = len(judged)
        found["rows that reach it"] = sum(reaches(row) for row in judged)
        found["rows where a matmul at the peak would miss it"] = sum(
            (bound(row, rows) or 0.0) < float(row.facts["goal"]) for row in judged
        )
    five = [row.ratios[FIVE_LINES].median for row in rows if FIVE_LINES in row.ratios]
    if five:
        found[f"{FIVE_LINES} / stepnet.nn.LSTM: median over rows"] = Spread.of(five).median
        found[f"{FIVE_LINES} / stepnet.nn.LSTM: largest"] = max(five)
    return found


def table(rows: Sequence[Row]) -> RenderableType:
    """A line for each case: our time, our share of the limit, and each peer's time over ours."""
    fair = [row for row in rows if row.refused is None]
    names = [name for name in ORDER if any(name in row.ratios for row in fair)]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_lines=False)
    shown.add_column("T,B,H", no_wrap=True)
    shown.add_column("work", no_wrap=True)
    for name in ("ms", "% peak"):
        shown.add_column(name, justify="right", no_wrap=True)
    for name in names:
        shown.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True, min_width=9)
    shown.add_column("best/goal\n(bound)", justify="right", no_wrap=True)
    several = len({row.facts["work"] for row in fair}) > 1
    heading = ""
    for row in fair:
        best = best_peer(row)
        before, heading = heading, ",".join(str(row.facts[name]) for name in ("T", "B", "H"))
        if several:
            heading = f"{row.facts['work']} {heading}"
        shown.add_row(
            "" if heading == before else heading,
            f"{row.facts['layout']} {row.facts['pass']}",
            f"{row.times[row.ours].median * 1e3:.2f}",
            f"{100 * fraction(row, fair):.0f}",
            *(_ratio(row.ratios.get(name)) for name in names),
            "" if best is None else _against_goal(row, best[1].median, bound(row, fair)),
        )
    notes = [f"refused: {row.case}: {row.refused}" for row in rows if row.refused is not None]
    absent = dict.fromkeys(
        line for row in rows for line in str(row.facts.get("absent", "")).split("; ") if line
    )
    return Group(shown, *(Text(note, style="red") for note in notes), *(Text(line) for line in absent))


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{_short(ratio.median)}\n{_short(ratio.low)}-{_short(ratio.high)}"


def _against_goal(row: Row, reached: float, most: float | None) -> str:
    return f"{_short(reached)}/{row.facts.get('goal', '-')}\n({_short(most or 0.0)})"


def _short(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _topic(work: Work) -> Topic:
    return Topic(
        name=work.name,
        claim=f"{work.title}: time over ours of everyone who can run it, with quartiles",
        cases=partial(cases, work),
        findings=findings,
        table=table,
        efforts=EFFORTS,
    )


TOPICS = tuple(_topic(work) for work in WORKS.values())
