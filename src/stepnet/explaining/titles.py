"""Words for what is explained, which the text and the picture share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .records import Loop, Op, Region


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> count(1, "step"), count(3200, "row")
    ('1 step', '3,200 rows')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def short(number: float, unit: str) -> str:
    """A number in three digits with a prefix.

    >>> short(1677721600, "FLOP"), short(4096, "B"), short(7, "B")
    ('1.68 GFLOP', '4.10 kB', '7 B')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size * 0.9995:
            digits = 2 if number < 9.995 * size else 1 if number < 99.95 * size else 0
            return f"{number / size:.{digits}f} {prefix}{unit}".rstrip()
    return f"{number:.0f} {unit}".rstrip()


def shape(sizes: tuple[int, ...]) -> str:
    """A shape as it is written: '[256]'; a single number is '[]'."""
    return f"[{', '.join(map(str, sizes))}]"


def share(part: int, whole: int) -> str:
    """A part in percent.

    >>> share(1, 3)
    '33 %'
    """
    if 0 < 200 * part < whole:
        return "< 1 %"
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def when(region: Region, rows: int, sequences: int) -> str:
    """How often a region runs, on what."""
    if region.passes:
        return f"{count(region.passes, 'pass', 'passes')} over all {count(rows, 'row')}"
    if region.kind in ("scan", "loop"):
        return f"{count(region.runs, 'step')} of up to {count(sequences, 'row')}"
    if region.kind == "map":
        how = "in blocks" if region.in_blocks else "once"
        return f"{how}, on all {count(rows, 'row')}"
    return "once, on weights" if region.kind == "prologue" else "once, on sums over rows"


def extent(steps: int, shortest: int, sequences: int, rows: int, dtype: str, reverse: bool = False) -> str:
    """How much data there is: '1 to 3 steps of 2 sequences, 4 rows of float32'."""
    lengths = count(steps, "step") if shortest == steps else f"{shortest:,} to {count(steps, 'step')}"
    end = ", each from its end" if reverse else ""
    return f"{lengths} of {count(sequences, 'sequence')}, {count(rows, 'row')} of {dtype}{end}"


def carried(region: Region) -> list[str]:
    """What the region hands from step to step, as a user would say it."""
    return [
        result if result.startswith("gradient of ") else parameter for parameter, result in region.carries
    ]


class Titles:
    """What the ops of a loop are called."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.results: dict[str, list[str]] = {}
        for label, inner in loop.sources.items():
            self.results.setdefault(inner, []).append(label)

    def result(self, op: Op) -> str | None:
        """What leaves the loop as the op's result: 'gradient of weight_ih'."""
        labels = [label for name in op.outputs for label in self.results.get(name, ())]
        gradients = [label.removeprefix("gradient of ") for label in labels]
        if labels and all(label.startswith("gradient of ") for label in labels):
            return f"gradient of {', '.join(gradients)}"
        return ", ".join(labels) or None

    def matmul(self, op: Op) -> str:
        """One matmul in words: 'matmul x · weight_ih [256 → 1024]', of its operands those with names."""
        if op.kind == "sum":
            return f"matmul over rows → {self.result(op) or shape(op.shape)}"
        operands = " · ".join(known for name in op.inputs[:2] if (known := self.loop.origin(name)))
        sizes = f"[{op.contracts} → {op.shape[-1] if op.shape else 1}]"
        return " ".join(part for part in ("matmul", operands, sizes) if part)

    def ops(self, ops: Iterable[Op]) -> str:
        """Ops in words: matmuls, then how many there are of each other; moves where there is nothing else."""
        matmuls = [self.matmul(op) for op in ops if op.is_matmul]
        others = [op for op in ops if not op.is_matmul]
        worth = [op for op in others if op.weight != "move"] or ([] if matmuls else others)
        counts = Counter(op.name for op in worth)
        return ", ".join([*matmuls, *(f"{n} {name}" if n > 1 else name for name, n in counts.items())])
