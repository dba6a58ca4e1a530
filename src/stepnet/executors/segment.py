"""Cut a value into the steps of a loop, carry states along, and join what the steps returned.

One way for every kind of loop: along an axis of a tensor, or by a level of a LoDTensor. Of a level, step t
holds the t-th element of every sequence longer than t, in rank order, as TensorArray.unpack gives them;
states are ranked and shrunk with it, and nothing of that order is seen outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import LoD, owners
from stepnet.data.on_meshes import whole_along
from stepnet.data.tree import flatten, names, unflatten
from stepnet.data.unpack import steps_of, take_elements
from stepnet.errors import LoDError, LoopError, StepError
from stepnet.ir.loop import Concat, Loop, Slice

_TENSORS = {Tensor}
_NONE = outside_modes(lambda: torch.arange(0))()  # elements


class Cut:
    """One sliced input of a loop: `steps`, and `parts[t]` for each of them."""

    steps: int
    parts: Sequence[Any]
    order: Tensor | None = None  # the caller's index of each ranked sequence; None: as given
    counts: Sequence[int] | None = None  # how many sequences take part in each step; None: all

    @staticmethod
    def of(port: Slice, value: Any) -> Cut:
        """The cut a port asks of a value."""
        if isinstance(value, LoDTensor):
            return LoDCut(port, value)
        if isinstance(value, Tensor):
            return AxisCut(port, value)
        raise LoopError(
            f"'{port.parameter}' cannot be cut into steps",
            got=type(value).__name__,
            expected="a tensor (cut along an axis) or a LoDTensor (cut by a level)",
        )

    def check_same(self, other: Cut, name: str, other_name: str) -> None:
        """Refuse an input that does not step along with this one."""
        raise NotImplementedError

    def to_rank(self, state: Any) -> Any:
        """A boot state in the caller's order, as the loop carries it."""
        return state

    def shrink(self, state: Any, active: int, finished: list[Any]) -> Any:
        """Keep the states of active sequences; what ended is put on `finished`."""
        return state

    def from_rank(self, parts: list[Any]) -> Any:
        """The last states, back in the caller's order."""
        return parts[0]

    def no_rows(self, state: Any) -> Any:
        """A state fit for `empty_step`."""
        return state

    def empty_step(self) -> Any:
        """A step's value without data, for a loop of no steps."""
        raise NotImplementedError

    def join(self, kept: list[Any], port: Concat, *, empty: bool) -> Any:
        """Join a result of every step (a tree of tensors) as its port says; `empty`: no step ran,
        `kept` holds only a value with the right features."""
        if set(map(type, kept)) == _TENSORS:  # as they mostly are
            return self.join_leaf(kept, port, empty, port.result)
        flat = [flatten(value) for value in kept]
        leaf_names = names(flat[0][1], port.result)
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        joined = [
            self.join_leaf(list(column), port, empty, leaf)
            for leaf, column in zip(leaf_names, columns, strict=True)
        ]
        return unflatten(flat[0][1], joined)

    def join_leaf(self, kept: list[Any], port: Concat, empty: bool, name: str) -> Any:
        raise NotImplementedError


class WholeCut(Cut):
    """Steps in which all sequences take part: along an axis, or only counted."""

    def join_leaf(self, kept: list[Any], port: Concat, empty: bool, name: str) -> Tensor:
        return join_along(kept, port, empty, name)


class Count(WholeCut):
    """The steps of a loop that cuts no input: as many as its joined outputs say, else one.

    By OpenVINO's TensorIterator-1: a range of a joined output with no negative end counts steps.
    """

    def __init__(self, loop: Loop) -> None:
        counts: dict[str, int] = {}
        for port in loop.outputs:
            if isinstance(port, Concat) and port.start >= 0 and port.end >= 0:
                size = max(port.start, port.end)
                counts[port.output] = iterations(port, size)[2]
        if len(set(counts.values())) > 1:
            raise LoopError(
                f"the joined outputs of the loop over '{loop.body.name}' count different numbers of steps",
                got=", ".join(f"{name}: {count}" for name, count in counts.items()),
                remedy="give these ports the same start, end and stride; an end of -1 follows the inputs",
            )
        self.steps = next(iter(counts.values()), 1)


