"""Which nodes around a loop do to each step what they do to all: by the sizes of a run.

Of what such a node computes with, the axis along which the loop is cut holds the steps, or several rows of
each where it is the first, or it is the same for all steps. A rule gives what a node reads of steps; None:
steps do not come out as they went in. Each format says which rule its operators have.
"""

from __future__ import annotations

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
    """

    shapes: Mapping[Value, Shape | None]
    steps: int
    axis: int

    def shape(self, value: Value) -> Shape:
        """The shape of a tensor."""
        return self.shapes.get(value) or ()

    def is_of_steps(self, value: Value) -> bool:
        """Whether a tensor may hold steps, or rows of each."""
        shape = self.shape(value)
        if self.axis:
            return len(shape) > self.axis and shape[self.axis] == self.steps
        return bool(shape) and shape[0] >= self.steps and shape[0] % self.steps == 0


def each_number(seen: Seen, inputs: Sequence[Value], output: Value) -> list[Value] | None:
    """Numbers one by one, of tensors that are broadcast."""
    out, found = seen.shape(output), []
    if not seen.is_of_steps(output):
        return None
    for value in inputs:
        shape = () if value is None else seen.shapes.get(value)
        if shape is None:
            return None
        at = seen.axis - len(out) + len(shape)
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
    fits = rank >= seen.axis + 2 and len(seen.shape(matrix)) == 2
    return [x] if fits and (len(shared) < 2 or shared[0] == 1) and seen.is_of_steps(x) else None


def reshaped(seen: Seen, x: Value, output: Value) -> list[Value] | None:
    """The numbers of a step lie one behind the other, and after those of the step before."""
    before = seen.axis and seen.axis + 1
    same = seen.shape(x)[:before] == seen.shape(output)[:before]
    return [x] if same and seen.is_of_steps(x) and seen.is_of_steps(output) else None


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
    behind = axes and all(-rank <= axis < rank and axis % rank > seen.axis for axis in axes)
    shapes = [seen.shapes.get(value) for value in shared if value is not None]
    same = all(shape is not None and len(shape) < rank for shape in shapes)
    return [x] if x is not None and behind and same and seen.is_of_steps(x) else None


def parts(seen: Seen, values: Sequence[Value], axis: int) -> list[Value] | None:
    """Tables that are joined along an axis, or one that is cut."""
    fits = all(along(seen, value, [axis]) for value in values)
    counts = {seen.shape(value)[seen.axis] for value in values} if fits else ()
    return [*values] if len(counts) == 1 else None


def transposed(seen: Seen, x: Value, order: Sequence[int] | None) -> list[Value] | None:
    """Axes in another order, but for those up to that of the steps."""
    first = [*range(seen.axis + 1)]
    return [x] if order and [*order[: len(first)]] == first and seen.is_of_steps(x) else None
