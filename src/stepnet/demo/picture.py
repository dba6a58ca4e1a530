"""The demo's picture: the learning curves, and which speakers were taken for which."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from .training import Run

INK, GREY, LIGHT = "#222222", "#767676", "#d9d9d9"
SEED, MEAN, PAPER = "#8fb8de", "#0b559f", "#d55e00"  # blues and vermilion: distinct to colour-blind eyes


def draw(path: Path, runs: list[Run], confusion: Tensor, paper: float) -> None:
    """Write the picture; the ending of the path says the format."""
    with rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": GREY}):
        figure = Figure(figsize=(11, 5.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        curves(left, runs, paper)
        matrix(right, confusion)
        figure.savefig(path, dpi=150)


def curves(axes: Axes, runs: list[Run], paper: float) -> None:
    """Test accuracy after every epoch: each seed thin, their mean thick, the paper dashed."""
    epochs = range(1, len(runs[0].test_accuracy) + 1)
    by_epoch = list(zip(*(run.test_accuracy for run in runs), strict=True))
    mean = [100 * sum(at) / len(at) for at in by_epoch]
    last = mean[-1]
    for run in runs:
        axes.plot(epochs, [100 * a for a in run.test_accuracy], color=SEED, linewidth=1.2)
    axes.plot(epochs, mean, color=MEAN, linewidth=2.5)
    axes.axhline(100 * paper, color=PAPER, linestyle=(0, (5, 3)), linewidth=1.5)

    low = 80 if last > 85 else 0  # the start is steep and says little
    axes.set(xlim=(1, max(len(epochs), 2)), ylim=(low, 100.4), xlabel="epoch", ylabel="test accuracy, %")
    axes.set_yticks(range(low, 101, 5 if low else 20))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    title(axes, f"{last:.1f} % of the test utterances named rightly", "after each epoch; the last one counts")
    seeds = f"{len(runs)} seeds and their mean" if len(runs) > 1 else f"seed {runs[0].seed}"
    under = 100 * min(min(run.test_accuracy[-len(epochs) // 3 :]) for run in runs)
    axes.annotate(seeds, (len(epochs), under), (-4, -16), textcoords="offset points", ha="right", color=MEAN)
    axes.annotate(
        f"{100 * paper:.1f} %, the paper of 1999",
        (len(epochs), 100 * paper),
        (-4, -14),
        textcoords="offset points",
        ha="right",
        color=PAPER,
    )
    axes.grid(axis="y", color=LIGHT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def title(axes: Axes, text: str, below: str) -> None:
    """A bold line, and a grey one under it."""
    axes.set_title(text + "\n", loc="left", fontsize=12, fontweight="bold")
    axes.annotate(below, (0, 1), (0, 6), "axes fraction", textcoords="offset points", color=GREY)


def matrix(axes: Axes, confusion: Tensor) -> None:
    """Counts, coloured by their share of the row, so that speakers with few utterances show as well."""
    speakers = len(confusion)
    share = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    axes.imshow(share.sqrt().numpy(), cmap="Blues", vmin=0, vmax=1)  # a root: few mistakes must still show
    for row in range(speakers):
        for column in range(speakers):
            count = int(confusion[row, column])
            if count:
                colour = "white" if share[row, column] > 0.35 else INK
                axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=9)
    names = [str(k + 1) for k in range(speakers)]
    axes.set(xlabel="speaker named", ylabel="speaker who spoke")
    axes.set_xticks(range(speakers), names)
    axes.set_yticks(range(speakers), names)
    edges = [k - 0.5 for k in range(1, speakers)]
    axes.vlines(edges, -0.5, speakers - 0.5, color=LIGHT, linewidth=0.5)
    axes.hlines(edges, -0.5, speakers - 0.5, color=LIGHT, linewidth=0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    wrong = int(confusion.sum() - confusion.trace())
    title(axes, f"{wrong} mistakes in {int(confusion.sum())}", "test utterances, all seeds together")
