"""The writes of a recorded loop whose end the data tells, as values that are joined: one of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stepnet.data.array import contents_of, hold
from stepnet.data.steps import Steps
from stepnet.front.frame import WhileLoop
from stepnet.front.recorded import Break, Call, Count, Op, Read, Write
from stepnet.front.scan_form import offsets_from, rule
from stepnet.front.template import Ref, places, resolve


@dataclass(frozen=True)
class _Carried:
    """`values[out] = values[place]`: what an array was written in the turn before."""

    place: int
    out: int

    def do(self, values: dict[int, Any], arrays: Sequence[Any], at: str = "") -> None:
        values[self.out] = values[self.place]


class JoinedWrites:
    """The arrays that a loop writes: at the number of the turn, or at the end, once in each turn.

    What is read of them is what was written in the turn before, which is a loop variable here.

    Args:
        loop: the loop.
        first: the number of the first place for the loop variables that are added.

    Attributes:
        arrays: the numbers of the arrays.
        more: the added loop variables, as they begin.
        back, rows: what the added loop variables become, and what the arrays are written.
        ops: the operations of the loop without those on the arrays.

    Raises:
        Unsupported: it uses an array in another way.
    """

    def __init__(self, loop: WhileLoop, first: int) -> None:
        program = loop.program
        writes = [op for op in program.ops if isinstance(op, Write)]
        self.arrays = [op.array for op in writes]
        self.first, self.more, self.ops = first, list[Any](), list[Op]()
        self.rows, self.back = [op.value for op in writes], list[Any]()
        if not writes:
            self.ops = program.ops
            return
        self._loop = loop
        self._sizes = {op.out: op.array for op in program.ops if isinstance(op, Count)}
        breaks = [at for at, op in enumerate(program.ops) if isinstance(op, Break)]
        for at, op in enumerate(program.ops):
            if isinstance(op, Write):
                self._check(op, at > max(breaks))
            elif isinstance(op, Read) and op.array in self.arrays:
                self.ops.append(self._read(op))
            elif not (isinstance(op, Count) and op.array in self.arrays):
                self.ops.append(op)
        self._check_sizes()

    def _check(self, op: Write, behind: bool) -> None:
        if not behind:
            raise rule("an array is written before break_if", op)
        if self.arrays.count(op.array) > 1:
            raise rule("an array is written twice in a step", op)
        array = self._loop.program.arrays[op.array]
        if contents_of(array).values:
            raise rule("an array holds values before the loop", op)
        index = op.index
        if not isinstance(index, Ref) or (
            self._sizes.get(index.place) != op.array and self._offset(index) != 0
        ):
            raise rule("an array is written elsewhere than at the step", op)
        if index.place in self._sizes and array.size():
            raise rule("an array is written behind places that are empty", op)

    def _read(self, op: Read) -> Any:
        if self._offset(op.index) != -1 or op.default is None:
            raise rule("an array is read elsewhere than at the step before, or has no default there", op)
        constants = self._loop.program.constants
        if any(place not in constants for place in places(op.default)):
            raise rule("a default is computed in the loop", op)
        self.more.append(torch.as_tensor(resolve(op.default, constants)))
        self.back.append(self.rows[self.arrays.index(op.array)])
        return _Carried(self.first + len(self.more) - 1, op.out)

    def _offset(self, index: Any) -> int | None:
        """What an index adds to the number of the turn; None for another."""
        program = self._loop.program
        for counter in range(program.variables):
            boot, update = self._loop.loop_vars[counter], self._loop.updates[counter]
            offsets = offsets_from(program, counter)
            counts = isinstance(update, Ref) and offsets.get(update.place) == 1
            if counts and _is_zero(boot) and isinstance(index, Ref) and index.place in offsets:
                return offsets[index.place]
        return None

    def _check_sizes(self) -> None:
        """Refuse what computes with the size that an array has so far."""
        known = {out for out, array in self._sizes.items() if array in self.arrays}
        for op in self.ops:
            used = (op.args, op.kwargs) if isinstance(op, Call) else getattr(op, "index", None)
            if not known.isdisjoint(places(used)):
                raise rule("the size of an array that is written is used as a number")

    def places(self) -> range:
        """Of the added loop variables."""
        return range(self.first, self.first + len(self.more))

    def fill(self, rows: Sequence[Tensor]) -> None:
        """Write what was joined to the arrays."""
        for array, row in zip(self.arrays, rows, strict=True):
            hold(self._loop.program.arrays[array], Steps(row, computed=True))


def _is_zero(boot: Any) -> bool:
    """Whether a loop variable begins as the number 0, whatever the loop is given."""
    known = boot.constant if isinstance(boot, FakeTensor) else boot
    return (
        isinstance(known, Tensor) and known.dim() == 0 and not known.is_floating_point() and int(known) == 0
    )
