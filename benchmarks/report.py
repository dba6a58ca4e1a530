"""What a run prints and what it writes down."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .harness import Row, Topic


@dataclass(frozen=True)
class Outcome:
    """A topic's rows, and what was found over all of them."""

    topic: Topic
    rows: Sequence[Row]
    findings: Mapping[str, float]


def machine() -> dict[str, Any]:
    """What the numbers depend on. No name of a host, a user or a folder."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def as_json(outcomes: Sequence[Outcome], quick: bool) -> str:
    """All outcomes with the facts of the machine; times in the topic's unit, ratios peer / ours."""
    record = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": machine(),
        "topics": [
            {
                "name": outcome.topic.name,
                "claim": outcome.topic.claim,
                "unit": outcome.topic.unit,
                "rows": [asdict(row) for row in outcome.rows],
                "findings": dict(outcome.findings),
            }
            for outcome in outcomes
        ],
    }
    return json.dumps(record, indent=1)


def write_json(path: Path, outcomes: Sequence[Outcome], quick: bool) -> None:
    """Write the file and the folders above it; whoever stops in the middle leaves the file before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(as_json(outcomes, quick) + "\n", encoding="utf-8")
    part.replace(path)


def table(outcome: Outcome) -> Table:
    """A line per contender; a refused case is one line, with its reason."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("case", no_wrap=True)
    shown.add_column("contender")
    for heading in ("ms", "quartiles", "ratio", "quartiles", "rounds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in outcome.rows:
        if row.refused is not None:
            shown.add_row(escape(row.case), f"[red]refused: {escape(row.refused)}[/red]", end_section=True)
            continue
        for number, (name, spent) in enumerate(row.times.items(), 1):
            ratio = row.ratios.get(name)
            shown.add_row(
                escape(row.case) if number == 1 else "",
                escape(name),
                f"{spent.median * 1e3:.3f}",
                f"{spent.low * 1e3:.3f}-{spent.high * 1e3:.3f}",
                "" if ratio is None else f"{ratio.median:.2f}",
                "" if ratio is None else f"{ratio.low:.2f}-{ratio.high:.2f}",
                str(row.rounds) if number == 1 else "",
                end_section=number == len(row.times),
            )
    return shown


def show(outcome: Outcome, console: Console) -> None:
    """Print a topic's claim, its table and its findings."""
    console.print(f"[bold]{outcome.topic.name}[/bold]: {escape(outcome.topic.claim)}", highlight=False)
    console.print(table(outcome) if outcome.topic.table is None else outcome.topic.table(outcome.rows))
    for name, value in outcome.findings.items():
        console.print(f"  {escape(name)}: {value:.3g}", highlight=False)
    console.print()
