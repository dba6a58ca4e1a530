"""While loops on a tape: the frame's program is one layer, which gives the loop variables and the arrays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.in_graph import is_exporting
from stepnet.data.values import note_size
from stepnet.front.frame import WhileLoop
from stepnet.front.recorded import Write
from stepnet.tape.creation import TRIAL, Endless
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape

from .recorded_frame import LoopCall, TooManySteps

_MOST = 1000  # steps on an example


class TapedLoop(LoopCall):
    """What a loop on a tape calls."""

    def __init__(self, loop: WhileLoop, written: list[int]) -> None:
        super().__init__(loop, written)
        self._numbers = [_number(v) for v in (*loop.loop_vars, *loop.program.constants.values())]

    def __call__(
        self, loop_vars: list[Any], constants: list[Any], arrays: list[TensorArray]
    ) -> tuple[Any, ...]:
        own = [copy.copy(array) for array in arrays]
        known = [_with_number(v, n) for v, n in zip((*loop_vars, *constants), self._numbers, strict=True)]
        loop_vars, constants = known[: len(loop_vars)], known[len(loop_vars) :]
        if not TRIAL.get():
            return self.play(self.recording, loop_vars, constants, own)
        most = self.recording.max_steps
        short = replace(self.recording, max_steps=_MOST if most is None else min(most, _MOST))
        try:
            return self.play(short, loop_vars, constants, own, tell=False)
        except TooManySteps as error:
            raise Endless from error


def _number(value: Any) -> int | None:
    """The number in a counter or a bound that is a constant of the tape."""
    whole = isinstance(value, Tensor) and not value.dtype.is_floating_point and value.numel() == 1
    return int(value) if whole else None


def _with_number(value: Any, number: int | None) -> Any:
    """A constant of the tape, with its number where a trace does not know it."""
    if number is None or not isinstance(value, Tensor) or type(value) is Tensor:
        return value
    if is_exporting():  # the steps are part of the program, each as it is
        value = torch.tensor(number if not value.dim() else [number], dtype=value.dtype)
    note_size(value, number)
    return value


def with_tensors(loop_vars: Any) -> Any:
    """Loop variables, of which those that will be numbers when the tape is played, such as the size of an
    array, will be tensors."""

    def tensor(value: Any) -> Any:
        number = isinstance(value, TapeItem) and type(value.creation.example) in (int, float, bool)
        return value.tape.record("tensor", torch.tensor, (value,)) if number else value

    return [tensor(v) for v in loop_vars] if type(loop_vars) in (tuple, list) else loop_vars


def tape_of(loop: WhileLoop) -> Tape | None:
    """The tape that a loop belongs on: that of an item that it reads, or the one that is open."""
    found = [value for value in _given(loop) if isinstance(value, TapeItem)]
    return found[0].tape if found else Tape.opened()


def _given(loop: WhileLoop) -> list[Any]:
    program = loop.program
    deferred = [array.deferred for array in program.arrays]
    return [*loop.loop_vars, *program.constants.values(), *deferred]


def record(tape: Tape, loop: WhileLoop) -> list[TapeItem]:
    """Put a loop on a tape; its arrays are then on the tape too, and so are its results.

    Raises:
        TapeError: it does not run on small examples, or its items are of different tapes.
    """
    program = loop.program
    numbers = {op.array for op in program.ops if isinstance(op, Write)}
    written = sorted(numbers)
    taped = TapedLoop(loop, written)
    arrays = [copy.copy(a) if a.deferred is None else a.deferred for a in program.arrays]
    given: Sequence[Any] = (list(loop.loop_vars), list(program.constants.values()), arrays)
    item = tape.record("while_loop", taped, given)
    loop.place = item.name
    count = len(loop.loop_vars)
    for at, number in enumerate(written, count):
        program.arrays[number].deferred = item[at]
    return [item[place] for place in range(count)]
