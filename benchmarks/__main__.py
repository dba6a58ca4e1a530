"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from . import plot
from .harness import Row, Topic, run_case, said_by
from .report import Outcome, show, write_json
from .topics import GROUPS, TOPICS, resolve

THREADS = 2
OUT = Path(__file__).resolve().parent.parent / "out" / "bench"


def run_topic(
    topic: Topic, quick: bool, console: Console, keep: Callable[[Outcome], None] = lambda outcome: None
) -> Outcome:
    """Run all cases of a topic and print what came of it; `keep` gets what there is after each case."""
    rows: list[Row] = []
    try:
        for case in topic.cases(quick):
            with console.status(escape(f"{topic.name}: {case.name}")):
                rows.append(run_case(case, topic.efforts[quick], measurer=topic.measure))
            keep(Outcome(topic, rows, {}))
    except Exception as error:  # the other topics go on; this row and the exit status tell
        rows.append(Row("all that follow", "", {}, refused=f"making the next case raised {said_by(error)}"))
    fair = [row for row in rows if row.refused is None]
    findings = topic.findings(fair) if topic.findings is not None else {}
    outcome = Outcome(topic, rows, findings)
    keep(outcome)
    show(outcome, console)
    return outcome


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run topics; the exit status is 1 if a case was refused for its values."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run the same work by several contenders: compare all values first, then time them turn "
        "by turn. Prints a table per topic; writes a JSON file as it goes, and a plot of the recurrences.",
        epilog="topics: "
        + "; ".join(
            f"{name} ({topic.claim}{'; only where named' if topic.on_request else ''})"
            for name, topic in TOPICS.items()
        )
        + ". Groups: "
        + "; ".join(f"{name} ({', '.join(topics)})" for name, topics in GROUPS.items()),
    )
    parser.add_argument(
        "names", nargs="*", metavar="topic", help="topics or groups to run; all if none is named"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small cases and few rounds: shows that all runs"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="the file to write; default out/bench/NAMES.json"
    )
    given = parser.parse_args(arguments)
    names = resolve(given.names, TOPICS)
    unknown = [name for name in names if name not in TOPICS]
    if unknown:
        parser.error(f"no topic {', '.join(unknown)}; there are: {', '.join([*TOPICS, *GROUPS])}")

    console = console or Console()
    if not console.is_terminal:
        console.width = 140  # a log file has no width of its own, and tables need one
    torch.set_num_threads(THREADS)
    console.print(
        "ratio: the contender's time / ours in the same round; above 1, ours is faster\n", highlight=False
    )
    name = "-".join(given.names or ["all"]) + ("-quick" if given.quick else "")
    path = given.json or OUT / f"{name}.json"
    outcomes: list[Outcome] = []

    def keep(now: Outcome) -> None:
        write_json(path, [*outcomes, now], given.quick)

    for name in names:
        outcomes.append(run_topic(TOPICS[name], given.quick, console, keep))
    written = [path, *plot.draw(outcomes, path)]
    for file in written:
        console.print(f"written: {escape(os.path.relpath(file))}", highlight=False, soft_wrap=True)
    return int(any(row.refused is not None for outcome in outcomes for row in outcome.rows))


if __name__ == "__main__":
    raise SystemExit(main())
