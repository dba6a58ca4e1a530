"""A recorded loop that is no scan as a condition and a body, for what saves a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.front.frame import WhileLoop, run_call
from stepnet.front.recorded import Break, Call, Count, Guard, Op, Read, Write
from stepnet.front.scan_form import rule
from stepnet.front.template import Literal, Packed, Ref, resolve
from stepnet.repeat import while_loop

_NUMBERS = 1 << 40  # the places of numbers that stand in the program begin here


def run_as_while(loop: WhileLoop, why: Unsupported) -> list[Tensor]:
    """Run a loop by `while_loop`, which is saved as one that computes its condition.

    Raises:
        Unsupported: it writes arrays, or it reads some that are not one tensor, or Python was told a size.
    """
    program = loop.program
    for op in program.ops:
        if isinstance(op, Write):
            raise why
        if isinstance(op, Guard) and isinstance(op.told, (int, float, tuple, torch.SymInt)):
            raise rule("Python was told a size, which may be another for other inputs", op)
    wholes = [array._whole for array in program.arrays]
    if any(whole is None for whole in wholes):
        raise rule("it is no scan, and it reads an array that is not one tensor")
    numbers: list[Any] = []
    ops = [_numbered(op, numbers) for op in program.ops]
    updates = [_lifted(loop.updates[i], numbers) for i in range(len(loop.loop_vars))]
    places, constants = list(program.constants), list(program.constants.values())

    def start(variables: tuple[Any, ...]) -> dict[int, Any]:
        return {
            **dict(zip(places, constants, strict=True)),
            **{_NUMBERS + i: number for i, number in enumerate(numbers)},
            **dict(enumerate(variables)),
        }

    def cond(*variables: Any) -> Any:
        values, ended = start(variables), None
        left = sum(isinstance(op, Break) for op in ops)
        for op in ops:
            if isinstance(op, Break):
                here = torch.as_tensor(values[op.condition.place]).reshape(())
                ended, left = here if ended is None else ended | here, left - 1
                if not left:
                    break
            else:
                _do(op, values, wholes)
        assert ended is not None
        return ~ended

    def body(*variables: Any) -> tuple[Any, ...]:
        values = start(variables)
        for op in ops:
            if not isinstance(op, Break):
                _do(op, values, wholes)
        return tuple(resolve(update, values) for update in updates)

    return list(while_loop(cond, body, tuple(loop.loop_vars), max_steps=loop.max_steps))


def _do(op: Op, values: dict[int, Any], wholes: list[Tensor | None]) -> None:
    if isinstance(op, Call):
        run_call(op, values)
    elif isinstance(op, (Read, Count)):
        whole = wholes[op.array]
        assert whole is not None
        if isinstance(op, Count):
            values[op.out] = whole.shape[0]
            return
        index = torch.as_tensor(resolve(op.index, values)).reshape(())
        if op.default is None:
            values[op.out] = whole.index_select(0, index.reshape(1)).squeeze(0)
            return
        size = whole.shape[0]
        value = whole.index_select(0, index.clamp(0, size - 1).reshape(1)).squeeze(0)
        values[op.out] = torch.where((index >= 0) & (index < size), value, resolve(op.default, values))


def _numbered(op: Op, numbers: list[Any]) -> Op:
    """The operation with its integers in `numbers`: a trace knows there which of them are sizes."""
    if isinstance(op, Call):
        args, kwargs = _lifted(op.args, numbers), _lifted(op.kwargs, numbers)
        return Call(op.function, args, kwargs, op.out, op.count, op.nested, op.line)
    if isinstance(op, Read):
        index, default = _lifted(op.index, numbers), _lifted(op.default, numbers)
        return Read(op.array, index, default, op.out, op.line)
    return op


def _lifted(template: Any, numbers: list[Any]) -> Any:
    value = template.value if isinstance(template, Literal) else template
    if type(value) is int or isinstance(value, torch.SymInt):
        numbers.append(value)
        return Ref(_NUMBERS + len(numbers) - 1)
    if type(template) is tuple:
        return tuple([_lifted(item, numbers) for item in template])
    if type(template) is Packed:
        if template.kind is dict:
            return Packed(dict, tuple([(key, _lifted(item, numbers)) for key, item in template.items]))
        return Packed(template.kind, tuple([_lifted(item, numbers) for item in template.items]))
    return template
