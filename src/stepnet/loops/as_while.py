"""A recorded loop that is no scan as a condition and a body, for what saves a module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import contents_of
from stepnet.errors import Unsupported
from stepnet.front.frame import WhileLoop
from stepnet.front.program import Program
from stepnet.front.recorded import Break, Call, Guard, Op, Read
from stepnet.front.scan_form import check_takes_no_arrays, rule
from stepnet.front.step import describe_leaf
from stepnet.front.template import Literal, Ref, changed, resolve
from stepnet.repeat import while_joined, while_loop

from .joined_writes import JoinedWrites

_NUMBERS = 1 << 40  # the places of numbers that stand in the program begin here


def run_as_while(loop: WhileLoop) -> list[Tensor]:
    """Run a loop by `while_loop`, which is saved as one that computes its condition.

    Raises:
        Unsupported: it writes arrays elsewhere than at the turn, or it reads some that are not one tensor, or
            a frame inside uses some, or Python was told a size, or a loop variable changes its sizes.
    """
    program = loop.program
    writes = JoinedWrites(loop, 2 * _NUMBERS)
    wholes = _wholes(program, writes)
    arrays = [None if whole is None else _Whole(whole) for whole in wholes]
    inside = [None if whole is None else _Whole(whole, anywhere=True) for whole in wholes]
    numbers: list[Any] = []
    ops = [_numbered(op, numbers) for op in writes.ops if not isinstance(op, Guard)]
    updates = [_lifted(loop.updates[i], numbers) for i in range(len(loop.loop_vars))] + writes.back
    places, constants = list(program.constants), list(program.constants.values())
    variable_places, rows = (*range(program.variables), *writes.places()), writes.rows

    def start(variables: tuple[Any, ...]) -> dict[int, Any]:
        return {
            **dict(zip(places, constants, strict=True)),
            **{_NUMBERS + i: number for i, number in enumerate(numbers)},
            **dict(zip(variable_places, variables, strict=True)),
        }

    def cond(*variables: Any) -> Any:
        values, ended, held = start(variables), None, arrays
        left = sum(isinstance(op, Break) for op in ops)
        for op in ops:
            if isinstance(op, Break):
                here = torch.as_tensor(values[op.condition.place]).reshape(())
                ended, left = here if ended is None else ended | here, left - 1
                if not left:
                    break
                held = inside  # where the loop has ended, it may be at a place that the array has not
            else:
                op.do(values, held)
        assert ended is not None
        return ~ended

    def body(*variables: Any) -> tuple[Any, ...]:
        values = start(variables)
        for op in ops:
            if not isinstance(op, Break):
                op.do(values, arrays)
        new = tuple(resolve(update, values) for update in updates)
        for i, (old, value) in enumerate(zip(variables, new, strict=True)):
            if old.shape != value.shape:
                raise rule(
                    f"what a loop in a file carries has one shape, and loop variable {i} was "
                    f"{describe_leaf(old)} and became {describe_leaf(value)}"
                )
        return (*new, *(torch.as_tensor(resolve(row, values)) for row in rows))

    first = (*loop.loop_vars, *writes.more)
    if not writes.arrays:
        return list(while_loop(cond, body, first, max_steps=loop.max_steps))
    out = while_joined(cond, body, first, len(writes.arrays), max_steps=loop.max_steps)
    writes.fill(out[len(first) :])
    return list(out[: program.variables])


def _wholes(program: Program, writes: JoinedWrites) -> list[Tensor | None]:
    """What is read of each array, as one tensor; None of those that are written."""
    wholes = [
        None if k in writes.arrays else contents_of(array).whole for k, array in enumerate(program.arrays)
    ]
    if any(whole is None and k not in writes.arrays for k, whole in enumerate(wholes)):
        raise Unsupported(
            "it is no scan, and it reads an array that is not one tensor",
            remedy="stepnet.recurrent(step, x, state), where `unpack` cut x: it is saved for any lengths",
        )
    for op in program.ops:
        check_takes_no_arrays(op)
        if (
            isinstance(op, Guard)
            and isinstance(op.told, (int, float, tuple, torch.SymInt))
            and not program.keeps_shape(op.of)
        ):
            raise rule("Python was told a size, which may be another for other inputs", op)
    return wholes


class _Whole:
    """An array that is one tensor: read by functions of torch, which a trace sees.

    `anywhere`: also at places that it does not have, where nothing is said of what it gives.
    """

    def __init__(self, values: Tensor, anywhere: bool = False) -> None:
        self.values, self.anywhere = values, anywhere

    def size(self) -> int:
        return self.values.shape[0]

    def read(self, index: Any, default: Any) -> Tensor:
        index, size = torch.as_tensor(index).reshape(()), self.size()
        at = index.clamp(0, size - 1) if self.anywhere or default is not None else index
        value = self.values.index_select(0, at.reshape(1)).squeeze(0)
        return value if default is None else torch.where((index >= 0) & (index < size), value, default)


def _numbered(op: Op, numbers: list[Any]) -> Op:
    """The operation with its integers in `numbers`: a trace knows there which of them are sizes."""
    if isinstance(op, Call):
        return replace(op, args=_lifted(op.args, numbers), kwargs=_lifted(op.kwargs, numbers))
    if isinstance(op, Read):
        return replace(op, index=_lifted(op.index, numbers), default=_lifted(op.default, numbers))
    return op


def _lifted(template: Any, numbers: list[Any]) -> Any:
    def lift(leaf: Any) -> Any:
        value = leaf.value if isinstance(leaf, Literal) else leaf
        if type(value) is int or isinstance(value, torch.SymInt):
            numbers.append(value)
            return Ref(_NUMBERS + len(numbers) - 1)
        return leaf

    return changed(template, lift)
