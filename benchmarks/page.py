"""The measured tables of the page "How it is fast", from the files of one or several runs.

python -m benchmarks.page out/bench/all.json [more.json ...] docs/speed.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .peers import FIVE_LINES
from .work import SIZES, WORKS

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
KINDS = {
    ("ragged", "train"): "Ragged, forward and backward",
    ("dense", "train"): "Dense, forward and backward",
    ("ragged", "forward"): "Ragged, forward alone",
    ("dense", "forward"): "Dense, forward alone",
}
NAMES = {"nn": "nn", "nn packed": "packed", "jax": "JAX", "openvino": "OpenVINO", "onnx runtime": "ORT"}
OPENVINO = {
    "openvino_ir": "Models in OpenVINO IR: OpenVINO over stepnet",
    "openvino_written": "Run by OpenVINO: all in the body over as stepnet writes it",
}
OTHERS = {
    "onnx_models": "Models read from ONNX: ONNX Runtime over stepnet",
    "while_loops": "A while loop over TensorArrays that is a scan: times over that of its frame",
    "nested": "An inner recurrence that needs nothing of the outer state: at each outer step, over once",
}
Line = Sequence[str]


def _joined(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Runs of one machine as one."""
    topics = [topic for record in records for topic in record["topics"]]
    return {"quick": any(record["quick"] for record in records), "topics": topics}


def measured(record: Mapping[str, Any]) -> str:
    """All tables of a run as Markdown.

    Raises:
        ValueError: a row of the run was refused, or it was a quick one.
    """
    if record["quick"]:
        raise ValueError("a quick run shows that all runs, not how fast it is")
    topics = {topic["name"]: topic["rows"] for topic in record["topics"]}
    refused = [row["case"] for rows in topics.values() for row in rows if row["refused"]]
    if refused:
        raise ValueError(f"refused rows: {', '.join(refused)}")
    return "\n\n".join(
        [
            *_recurrences(topics),
            *_five_lines(topics),
            *_kept_heap(topics),
            *_memory(topics),
            *_first_call(topics),
            *_openvino(topics),
            *_others(topics),
        ]
    )


def _recurrences(topics: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for name in WORKS for row in topics.get(name, [])]
    if not rows:
        return
    peaks = [v for row in rows for k, v in row["facts"].items() if k.startswith("sgemm peak")]
    yield f"The machine's peak in this run: {max(peaks):.0f} gflop/s (a float32 matmul, two threads)."
    for (layout, kind), title in KINDS.items():
        chosen = {
            (row["facts"]["work"], *(row["facts"][name] for name in ("T", "B", "H"))): row
            for row in rows
            if (row["facts"]["layout"], row["facts"]["pass"]) == (layout, kind)
        }
        if not chosen:
            continue
        sizes = [size for size in SIZES if any(key[1:] == size for key in chosen)]
        lines = [
            [WORKS[work].title, *(_entry(chosen.get((work, *size)), max(peaks)) for size in sizes)]
            for work in WORKS
            if any(key[0] == work for key in chosen)
        ]
        yield f"**{title}**\n\n" + _table(["T, B, H", *(", ".join(map(str, size)) for size in sizes)], lines)


def _entry(row: Mapping[str, Any] | None, peak: float) -> str:
    """Best peer's time over ours, who it is, and our share of the peak."""
    if row is None:
        return ""
    ratios = {name: ratio["median"] for name, ratio in row["ratios"].items() if name != FIVE_LINES}
    best = min(ratios, key=lambda name: ratios[name])
    share = row["facts"]["gflop"] / row["times"][row["ours"]]["median"] / peak
    return f"**{ratios[best]:.2g}** {NAMES.get(best, best)}, {100 * share:.0f} %"


