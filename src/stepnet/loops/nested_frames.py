"""A frame inside another frame: its loop is one call of the outer frame's program."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.recording import UNKNOWN
from stepnet.errors import StepError
from stepnet.front.examples import key_of
from stepnet.front.frame import WhileLoop
from stepnet.front.recorded import Call
from stepnet.front.scan_form import like_of
from stepnet.front.symbolic import OPEN, Symbolic
from stepnet.front.template import ref

from .recorded_frame import LoopCall


class InnerLoop(LoopCall):
    """What the outer frame calls at each of its steps: the inner frame's program on the values of the step.

    Two of the same program are equal, so that the outer frame is known again. Of the arrays it writes those
    that the step owns.
    """

    def __init__(self, loop: WhileLoop, own: list[int], written: list[int]) -> None:
        super().__init__(loop, written)
        self.own = tuple(own)
        updates = tuple(sorted(self.recording.updates.items()))
        self.change = tuple(changes_size(loop, place) for place, _ in updates)
        self._last = [loop.program.last_written(number) for number in written]
        self._key = (
            self.recording.ops, updates, loop.max_steps, self.places, self.own, self.written, self.change,
            tuple(map(key_of, self._last)),
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InnerLoop) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(
        self, loop_vars: list[Any], constants: list[Any], arrays: list[TensorArray]
    ) -> tuple[Any, ...]:
        wrong = [v for v in loop_vars if not isinstance(v, Tensor)]
        if wrong:
            raise StepError(
                "the loop variables of a frame inside a frame must be tensors",
                got=type(wrong[0]).__name__,
                remedy="a loop variable for each tensor of it",
            )
        here = [copy.copy(array) if i in self.own else array for i, array in enumerate(arrays)]
        return self.play(self.recording, loop_vars, constants, here)

    def like(self, loop_vars: list[Any], *_: Any) -> tuple[Any, ...]:
        """The results without data: of the arrays, what was written last."""
        results = (UNKNOWN if change else v for v, change in zip(loop_vars, self.change, strict=True))
        return (*results, *(UNKNOWN if value is None else _Some(value) for value in self._last))


class _Some(TensorArray):
    """Stands for an array that holds values like one; how many is not known."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._store(0, value, True)

    def size(self) -> int:
        raise NotImplementedError


def changes_size(loop: WhileLoop, place: int) -> bool:
    """Whether a loop variable is of other sizes after the first step, as far as that is known."""
    old, new = (like_of(loop.program, at) for at in (ref(place), loop.updates[place]))
    return not isinstance(new, Tensor) or old.shape != new.shape


def record_inside(loop: WhileLoop) -> list[Any]:
    """Make a loop a call of the program of the frame around it.

    Arrays that the outer frame made belong to its step; others are those outside, read and written in place.
    """
    outer, program = OPEN.get(), loop.program
    assert outer is not None
    program.read_in_place()
    own, written = list[int](), list[int]()
    for number, array in enumerate(program.arrays):
        if not (isinstance(array.deferred, Symbolic) or outer.made_inside(array)):
            continue
        changed = number in program.written()
        if changed and not outer.is_own(array):  # of a frame around that one, whose turns go on with it
            outer.written_inside(array, program.last_written(number))
            continue
        own.append(number)
        written += [number] * changed
    inner = InnerLoop(loop, own, written)
    args = (list(loop.loop_vars), list(program.constants.values()), list(program.arrays))
    results = outer.call(inner, args, {})
    calls = (op for op in reversed(outer.ops) if isinstance(op, Call) and op.name == inner.__name__)
    known: Any = next(calls).function
    known = getattr(known, "function", known)
    known.tells(loop)  # it may be one like it that was recorded before
    count = len(loop.loop_vars)
    for number, made in zip(written, results[count:], strict=True):
        program.arrays[number].deferred = made.deferred if isinstance(made, TensorArray) else made
    loop.inside = True
    return list(results[:count])
