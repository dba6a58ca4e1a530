"""Which nodes around a loop do to each step what they do to all: by the sizes of a run.

Of what such a node computes with, the axis along which the loop is cut holds the steps, or the first axis
holds rows for all axes up to that one, or it is the same for all steps. A rule gives what a node reads of
steps; None: steps do not come out as they went in. Each format says which rule its operators have.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Shape = tuple[int, ...]
Value = Hashable  # of a graph; None: an input that is left out


class Step(Protocol):
    """A node of a file's graph that runs.

    Attributes:
        inputs, outputs: values.
        done: those that no later node reads.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    done: tuple[Any, ...]

    @property
    def said(self) -> Any:
        """All that it does but for the numbers that it is given; `repr` tells it from others."""
        ...

    def call(self, arguments: Sequence[Any], /) -> Sequence[Any]:
        """Run, and give one result for each output."""
        ...

    def knows(self, k: int) -> bool:
        """Whether it holds the numbers of an input."""
        ...

    def of_steps(self, seen: Seen) -> list[Any] | None:
        """What its rule gives."""
        ...

    def order(self) -> list[int] | None:
        """The order that it brings the axes of its first input into; None: it does something else."""
        ...

    def makes_sizes(self, sizes: set[Any]) -> bool:
        """Whether it computes sizes, of sizes such as `sizes` or of what it finds in tensors."""
        ...

    def as_scan(self) -> Any:
        """It as a `ScanStep`, a loop whose steps others may become part of; None: it is none."""
        ...


@dataclass
class Seen:
    """What a run was seen to give.

    Attributes:
        shapes: of each tensor; None of sizes; what is not in it is neither.
        steps: how many steps the loop has.
        axis: along which it is cut.
        table: one of those that are cut.
    """

    shapes: Mapping[Value, Shape | None]
    steps: int
    axis: int
    table: Value

    def shape(self, value: Value) -> Shape:
        """The shape of a tensor."""
        return self.shapes.get(value) or ()

    def leading(self, value: Value) -> int:
        """How many axes of a tensor hold steps and what comes before these: all up to that of the steps, or
        the first, for all of them; 0: it holds no steps."""
        shape, all_ = self.shape(value), self.shape(self.table)[: self.axis + 1]
        if not self.axis:
            return int(bool(shape) and shape[0] >= self.steps and shape[0] % self.steps == 0)
        if shape[: self.axis + 1] != all_ and shape[:1] == (math.prod(all_),):
            return 1
        return self.axis + 1 if shape[self.axis : self.axis + 1] == (self.steps,) else 0

    def is_cut(self, value: Value) -> bool:
        """Whether what a tensor has along the axis is the steps."""
        whole = self.leading(value) == self.axis + 1
        return whole and self.shape(value)[self.axis] == self.steps


def each_number(seen: Seen, inputs: Sequence[Value], output: Value) -> list[Value] | None:
    """Numbers one by one, of tensors that are broadcast."""
    out, found = seen.shape(output), []
    leading = seen.leading(output)
    if not leading:
        return None
    for value in inputs:
        shape = () if value is None else seen.shapes.get(value)
        if shape is None:
            return None
        at = leading - 1 - len(out) + len(shape)
        if len(shape) == len(out) and shape[at] == out[at]:
            found.append(value)
        elif at >= 0 and shape[at] != 1:
            return None
    return found


def product(seen: Seen, x: Value, matrix: Value, bias: Value = None) -> list[Value] | None:
    """Rows times a matrix, which is the same for all steps."""
    rank, shared = len(seen.shape(x)), () if bias is None else seen.shapes.get(bias)
    if shared is None:
        return None
    fits = 0 < seen.leading(x) < rank and len(seen.shape(matrix)) == 2
    return [x] if fits and (len(shared) < 2 or shared[0] == 1) else None


def reshaped(seen: Seen, x: Value, output: Value) -> list[Value] | None:
    """The numbers of a step lie one behind the other, and after those of the step before."""
    a, b = seen.leading(x), seen.leading(output)
    before, after = seen.shape(x)[:a], seen.shape(output)[:b]
    same = not seen.axis or math.prod(before) == math.prod(after)
    return [x] if a and b and same else None


def along(
    seen: Seen, x: Value, axes: Sequence[int] | None, *, of: Value = None, shared: Sequence[Value] = ()
) -> list[Value] | None:
    """What happens along axes that are known, and that come after that of the steps.

    Args:
        seen: the sizes of a run.
        x: what it happens to.
        axes: of `of`, or of `x` where that is None.
        of: the tensor that has them.
        shared: what is the same for all steps.
    """
    rank = len(seen.shape(x if of is None else of))
    leading = seen.leading(x)
    behind = axes and all(-rank <= axis < rank and axis % rank >= leading for axis in axes)
    shapes = [seen.shapes.get(value) for value in shared if value is not None]
    same = all(shape is not None and len(shape) < rank for shape in shapes)
    return [x] if leading and behind and same else None


def parts(seen: Seen, values: Sequence[Value], axis: int) -> list[Value] | None:
    """Tables that are joined along an axis, or one that is cut."""
    fits = all(along(seen, value, [axis]) for value in values)
    counts = {seen.shape(value)[: seen.leading(value)] for value in values} if fits else ()
    return [*values] if len(counts) == 1 else None


def transposed(seen: Seen, x: Value, order: Sequence[int] | None) -> list[Value] | None:
    """Axes in another order, but for those up to that of the steps."""
    first = [*range(seen.leading(x))]
    return [x] if order and first and [*order[: len(first)]] == first else None
