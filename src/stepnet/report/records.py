"""The records of a report: values, costs, and a plan's loops with their regions and ops.

Values are named as the plan names them (`v12`), except those a user knows: parameters by their own names,
`x`, `state`, `y`, `gradient of x`. What a file holds is in `inspection`, in the same terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

Direction = Literal["forward", "backward"]
RegionKind = Literal["prologue", "sequences", "map", "scan", "epilogue", "loop"]
Role = Literal["x", "state", "static", "weight", "constant", "kept", "y", "gradient"]
REFUSED = "refused"  # in place of an executor, where the one that was asked for declines
Weight = Literal["matmul", "costly", "cheap", "move", "call"]


@dataclass(frozen=True)
class Value:
    """A tensor's dtype as torch names it, and its shape; -1 is a dynamic dimension, None not known."""

    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, bytes read and written, and how many layers have an unknown cost."""

    flops: int = 0
    bytes: int = 0
    unknown: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes, self.unknown + other.unknown)

    def times(self, count: int) -> Cost:
        """The cost of `count` runs."""
        return Cost(self.flops * count, self.bytes * count, self.unknown)


def total(costs: Iterable[Cost]) -> Cost:
    """All of them together."""
    return sum(costs, Cost())


@dataclass(frozen=True)
class Port:
    """An input or output of a loop; `shape` is that of one row if the value has rows.

    `named` tells whether the user has a name for it.
    """

    name: str
    role: Role
    kind: str
    shape: tuple[int, ...]
    dtype: str
    named: bool = True


@dataclass(frozen=True)
class Op:
    """One op of a region.

    Attributes:
        name: of the compiler's op list; of the torch function where the plain loop runs.
        inputs, outputs: names of values.
        kind: "row" (computed for each row), "sequence" (for each sequence), "shared" (once), "sum" (summed
            over rows).
        shape: of the result, of one row if it has rows.
        contracts: the length of the contracted dimension of a matmul, else 0.
        weight: the kind of work; "move" computes nothing, "call" is a torch call of unknown cost.
        line: "file.py:12", where the user wrote it.
        flops: for all rows of this x; 0 for a "call".
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    contracts: int
    weight: Weight
    line: str | None
    flops: int

    @property
    def is_matmul(self) -> bool:
        """True for a product of matrices, over features or over rows."""
        return self.weight == "matmul"


@dataclass(frozen=True)
class Line:
    """A line of the user's code and the ops of one region that come from it."""

    at: str | None
    code: str | None
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Region:
    """Ops that run together.

    Attributes:
        kind: "map" runs once on all rows, "scan" step after step; "sequences" once, on what each sequence
            has; "prologue" and "epilogue" once a call, on values without rows; "loop" is the whole step, by
            the plain loop.
        executor: the executor that runs it by code of its own; "torch" for torch's ops.
        label: what that is called.
        runs: how often the region runs: 1, or once a step, or once a pass.
        in_blocks: a map that generated C computes for a few steps at a time, next to the steps that read its
            rows, so that they stay in the cache.
        reads, writes: inputs and outputs of the region, states left out.
        bytes_read, bytes_written: of all rows of this x; a value without rows (a weight) counts once.
        carries: states, as (value at the step before, its next value).
        linear: the states that are made of states by sums, and products with what no state goes into.
        for_few: how threads share sequences that cannot be dealt to them evenly, as a long one alone: they
            take turns at its steps, or some features each, where none is made of another.
        passes: of a linear scan that runs on all rows at once, the number of passes over them; 0 if it runs
            step after step.
    """

    direction: Direction
    kind: RegionKind
    executor: str
    label: str
    runs: int
    ops: tuple[Op, ...]
    lines: tuple[Line, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    carries: tuple[tuple[str, str], ...] = ()
    linear: tuple[str, ...] = ()
    in_blocks: bool = False
    passes: int = 0
    for_few: Literal["turns", "features"] | None = None

    @property
    def per_step(self) -> bool:
        """True if it runs at every step, because it depends on the step before; else on all rows at once."""
        return self.kind in ("scan", "loop") and not self.passes

    @property
    def flops(self) -> int:
        """Of all its ops, for all rows."""
        return sum(op.flops for op in self.ops)

    @property
    def cost(self) -> Cost:
        """Its operations, and the bytes of its inputs and outputs."""
        return Cost(self.flops, self.bytes_read + self.bytes_written)

    @property
    def matmuls(self) -> tuple[Op, ...]:
        """Its products of matrices."""
        return tuple(op for op in self.ops if op.is_matmul)


@dataclass(frozen=True)
class LoopSummary:
    """The forward or the backward loop of a plan.

    Attributes:
        enters, leaves: its inputs and outputs.
        regions: in the order they run.
        sources: the value inside the loop that each output is.
    """

    direction: Direction
    enters: tuple[Port, ...]
    regions: tuple[Region, ...]
    leaves: tuple[Port, ...]
    sources: dict[str, str]

    @property
    def flops(self) -> int:
        """Of all its regions."""
        return sum(region.flops for region in self.regions)

    @property
    def makers(self) -> dict[str, Op]:
        """The op that produces each value."""
        return {name: op for region in self.regions for op in region.ops for name in op.outputs}

    def origin(self, name: str) -> str | None:
        """The named value that a value is a view of, or is itself; None if there is none."""
        makers = self.makers
        named = {port.name for port in self.enters if port.named} | set(self.sources.values())
        named |= {value for region in self.regions for pair in region.carries for value in pair}
        while name not in named:
            op = makers.get(name)
            if op is None or len(op.inputs) != 1 or op.weight != "move":
                return None
            (name,) = op.inputs
        return name


@dataclass(frozen=True)
class Saved:
    """A value saved for backward; `extra` if it is kept in memory only for that."""

    name: str
    label: str
    line: str | None
    shape: tuple[int, ...]
    bytes_per_row: int
    bytes: int
    extra: bool
    why: str


@dataclass(frozen=True)
class Refused:
    """Why an executor declines, or the compiler as a whole ("compiler"); and what would change that.

    `label` is what who declines is called.
    """

    executor: str
    label: str
    reason: str
    remedy: str | None
    line: str | None
    code: str | None


def by_line(ops: Iterable[Op], code: Mapping[str | None, str | None]) -> tuple[Line, ...]:
    """Ops grouped by the line of code that they come from, in order of first appearance."""
    groups: dict[str | None, list[Op]] = {}
    for op in ops:
        groups.setdefault(op.line, []).append(op)
    return tuple(Line(at, code.get(at), tuple(group)) for at, group in groups.items())


def as_data(it: Any) -> Any:
    """Records as dicts, with the figures that are computed from their fields; sequences as lists.

    >>> as_data((Cost(3), "x"))
    [{'flops': 3, 'bytes': 0, 'unknown': 0}, 'x']
    """
    if is_dataclass(it):
        names = dict.fromkeys(field.name for field in fields(it))
        names |= {name: None for name in ("flops", "saved_bytes", "per_step") if hasattr(it, name)}
        return {name: as_data(getattr(it, name)) for name in names}
    if isinstance(it, dict):
        return {key: as_data(value) for key, value in it.items()}
    return [as_data(part) for part in it] if isinstance(it, (tuple, list)) else it