def _five_lines(topics: Mapping[str, Any]) -> Iterator[str]:
    ratios = sorted(
        row["ratios"][FIVE_LINES]["median"] for row in topics.get("lstm", []) if FIVE_LINES in row["ratios"]
    )
    if ratios:
        yield (
            "An LSTM written in five lines takes, over all rows, "
            f"{ratios[len(ratios) // 2]:.2f} times as long as `stepnet.nn.LSTM` (median; "
            f"from {ratios[0]:.2f} to {ratios[-1]:.2f})."
        )


def _kept_heap(topics: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in topics.get("kept_heap", []) if row["facts"]["layout"] == "dense"]
    if rows:
        lines = [
            [
                WORKS[row["facts"]["work"]].title,
                row["case"].split()[0],
                f"{row['ratios']['nn']['median']:.2f}",
            ]
            for row in rows
        ]
        yield (
            "Part of the time of `torch.nn` in dense training is page faults of freed memory. In a process "
            "that keeps what it frees:\n\n" + _table(["", "T,B,H", "nn / stepnet"], lines)
        )


def _memory(topics: Mapping[str, Any]) -> Iterator[str]:
    held = {row["case"]: row for row in topics.get("memory_held", [])}
    peak = {row["case"]: row for row in topics.get("memory_peak", [])}
    lines = []
    for case, row in held.items():
        for name, spent in row["times"].items():
            if name == FIVE_LINES:
                continue
            high = peak[case]["times"].get(name) if case in peak else None
            first = name == next(iter(row["times"]))
            lines.append(
                [case if first else "", name, _mib(spent), _mib(high) if high is not None else ""],
            )
    if lines:
        yield "**Memory of a training step, MiB**\n\n" + _table(
            ["", "", "kept for backward", "peak of the process"], lines
        )


def _mib(spread: Mapping[str, float]) -> str:
    return f"{spread['median'] / 2**20:.1f}"


def _first_call(topics: Mapping[str, Any]) -> Iterator[str]:
    rows = topics.get("first_call", [])
    if rows:
        lines = [
            [
                WORKS[row["facts"]["work"]].title,
                *(f"{spent['median']:.2f}" for spent in row["times"].values()),
            ]
            for row in rows
        ]
        yield "**First training step in a new process, seconds**\n\n" + _table(
            ["", "empty cache", "filled cache"], lines
        )


def _openvino(topics: Mapping[str, Any]) -> Iterator[str]:
    for name, title in OPENVINO.items():
        rows = topics.get(name, [])
        if not rows:
            continue
        batches = list(dict.fromkeys(row["facts"]["B"] for row in rows))
        works = list(dict.fromkeys(row["facts"]["title"] for row in rows))
        entries = {(row["facts"]["title"], row["facts"]["B"]): _ratio_and_times(row) for row in rows}
        facts = rows[0]["facts"]
        yield (
            f"**{title}** (T={facts['T']}, H={facts['H']}; then both in milliseconds)\n\n"
            + _table(
                ["", *(f"B={batch}" for batch in batches)],
                [[work, *(entries.get((work, batch), "") for batch in batches)] for work in works],
            )
        )


def _ratio_and_times(row: Mapping[str, Any]) -> str:
    ((other, ratio),) = row["ratios"].items()
    theirs, ours = (1e3 * row["times"][name]["median"] for name in (other, row["ours"]))
    return f"**{ratio['median']:.2g}**, {theirs:.1f} : {ours:.1f}"


def _others(topics: Mapping[str, Any]) -> Iterator[str]:
    """A line for each case, with the contenders' ratios to ours."""
    for name, title in OTHERS.items():
        rows = topics.get(name, [])
        if rows:
            names = [peer for peer in rows[0]["times"] if peer != rows[0]["ours"]]
            lines = [
                [row["case"], *(f"{row['ratios'][peer]['median']:.2f}" for peer in names)] for row in rows
            ]
            yield f"**{title}**\n\n" + _table(["", *names], lines)


def _table(head: Line, lines: Sequence[Line]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def main() -> None:
    """Replace what stands between the marks of a page."""
    *records, page = map(Path, sys.argv[1:])
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    tables = measured(_joined([json.loads(record.read_text(encoding="utf-8")) for record in records]))
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
