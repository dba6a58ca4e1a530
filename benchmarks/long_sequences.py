"""Long sequences in training: what `checkpoint=` takes in time, and what a million rows take in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepnet import LoDTensor, cells, recurrent

from .child import last_line
from .harness import Case, Contender, Effort, Topic
from .memory import ENVIRONMENT, ONCE, peak_of, table
from .sequences import ATOL, RTOL, drawn, findings, training

Make = Callable[[int], nn.Module]
Size = tuple[int, int, int]
EFFORTS = (
    Effort(rounds=9, warmup=1, shortest=0.0, budget=30.0),
    Effort(rounds=3, warmup=1, shortest=0.0, budget=5.0),
)
WORKS: dict[str, tuple[Make, tuple[Size, ...]]] = {
    "LSTM": (
        lambda H: cells.LSTM(H, H),
        ((1000, 32, 128), (10_000, 1, 128), (10_000, 8, 128), (50_000, 1, 64)),
    ),
    "GRU": (lambda H: cells.GRU(H, H), ((1000, 32, 128), (10_000, 8, 128))),
    "minGRU": (lambda H: cells.MinGRU(H, H), ((1000, 32, 128), (100_000, 1, 128))),
}
# Rows in all, of so many sequences: as long as 1, 3, 5 and so on to one another.
MILLION = (("LSTM", 1_000_000, 1, 64), ("LSTM", 1_000_000, 40, 64), ("minGRU", 1_000_000, 1, 64))


def trained(cell: nn.Module, rows: Tensor, B: int, checkpoint: bool | None) -> Tensor:
    """y of the rows as B sequences."""
    if B == 1:
        return recurrent(cell, rows[:, None], checkpoint=checkpoint)[0]
    ends = torch.arange(B + 1).square() * len(rows) // B**2
    return recurrent(cell, LoDTensor(rows, [ends.tolist()]), checkpoint=checkpoint)[0].values


def time_cases(quick: bool) -> Iterator[Case]:
    """Training with checkpoints, and with everything kept."""
    for name, (make, sizes) in WORKS.items():
        for T, B, H in ((40, 3, 8),) if quick else sizes:
            torch.manual_seed(H)
            cell, x = make(H), drawn(T, B, H)

            def run(
                checkpoint: bool | None, cell: nn.Module = cell, x: Tensor = x
            ) -> Callable[[], Mapping[str, Tensor]]:
                weights = dict(cell.named_parameters())
                return training(lambda: recurrent(cell, x, checkpoint=checkpoint)[0], weights)

            yield Case(
                name=f"{name} {T},{B},{H}",
                contenders={
                    "checkpoint=True": Contender(run(True)),
                    "everything kept": Contender(run(None)),
                },
                reference="everything kept",
                ours="checkpoint=True",
                facts={"goal": 1 / 1.4},
                rtol=RTOL,
                atol=ATOL,
            )


@dataclass(frozen=True)
class Rows(Contender):
    """Training in a process of its own: the arguments of `main`; and the bytes of x and of y."""

    arguments: tuple[str, ...] = ()
    rows: float = 0.0


def memory_cases(quick: bool) -> Iterator[Case]:
    """One sequence, and several, trained with checkpoints; values are compared on a hundredth of the rows."""
    for name, T, B, H in MILLION:
        steps = 20_000 if quick else T
        few = steps // 100
        torch.manual_seed(H)
        cell, x = WORKS[name][0](H), drawn(few, H)
        weights = dict(cell.named_parameters())

        def run(checkpoint: bool | None, cell: nn.Module = cell, x: Tensor = x, B: int = B) -> Tensor:
            return trained(cell, x, B, checkpoint)

        size = (name, str(steps), str(B), str(H))
        yield Case(
            name=f"{name} {steps},{B},{H}",
            contenders={
                "checkpoint=True": Rows(training(lambda run=run: run(True), weights), arguments=size),
                "rows and outputs": Rows(training(lambda run=run: run(None), weights), rows=8.0 * steps * H),
            },
            reference="rows and outputs",
            ours="checkpoint=True",
            facts={"goal": 1 / 1.1},
            rtol=RTOL,
            atol=ATOL,
        )


def measure(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Bytes at the peak of each process, what it had loaded before left out."""
    found: dict[str, list[float]] = {}
    for name, contender in case.contenders.items():
        assert isinstance(contender, Rows)
        if not contender.arguments:
            found[name] = [contender.rows]
            continue
        found[name] = [float(last_line("long_sequences", *contender.arguments, environment=ENVIRONMENT))]
    return found


def main() -> None:
    """Print the bytes that x, forward and backward take at their peak: NAME T B H."""
    name, *size = sys.argv[1:]
    T, B, H = map(int, size)
    cell = WORKS[name][0](H)

    def train(steps: int) -> None:
        trained(cell, drawn(steps, H), B, True).sum().backward()

    train(20_000)  # what is loaded and built once does not count
    print(peak_of(lambda: train(T)))


TIME = Topic(
    name="checkpoint_time",
    claim="training with everything kept over training with checkpoints (goal 1 / 1.4)",
    cases=time_cases,
    findings=findings,
    efforts=EFFORTS,
)
MEMORY = Topic(
    name="checkpoint_memory",
    claim="bytes of the rows and the outputs of sequences over the peak of training on them (goal 1 / 1.1)",
    cases=memory_cases,
    findings=findings,
    table=table,
    measure=measure,
    unit="bytes",
    efforts=(ONCE, ONCE),
)

if __name__ == "__main__":
    main()
