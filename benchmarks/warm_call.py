"""What a call costs beside its arithmetic once its plan is there: recurrences of a few numbers, one step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepnet import LoDTensor, cells, recurrent

from .child import on_threads
from .harness import Case, Contender, Effort, Row, Topic, measure

LENGTHS = (5, 3, 2, 4)
UNITS = 64  # of the cells of which one step is run
FEATURES = 16
EFFORTS = (
    Effort(rounds=100, warmup=4, shortest=5e-3, budget=15.0),
    Effort(rounds=3, warmup=2, shortest=2e-3, budget=5.0),
)


def cases(quick: bool) -> Iterator[Case]:
    """A step of one matmul, and an LSTM cell, each over four short sequences."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(LENGTHS), FEATURES, generator=draw)
    lod = LoDTensor.from_lengths(rows, [list(LENGTHS)])
    start = torch.zeros(len(LENGTHS), FEATURES)
    weight = torch.randn(FEATURES, FEATURES, generator=draw) / 4

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h @ weight)
        return h, h

    torch.manual_seed(0)
    lstm = cells.LSTM(FEATURES, FEATURES)
    yield _case("own step forward", lambda backend: _forward(step, lod, start, backend))
    if not quick:
        yield _case("lstm forward", lambda backend: _forward(lstm, lod, None, backend))
        yield _case("lstm forward, lengths that change", lambda backend: _in_turn(lstm, lod.values, backend))
    yield _case("lstm train", lambda backend: _training(lstm, lod, backend))
    for rows in () if quick else (1, 16):
        yield _one_step("torch.nn.GRUCell", nn.GRUCell(UNITS, UNITS), rows)
        yield _one_step("own GRU", GRU(), rows)


class GRU(nn.Module):
    """A GRU as one writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.of_x, self.of_h = nn.Linear(UNITS, 3 * UNITS), nn.Linear(UNITS, 3 * UNITS)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        r, z, n = self.of_x(x).chunk(3, -1)
        s, u, m = self.of_h(h).chunk(3, -1)
        n = torch.tanh(n + torch.sigmoid(r + s) * m)
        h = n + torch.sigmoid(z + u) * (h - n)
        return h, h


def _one_step(name: str, cell: nn.Module, rows: int) -> Case:
    """A call of one step, as in acting or decoding, and a call of the cell itself."""
    x, h = torch.randn(1, rows, UNITS), torch.zeros(rows, UNITS)

    def by_recurrent() -> Mapping[str, Tensor]:
        with torch.no_grad():
            return {"h": recurrent(cell, x, h)[1]}

    def by_itself() -> Mapping[str, Tensor]:
        with torch.no_grad():
            new = cell(x[0], h)
        return {"h": new if isinstance(new, Tensor) else new[1]}

    return Case(
        name=f"one step, {name}, B={rows}",
        contenders={"stepnet": Contender(by_recurrent), "the cell": Contender(by_itself)},
        reference="the cell",
        facts={"B": rows, "H": UNITS},
    )


def _case(name: str, run: Callable[[str], Callable[[], Mapping[str, Tensor]]]) -> Case:
    return Case(
        name=name,
        contenders={"stepnet": Contender(run("c")), "plain loop": Contender(run("naive"))},
        reference="plain loop",
        facts={"B": len(LENGTHS), "rows": sum(LENGTHS), "F": FEATURES},
    )


def _forward(
    step: Any, x: LoDTensor, state: Tensor | None, backend: str
) -> Callable[[], Mapping[str, Tensor]]:
    def run() -> Mapping[str, Tensor]:
        with torch.no_grad():
            y, _ = recurrent(step, x, state, backend=backend)
        return {"y": y.values}

    return run


def _in_turn(step: Any, rows: Tensor, backend: str) -> Callable[[], Mapping[str, Tensor]]:
    """Batches of other lengths and other numbers of rows, one after the other."""
    lengths = (5, 3, 2, 4), (5, 3, 1, 4), (2, 3, 2, 4), (2, 4, 1, 4)
    batches = [LoDTensor.from_lengths(rows[: sum(own)], [list(own)]) for own in lengths]
    calls = itertools.cycle([_forward(step, batch, None, backend) for batch in batches])
    return lambda: next(calls)()


def _training(cell: nn.Module, x: LoDTensor, backend: str) -> Callable[[], Mapping[str, Tensor]]:
    weights = dict(cell.named_parameters())

    def run() -> Mapping[str, Tensor]:
        y, _ = recurrent(cell, x, backend=backend)
        gradients = torch.autograd.grad(y.values.sum(), list(weights.values()))
        return {"y": y.values.detach(), **dict(zip(weights, gradients, strict=True))}

    return run


def on_one_thread(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Seconds that one thread computes: waiting, for other threads or for a core, tells of the machine."""
    with on_threads(1):
        return measure(case.runs, effort, time.thread_time)


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """Microseconds of processor time in a call."""
    return {f"{row.case}: microseconds": row.times["stepnet"].median * 1e6 for row in rows}


TOPIC = Topic(
    name="warm_call",
    claim="a call of a step that is compiled already, on rows so few that the way to its loop costs most",
    cases=cases,
    findings=findings,
    measure=on_one_thread,
    efforts=EFFORTS,
)
