"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from .harness import FULL, QUICK, Topic, run_case
from .report import Outcome, show, write_json
from .topics import TOPICS

OUT = Path(__file__).resolve().parent.parent / "out" / "bench"


def run_topic(topic: Topic, quick: bool, console: Console) -> Outcome:
    """Run all cases of a topic and print what came of it."""
    rows = []
    for case in topic.cases(quick):
        with console.status(escape(f"{topic.name}: {case.name}")):
            rows.append(run_case(case, QUICK if quick else FULL))
    fair = [row for row in rows if row.refused is None]
    findings = topic.findings(fair) if topic.findings is not None else {}
    outcome = Outcome(topic, rows, findings)
    show(outcome, console)
    return outcome


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run topics; the exit status is 1 if a case was refused for its values."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run the same work by several contenders: compare all values first, then time them turn "
        "by turn. Prints a table per topic and writes a JSON file.",
        epilog="topics: " + "; ".join(f"{name} ({topic.claim})" for name, topic in TOPICS.items()),
    )
    parser.add_argument("names", nargs="*", metavar="topic", help="topics to run; all if none is named")
    parser.add_argument(
        "--quick", action="store_true", help="small cases and few rounds: shows that all runs"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="the file to write; default out/bench/NAMES.json"
    )
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in TOPICS]
    if unknown:
        parser.error(f"no topic {', '.join(unknown)}; there are: {', '.join(TOPICS)}")

    console = console or Console()
    if not console.is_terminal:
        console.width = 110  # a log file has no width of its own, and tables need one
    console.print(
        "ratio: the contender's time / ours in the same round; above 1, ours is faster\n", highlight=False
    )
    outcomes = [run_topic(TOPICS[name], given.quick, console) for name in given.names or TOPICS]
    name = "-".join(given.names or ["all"]) + ("-quick" if given.quick else "")
    path = given.json or OUT / f"{name}.json"
    write_json(path, outcomes, given.quick)
    console.print(f"written: {escape(os.path.relpath(path))}", highlight=False, soft_wrap=True)
    return int(any(row.refused is not None for outcome in outcomes for row in outcome.rows))


if __name__ == "__main__":
    raise SystemExit(main())