class AxisCut(WholeCut):
    """Steps along an axis of a tensor; every step sees all sequences."""

    def __init__(self, port: Slice, value: Tensor) -> None:
        if not -value.dim() <= port.axis < value.dim():
            raise StepError(
                f"'{port.parameter}' has no axis {port.axis} to step along",
                got=f"a tensor of shape {tuple(value.shape)}",
                remedy="give axis= the position of time in x",
            )
        self.value, self.port = value, port
        self.axis = port.axis % value.dim()
        size = value.shape[self.axis]
        self.low, self.high, self.steps = iterations(port, size)
        part = port.part_size
        if part is None:
            window = whole_along(value.narrow(self.axis, self.low, self.high - self.low), self.axis)
            parts = window.unbind(self.axis)  # one backward node for all steps: O(T), not O(T^2)
        else:
            parts = value.narrow(self.axis, self.low, self.high - self.low).split(part, self.axis)
        self.parts = parts[::-1] if port.stride < 0 else parts

    def check_same(self, other: Cut, name: str, other_name: str) -> None:
        if not isinstance(other, AxisCut):
            raise StepError(
                f"'{name}' is a tensor and '{other_name}' is a LoDTensor",
                remedy="make both LoDTensors (LoDTensor.from_padded) or both tensors",
            )
        if self.steps != other.steps:
            raise StepError(
                f"'{name}' and '{other_name}' have different numbers of steps",
                got=f"{self.steps} and {other.steps}",
                remedy="cut both along the same time axis to the same length; "
                "LoDTensor.from_sequences([...]) makes one x of sequences of different lengths",
            )

    def empty_step(self) -> Tensor:
        shape = list(self.value.shape)
        if self.port.part_size is None:
            del shape[self.axis]
        else:
            shape[self.axis] = self.port.part_size
        return self.value.new_zeros(shape)


class LoDCut(Cut):
    """Steps by a level of a LoDTensor."""

    def __init__(self, port: Slice, value: LoDTensor) -> None:
        level = -1 if port.level is None else port.level
        if not -value.lod_level <= level < value.lod_level:
            raise StepError(
                f"'{port.parameter}' has no LoD level {level} to step over",
                got=f"a LoDTensor of {value.lod_level} level(s)",
                remedy="give level= a level of x, 0 for the outermost, -1 for the last",
            )
        self.level = level % value.lod_level
        self.value = value
        self._is_last = self.level == value.lod_level - 1
        reverse = port.stride < 0
        self._mirrors = reverse and not self._is_last
        steps = self._reversed(value) if self._mirrors else value
        self._cut = steps_of(steps, self.level, reverse=reverse and self._is_last)
        self.parts, self.counts, self.order = self._cut.values, self._cut.at.counts, self._cut.at.order
        self.steps = len(self.counts)

    def _reversed(self, x: LoDTensor) -> LoDTensor:
        return take_elements(x, self.level, _mirrored(x.structure.levels[self.level]))

    def check_same(self, other: Cut, name: str, other_name: str) -> None:
        if not isinstance(other, LoDCut):
            raise StepError(
                f"'{name}' is a LoDTensor and '{other_name}' is a tensor",
                remedy="make both LoDTensors (LoDTensor.from_padded) or both tensors",
            )
        if self._is_last and other._is_last and self.value.structure is other.value.structure:
            return
        lengths, others = self.value.lengths(self.level), other.value.lengths(other.level)
        if not _equal(lengths, others):
            raise LoDError(
                f"'{name}' and '{other_name}' are cut into steps together and must have the same lengths",
                got=f"{lengths.tolist()[:8]} and {others.tolist()[:8]} (first 8)",
                remedy="give inputs made from the same sequences",
            )

    def to_rank(self, state: Any) -> Any:
        assert self.order is not None
        return state.index_select(0, beside(self.order, state))

    def shrink(self, state: Any, active: int, finished: list[Any]) -> Any:
        if state.shape[0] == active:
            return state
        finished.append(state[active:])
        return state[:active]

    def from_rank(self, parts: list[Any]) -> Any:
        # cat keeps no history of a tensor [0]
        ranked = torch.cat(parts) if len(parts) > 1 else parts[0]
        return ranked.index_select(0, beside(self._cut.at.ranks, ranked))

    def no_rows(self, state: Any) -> Any:
        return state[:0].detach()

    def empty_step(self) -> Any:
        return take_elements(self.value, self.level, _NONE, drop_level=True)

    def join_leaf(self, kept: list[Any], port: Concat, empty: bool, name: str) -> LoDTensor:
        for t, value in enumerate(kept):
            rows = len(value) if isinstance(value, LoDTensor) else (value.shape[0] if value.dim() else None)
            wanted = 0 if empty else self._cut.at.counts[t]
            if rows != wanted:
                raise StepError(
                    f"{name} must have one row for each sequence that takes part in the step",
                    got=f"{_shape(value)} at step {t}",
                    expected=f"{wanted} rows",
                    remedy="keep the first dimension of x in what the step returns",
                )
        if empty:
            zero = kept[0]
            inner = zero.lod if isinstance(zero, LoDTensor) else ()
            rows = (zero.values if isinstance(zero, LoDTensor) else zero).detach()
            return LoDTensor(rows, (*self.value.lod[: self.level + 1], *inner))
        own = self.value.structure
        joined = self._cut.joined(kept, own if self._is_last else LoD.trusted(own.levels[: self.level + 1]))
        return self._reversed(joined) if self._mirrors else joined


