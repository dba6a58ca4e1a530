"""Models in OpenVINO IR: run by stepnet and by OpenVINO; and written by stepnet, run by OpenVINO."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

import stepnet
from stepnet.openvino import OpenVINOModel, load, save

from .harness import Case, Contender, Effort, Row, Topic
from .stats import Spread

EFFORTS = (
    Effort(rounds=15, warmup=2, shortest=0.02, budget=20.0),
    Effort(rounds=3, warmup=1, shortest=0.0, budget=1.0),
)
TOLERANCE = 1e-5
# OpenVINO's time over ours that is to be reached: of a layer of its own, and of a body that is none.
OWN, CUSTOM = 1.0, 2.0
Values = Mapping[str, Tensor]


def _import(name: str) -> Any:
    try:
        return importlib.import_module(f"benchmarks.{name}")
    except ImportError as error:
        raise RuntimeError("OpenVINO is not installed (pip install 'stepnet[bench,openvino]')") from error


def cases(quick: bool) -> Iterator[Case]:
    """Each model, of static shapes, for one sequence and for a batch."""
    models = _import("ir_models")
    for name, work in models.WORKS.items():
        for size in models.SMALL if quick else models.SIZES:
            with tempfile.TemporaryDirectory() as folder:
                path = models.write(work, size, Path(folder))
                feeds = {n: torch.from_numpy(value) for n, value in models.inputs(work, size).items()}
                ours = load(path)
                yield Case(
                    name=f"{name} {size}",
                    contenders={
                        "stepnet": Contender(_run(ours, feeds), lambda done: dict(done.items())),
                        "openvino": Contender(models.run(path, feeds), _in_order),
                    },
                    reference=lambda path=path, feeds=feeds: _expected(path, feeds),
                    facts={
                        "work": name,
                        "title": work.title,
                        **size._asdict(),
                        "goal": CUSTOM if work.custom else OWN,
                    },
                    rtol=0.0,
                    atol=TOLERANCE,
                )


def written_cases(quick: bool) -> Iterator[Case]:
    """The same loop in two files, run by OpenVINO: all of the step in its body, and as stepnet writes it."""
    models, twins = _import("ir_models"), _import("ir_twins")
    for name, make in twins.TWINS.items():
        work = models.WORKS[name]
        for size in models.SMALL if quick else models.SIZES:
            with tempfile.TemporaryDirectory() as folder:
                weights = models.Weights(size)
                path = models.write(work, size, Path(folder), weights)
                feeds = {n: torch.from_numpy(value) for n, value in models.inputs(work, size).items()}
                ours = path.with_name("written.xml")
                inputs = tuple(feeds.values())
                with torch.no_grad():
                    save(twins.Twin(make(weights.drawn)), ours, inputs, dynamic={})
                by_name = dict(zip((i.name for i in load(ours).inputs), inputs, strict=True))
                yield Case(
                    name=f"{name} {size}",
                    contenders={
                        "stepnet": Contender(models.run(ours, by_name), _in_order),
                        "all in the body": Contender(models.run(path, feeds), _in_order),
                    },
                    reference=lambda path=path, feeds=feeds: _expected(path, feeds),
                    facts={"work": name, "title": work.title, **size._asdict(), "goal": 1.0},
                    rtol=0.0,
                    atol=TOLERANCE,
                )


def _run(model: OpenVINOModel, feeds: Values) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return model(**feeds)

    return run


def _in_order(done: Mapping[Any, Any]) -> Values:
    return {name: torch.from_numpy(value.copy()) for name, value in zip("yh", done.values(), strict=True)}


def _expected(path: Path, feeds: Values) -> Values:
    """The outputs by the plain loop in float64: step after step, every layer by torch."""
    model = load(path).double()
    before = stepnet.get_backend()
    stepnet.set_backend("naive")
    try:
        with torch.no_grad():
            return dict(model(**{name: value.double() for name, value in feeds.items()}).items())
    finally:
        stepnet.set_backend(before)


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """How many goals are reached."""
    ratios = [(_ratio(row).median, float(row.facts["goal"])) for row in rows]
    return {
        "rows": len(rows),
        "rows with a ratio of 1 or more": sum(ratio >= 1 for ratio, _ in ratios),
        "rows that reach their goal": sum(ratio >= goal for ratio, goal in ratios),
    }


def _ratio(row: Row) -> Spread:
    (ratio,) = row.ratios.values()
    return ratio


def table(rows: Sequence[Row]) -> RenderableType:
    """A line for each case: both times, and their ratio."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    other = next((name for row in rows for name in row.ratios), "")
    for heading in ("model", "stepnet, ms", f"{other}, ms", "ratio", "quartiles", "goal"):
        shown.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    for row in rows:
        if row.refused is None:
            ratio = _ratio(row)
            times = (f"{spent.median * 1e3:.2f}" for spent in row.times.values())
            spread = f"{ratio.low:.2f}-{ratio.high:.2f}"
            shown.add_row(row.case, *times, f"{ratio.median:.2f}", spread, f"{row.facts['goal']:.0f}")
    notes = [f"refused: {row.case}: {row.refused}" for row in rows if row.refused is not None]
    return Group(shown, *(Text(note, style="red") for note in notes))


TOPICS = (
    Topic(
        name="openvino_ir",
        claim="models read from OpenVINO IR: OpenVINO's time over ours",
        cases=cases,
        findings=findings,
        table=table,
        efforts=EFFORTS,
    ),
    Topic(
        name="openvino_written",
        claim="the same loops run by OpenVINO: with all of the step in the body, over as stepnet writes them",
        cases=written_cases,
        findings=findings,
        table=table,
        efforts=EFFORTS,
    ),
)
