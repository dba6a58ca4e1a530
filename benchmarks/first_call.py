"""The first call in a new process: capture, check and build; and that no other size compiles again."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .child import last_line
from .harness import Case, Contender, Effort, Row, Topic
from .recurrences import TOLERANCE
from .work import WORKS, Setting, Size

SIZE = Size(20, 6, 64)
OTHERS = (Size(7, 6, 64), Size(20, 1, 64), Size(33, 11, 64))
EMPTY, FILLED = "stepnet", "from the cache"
GOALS = {EMPTY: 3.0, FILLED: 0.3}
EFFORTS = (
    Effort(rounds=3, warmup=0, shortest=0.0, budget=0.0),
    Effort(rounds=1, warmup=0, shortest=0.0, budget=0.0),
)


@dataclass(frozen=True)
class FirstCall(Contender):
    """A contender that notes the seconds of each of its runs as the new process says them."""

    seconds: list[float] = field(default_factory=list)


def cases(quick: bool) -> Iterator[Case]:
    """Training, dense; a folder for each case holds the cache that is already filled."""
    for name in ("lstm",) if quick else ("lstm", "layer_norm_lstm", "slstm", "window_lstm"):
        setting = Setting(WORKS[name], SIZE, ragged=False)
        with tempfile.TemporaryDirectory() as folder:
            _in_child(name, folder)
            yield Case(
                name=f"{name} {setting.name} train",
                contenders={EMPTY: _contender(name, None), FILLED: _contender(name, folder)},
                reference=lambda setting=setting: setting.target(training=True),
                facts={"work": name, "other sizes run after": len(OTHERS) * 2},
                rtol=0.0,
                atol=TOLERANCE,
            )


def _contender(work: str, cache: str | None) -> FirstCall:
    """A new process for each run; without a cache, each with an empty one."""
    seconds: list[float] = []

    def run() -> Mapping[str, Tensor]:
        if cache is not None:
            spent, values = _in_child(work, cache)
        else:
            with tempfile.TemporaryDirectory() as empty:
                spent, values = _in_child(work, empty)
        seconds.append(spent)
        return values

    return FirstCall(run, seconds=seconds)


def _in_child(work: str, cache: str) -> tuple[float, Mapping[str, Tensor]]:
    """Seconds of the first call in a new process, and its values.

    Raises:
        RuntimeError: it failed, or it compiled again for another size.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder, "values.pt")
        own = {"STEPNET_CACHE_DIR": cache}
        said = json.loads(last_line("first_call", work, str(values), environment=own))
        if said["compiled again"]:
            raise RuntimeError(f"other sizes compiled {said['compiled again']} times more")
        return said["seconds"], torch.load(values)


def measure(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Seconds of the runs, the one that was checked among them. Importing is not counted."""
    found: dict[str, list[float]] = {}
    for name, contender in case.contenders.items():
        assert isinstance(contender, FirstCall)
        while len(contender.seconds) < effort.rounds:
            contender.run()
        found[name] = contender.seconds[: effort.rounds]
    return found


def main() -> None:
    """Run a work once, then in other sizes; print how long the first call took and what compiled after it."""
    from stepnet.engine import make
    from stepnet.executors.c import over_rows
    from stepnet.executors.c.products import float_parts

    from .peers import ours

    work, path = sys.argv[1:]
    setting = Setting(WORKS[work], SIZE, ragged=False)
    way = ours.ways(setting)["stepnet"]
    folder = Path(os.environ["STEPNET_CACHE_DIR"])
    start = time.perf_counter()
    y = way.forward()
    # one number, as a loss is: to begin from the gradient of a tensor, torch imports sympy, which takes 0.3 s
    grads = torch.autograd.grad((y * way.seeds).sum(), way.leaves)
    seconds = time.perf_counter() - start
    torch.save(way.values((y, *grads)), path)

    compiled = []
    compile_loop = make.compile_loop

    def counted(*arguments: Any) -> Any:
        compiled.append(arguments)
        return compile_loop(*arguments)

    make.compile_loop = counted
    if float_parts() > 1:
        over_rows.library()  # of the machine, not of a step, built when many rows first ask for it
    built = set(folder.glob("*.so"))
    for size in OTHERS:
        for ragged in (False, True):
            other = Setting(WORKS[work], size, ragged)
            other.cell, other.weights = setting.cell, setting.weights
            ours.contenders(other, training=True)["stepnet"].run()
    again = len(compiled) + len(set(folder.glob("*.so")) - built)
    print(json.dumps({"seconds": seconds, "compiled again": again}))


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds, and the goals."""
    found = {
        f"{row.case}, {name}: seconds": spent.median for row in rows for name, spent in row.times.items()
    }
    return found | {f"goal, {name}: seconds": goal for name, goal in GOALS.items()}


TOPIC = Topic(
    name="first_call",
    claim="the first training step in a new process, with an empty cache and with a filled one; then other "
    "lengths and batch sizes, which must not compile again",
    cases=cases,
    findings=findings,
    measure=measure,
    efforts=EFFORTS,
)

if __name__ == "__main__":
    main()