@outside_modes
def _mirrored(offsets: Tensor) -> Tensor:
    """The elements of all sequences, each from its end to its beginning."""
    elements = int(offsets[-1])
    sequence = owners(offsets.diff(), elements)
    return offsets[sequence] + offsets[sequence + 1] - 1 - torch.arange(elements)


@outside_modes
def _equal(lengths: Tensor, others: Tensor) -> bool:
    return torch.equal(lengths, others)


def join_along(kept: list[Any], port: Concat, empty: bool, name: str) -> Tensor:
    """The values of all steps along an axis: a new one, or with `part_size` the one they have.

    Raises:
        StepError: they do not fit together.
    """
    axis, part = port.axis, port.part_size
    first = kept[0].shape
    if part is not None and name != port.output:  # a port of an iterator
        name = f"output '{port.output}', of {name},"
    for t, value in enumerate(kept):
        if value.shape != first or isinstance(value, LoDTensor):
            raise StepError(
                f"{name} cannot be joined over the steps",
                got=f"{tuple(first)} at step 0 and {_shape(value)} at step {t}",
                expected="one shape",
                remedy="return a tensor of the same shape at every step",
            )
    rank = kept[0].dim() + (part is None)
    if not -rank <= axis < rank:
        raise StepError(
            f"{name} has too few dimensions to be joined along axis {axis}",
            got=f"{tuple(kept[0].shape)} at each step",
            remedy="keep the dimensions before the time axis in what the step returns",
        )
    if part is not None and kept[0].shape[axis] != part:
        raise StepError(
            f"{name} must have part_size={part} elements along axis {axis} at each step",
            got=f"{tuple(kept[0].shape)}",
            expected=f"{part} along axis {axis}",
            remedy=f"return as many, or say part_size={kept[0].shape[axis]} at its port",
        )
    if empty:
        shape = list(kept[0].shape)
        if part is None:
            shape.insert(axis % rank, 0)
        else:
            shape[axis] = 0
        return kept[0].new_zeros(shape)
    ordered = kept[::-1] if port.stride < 0 else kept
    return torch.stack(ordered, axis) if part is None else torch.cat(ordered, axis)


def iterations(port: Slice | Concat, size: int) -> tuple[int, int, int]:
    """The window [low, high) of an axis and the number of steps in it.

    By OpenVINO's TensorIterator-1: a negative start or end counts from size + 1; the window must hold a
    whole number of strides, and a step takes as many elements as the stride.

    Raises:
        LoopError: the window lies outside the axis, or does not divide into steps.

    >>> iterations(Slice("x", "x", start=-1, end=0, stride=-2, part_size=2), 6)
    (0, 6, 3)
    """
    start = port.start + size + 1 if port.start < 0 else port.start
    end = port.end + size + 1 if port.end < 0 else port.end
    part = 1 if port.part_size is None else port.part_size
    name = port.parameter if isinstance(port, Slice) else port.output
    where = f"the slice of '{name}' along axis {port.axis}"
    given = f"start={port.start}, end={port.end}, stride={port.stride}, part_size={part} over {size} elements"
    if port.stride == 0 or part != abs(port.stride):
        raise LoopError(
            f"{where} needs part_size equal to the stride's size, not zero",
            got=given,
            remedy=f"stride={-part if port.stride < 0 else part}",
        )
    low, high = (start, end) if port.stride > 0 else (end, start)
    if not 0 <= low <= high <= size:
        raise LoopError(
            f"{where} lies outside the tensor",
            got=given,
            expected=f"0 <= start <= end <= {size}",
            remedy="start=0, end=-1 take all of it; with a negative stride start=-1, end=0",
        )
    if (high - low) % part:
        raise LoopError(
            f"{where} does not divide into steps",
            got=given,
            expected=f"a multiple of {part} elements",
            remedy=f"end={high - (high - low) % part} leaves out the rest" if port.stride > 0 else None,
        )
    return low, high, (high - low) // part


def _shape(value: Any) -> str:
    return str(tuple(value.values.shape) if isinstance(value, LoDTensor) else tuple(value.shape))
