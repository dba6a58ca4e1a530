"""Numbers, shapes and phrases as texts and pictures write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .explanation import Explanation, ModelExplanation
from .inspection import LayerLoop, PortMapping, When
from .records import LoopSummary, Op, Region, Value

WHEN: dict[When, str] = {"once": "once", "rows": "once, all steps", "step": "each step"}


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


def parameter_count(number: int) -> str:
    """A number of parameters in three digits.

    >>> parameter_count(64200), parameter_count(1)
    ('64.2 k parameters', '1 parameter')
    """
    return f"{short(number, '')} parameter{'' if number == 1 else 's'}"


def share(part: int, whole: int) -> str:
    """A part in percent.

    >>> share(1, 3)
    '33 %'
    """
    if 0 < 200 * part < whole:
        return "< 1 %"
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def printable(text: str) -> str:
    """A text with escapes in place of characters that cannot be printed.

    >>> printable("a\\x1b[31m b")
    'a\\\\x1b[31m b'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shape(sizes: tuple[int, ...] | None) -> str:
    """A shape as it is written, '?' for a dynamic dimension.

    >>> shape((-1, 3)), shape(()), shape(None)
    ('[?, 3]', '[]', '[...]')
    """
    return "[...]" if sizes is None else f"[{', '.join('?' if d == -1 else str(d) for d in sizes)}]"


def typed(value: Value) -> str:
    """A value's type and shape: 'float32[?, 3]'."""
    return f"{value.dtype or ''}{shape(value.shape)}"


def sizes_by_name(shapes: dict[str, tuple[int, ...]]) -> str:
    """Names with their shapes: 'x [2, 3], h [4]'."""
    return ", ".join(f"{printable(name)} {shape(sizes)}" for name, sizes in shapes.items())


# -- plans --------------------------------------------------------------------------------------------------


def when(region: Region, rows: int, sequences: int) -> str:
    """How often a region runs, on what."""
    if region.passes:
        return f"{count(region.passes, 'pass', 'passes')} over all {count(rows, 'row')}"
    if region.kind == "scan" and not region.carries:
        return f"once, on all {count(rows, 'row')}"
    if region.kind in ("scan", "loop"):
        return f"{count(region.runs, 'step')} of up to {count(sequences, 'row')}"
    if region.kind == "map":
        how = "in blocks" if region.in_blocks else "once"
        return f"{how}, on all {count(rows, 'row')}"
    if region.kind == "sequences":
        return f"once, on {count(sequences, 'sequence')}"
    return "once, on weights" if region.kind == "prologue" else "once, on sums over rows"


def extent(it: Explanation) -> str:
    """The size of the data: '1 to 3 steps of 2 sequences, 4 rows of float32'."""
    lengths = (
        count(it.steps, "step")
        if it.shortest == it.steps
        else f"{it.shortest:,} to {count(it.steps, 'step')}"
    )
    end = ", each from its end" if it.reverse else ""
    return f"{lengths} of {count(it.sequences, 'sequence')}, {count(it.rows, 'row')} of {it.dtype}{end}"


def direction(it: Explanation) -> str:
    """Which way a recurrence runs, and how far: '→ 3 steps of 2'."""
    return f"{'←' if it.reverse else '→'} {count(it.steps, 'step')} of {it.sequences:,}"


def summary(it: ModelExplanation) -> str:
    """How many recurrences a model has, what runs them, and what they cost together."""
    executors = {one.label for one in it.recurrences}
    how = f", all by {executors.pop()}" if len(executors) == 1 and len(it.recurrences) > 1 else ""
    number = count(len(it.recurrences), "recurrence")
    return f"{number}{how}, {short(it.flops, 'FLOP')}, {short(it.saved_bytes, 'B')} kept for backward"


class Titles:
    """What the ops of a loop are called."""

    def __init__(self, loop: LoopSummary) -> None:
        self.loop = loop
        self.results: dict[str, list[str]] = {}
        for label, inner in loop.sources.items():
            self.results.setdefault(inner, []).append(label)

    def result(self, op: Op) -> str | None:
        """The output of the loop that an op computes: 'gradient of weight_ih'."""
        labels = [label for name in op.outputs for label in self.results.get(name, ())]
        gradients = [label.removeprefix("gradient of ") for label in labels]
        if labels and all(label.startswith("gradient of ") for label in labels):
            return f"gradient of {', '.join(gradients)}"
        return ", ".join(labels) or None

    def matmul(self, op: Op) -> str:
        """A matmul with its named operands: 'matmul x · weight_ih [256 → 1024]'."""
        if op.kind == "sum":
            return f"matmul over rows → {self.result(op) or shape(op.shape)}"
        operands = " · ".join(known for name in op.inputs[:2] if (known := self.loop.origin(name)))
        sizes = f"[{op.contracts} → {op.shape[-1] if op.shape else 1}]"
        return " ".join(part for part in ("matmul", operands, sizes) if part)

    def ops(self, ops: Iterable[Op]) -> str:
        """Matmuls, then how many of each other op there are; moved data only if there is nothing else."""
        matmuls = [self.matmul(op) for op in ops if op.is_matmul]
        others = [op for op in ops if not op.is_matmul]
        return ", ".join(
            [*matmuls, *counted([op for op in others if op.weight != "move"] or ([] if matmuls else others))]
        )


def counted(ops: Iterable[Op]) -> list[str]:
    """The names of ops with their numbers: ['2 mul', 'add']."""
    return [f"{n} {name}" if n > 1 else name for name, n in Counter(op.name for op in ops).items()]


# -- models from files --------------------------------------------------------------------------------------

_WAYS = {
    "state": "state before the first step",
    "whole": "the same at each step",
    "iteration": "number of the step",
    "given": "as it is",
    "last": "of the last step",
    "condition": "whether to go on",
    "result": "the result",
}


def way_text(port: PortMapping) -> str:
    """How a value crosses the border of a loop: 'cut along axis 1', 'the same at each step', ..."""
    if port.way not in ("slice", "joined"):
        return _WAYS[port.way]
    words = f"{'cut' if port.way == 'slice' else 'joined'} along axis {port.axis}"
    backwards = port.stride < 0
    words += ", backwards" if backwards else ""
    if (port.start, port.end) != ((-1, 0) if backwards else (0, -1)):
        words += f", from {port.start} to {port.end}"
    if port.part_size != 1 or abs(port.stride) != 1:
        words += f", {port.part_size} at a time (stride {port.stride})"
    return words


def steps_text(loop: LayerLoop) -> str:
    """The number of steps, or what determines it: '5 steps', 'dynamic steps: trip count from n'."""
    if loop.kind == "If":
        return "one of two bodies"
    if loop.static and loop.steps is not None:
        return count(loop.steps, "step")
    return f"dynamic steps: {loop.counted_by}"


def verdict(loop: LayerLoop) -> str:
    """Whether a loop is compiled, and if not, why."""
    if loop.kind == "If":
        return ""
    if loop.compiled:
        return "compiled"
    if loop.compiled is None:
        return f"not known whether it is compiled: {loop.reason}"
    return f"plain loop, everything at each step: {loop.reason}"
