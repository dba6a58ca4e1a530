"""What `stepnet demo` does: train with several seeds, show the progress, print a table, write a picture."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from stepnet.datasets import JapaneseVowels, japanese_vowels
from stepnet.errors import MissingExtraError

from .training import Run, confusion, normalise, train

PAPER_ACCURACY = 0.941  # Kudo, Toyama, Shimbo (1999), Pattern Recognition Letters 20, 1103-1111


def main(*, seeds: int, epochs: int, output: Path, threads: int, console: Console) -> list[Run]:
    """Run the demo and return what came of each seed."""
    torch.set_num_threads(threads)
    raw = japanese_vowels()
    lengths = torch.cat([raw.train.x.lengths(), raw.test.x.lengths()])
    frames = f"{lengths.min()} to {lengths.max()} frames"
    console.print(
        f"[bold]Who is speaking?[/] {raw.speakers} speakers, utterances of {frames}:\n"
        f"{len(raw.train.x)} to train on, {len(raw.test.x)} to test on. A layer-norm GRU, written\n"
        "as one step in plain PyTorch, reads each at its own length. Nothing is padded.",
        highlight=False,
    )

    data = normalise(raw)
    start = time.perf_counter()
    runs = [*_train_all(data, seeds, epochs, console)]
    seconds = time.perf_counter() - start

    console.print(_table(runs))
    mean = sum(run.accuracy for run in runs) / len(runs)
    console.print(
        f"[bold]{mean:.1%}[/] test accuracy, {_mean_of(seeds)}, in {seconds:.0f} s."
        f" The paper of 1999 reached {PAPER_ACCURACY:.1%}."
    )
    if find_spec("matplotlib") is None:
        needed = MissingExtraError("the picture", package="matplotlib", extra="plot")
        console.print("No picture:", escape(str(needed)), highlight=False)
    else:
        from .picture import draw

        draw(output, runs, confusion(runs, data), PAPER_ACCURACY)
        console.print(
            "Learning curves and confusion matrix:", escape(str(output)), soft_wrap=True, highlight=False
        )
    return runs


def _train_all(data: JapaneseVowels, seeds: int, epochs: int, console: Console) -> Iterator[Run]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("epoch {task.fields[epoch]}/" + str(epochs)),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=seeds * epochs, epoch=0, loss="-")
        for seed in range(seeds):
            progress.update(task, description=f"seed {seed + 1} of {seeds}")

            def on_epoch(run: Run) -> None:
                progress.update(task, advance=1, epoch=len(run.loss), loss=f"{run.loss[-1]:.3f}")

            yield train(data, seed, epochs, on_epoch=on_epoch)


def _table(runs: list[Run]) -> Table:
    table = Table("seed", "training loss", "test accuracy", "mistakes")
    for run in runs:
        mistakes = round((1 - run.accuracy) * len(run.predictions))
        table.add_row(
            str(run.seed),
            f"{run.loss[-1]:.3f}",
            f"{run.accuracy:.1%}",
            f"{mistakes} of {len(run.predictions)}",
        )
    return table


def _mean_of(seeds: int) -> str:
    return f"mean of {seeds} seeds" if seeds > 1 else "one seed"
