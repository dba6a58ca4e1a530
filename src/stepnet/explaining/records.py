"""The plain records that `explain` fills: loops, their regions, the ops in them, and what they cost.

Values are named as the plan names them (`v12`), except those a user knows: parameters by their own names,
`x`, `state`, `y`, `gradient of x`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward"]
RegionKind = Literal["prologue", "map", "scan", "epilogue", "loop"]
Role = Literal["x", "state", "weight", "constant", "kept", "y", "gradient"]
REFUSED = "refused"  # in place of an executor, where the one that was asked for declines
Weight = Literal["matmul", "costly", "cheap", "move", "call"]


@dataclass(frozen=True)
class Port:
    """A value that enters or leaves a loop; `shape` is that of one row if the value has rows.

    `named`: the user has a name for it.
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
        name: of the closed op list; of the torch function where the plain loop runs.
        inputs, outputs: names of values.
        kind: "row" (computed for each row), "shared" (once), "sum" (added up over rows).
        shape: of the result, of one row if it has rows.
        contracts: for a matmul how many elements each result adds up, else 0.
        weight: what kind of work it is; "move" computes nothing, "call" is a torch call of unknown cost.
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
    """A line the user wrote, and the ops of one region that came from it."""

    at: str | None
    code: str | None
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Region:
    """Ops that run together.

    Attributes:
        kind: "map" runs once on all rows, "scan" step after step; "prologue" and "epilogue" once a call, on
            what has no rows; "loop" is the whole step, run by the plain loop.
        executor: the executor that runs it by code of its own; "torch" for torch's ops.
        label: what that is called.
        runs: how often the region runs: 1, or once a step, or once a pass.
        in_blocks: a map that generated C does for some steps at a time, beside the steps that need its rows,
            which so never leave the cache.
        reads, writes: values that cross its border, carried ones left out.
        bytes_read, bytes_written: of all rows of this x; what has no rows (a weight) counts once.
        carries: (value at the step before, the value that replaces it).
        linear: those of them of the form h = a * h + b.
        passes: of a scan whose every state is linear, and which runs on all rows at once, how many times it
            goes over them; 0: it runs step after step.
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

    @property
    def per_step(self) -> bool:
        """True if it runs at every step, since it waits for the step before; else on all rows at once."""
        return self.kind in ("scan", "loop") and not self.passes

    @property
    def flops(self) -> int:
        """Of all its ops, for all rows."""
        return sum(op.flops for op in self.ops)

    @property
    def matmuls(self) -> tuple[Op, ...]:
        """Its products of matrices."""
        return tuple(op for op in self.ops if op.is_matmul)


@dataclass(frozen=True)
class Loop:
    """The forward or the backward loop: what enters, its regions in the order they run, what leaves."""

    direction: Direction
    enters: tuple[Port, ...]
    regions: tuple[Region, ...]
    leaves: tuple[Port, ...]
    sources: dict[str, str]  # the name of a leaving value -> the value inside the loop that it is

    @property
    def flops(self) -> int:
        """Of all its regions."""
        return sum(region.flops for region in self.regions)

    @property
    def makers(self) -> dict[str, Op]:
        """The op that makes each value."""
        return {name: op for region in self.regions for op in region.ops for name in op.outputs}

    def origin(self, name: str) -> str | None:
        """The value with a name of the user's that a value is, seen through views; None if there is none."""
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
    """A value kept for the backward loop; `extra` if it lives only for that."""

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
    """Ops gathered by the line that they came from, in the order in which lines first appear."""
    found: dict[str | None, list[Op]] = {}
    for op in ops:
        found.setdefault(op.line, []).append(op)
    return tuple(Line(at, code.get(at), tuple(group)) for at, group in found.items())
