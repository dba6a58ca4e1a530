"""Raising: a recorded while loop that is a scan over arrays becomes a loop over what it reads.

It is one if it counts a step, up or down, and reads and writes arrays there. Then what was read from an
array that the loop leaves alone is an input; what was read at the step before from one that it writes is a
state; and what is written is an output. Anything else is a broken rule, said as
`Unsupported`, and the loop runs as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray, contents_of
from stepnet.data.steps import Steps
from stepnet.data.values import integer, whole_number
from stepnet.errors import ArrayError, Unsupported
from stepnet.ir.loop import Loop
from stepnet.ir.sweep import over_rows

from .frame import WhileLoop
from .program import Program
from .recorded import Call, Count, Read
from .recorded_step import RecordedStep
from .scan_form import ScanForm, rule, scan_form
from .step import describe_leaf
from .template import resolve


@dataclass
class Raised:
    """A scan: a body over `x` ([T, ...] each) from `state`; `finish` hands its results out."""

    form: ScanForm
    body: RecordedStep
    x: list[Tensor]
    state: list[Tensor]
    finish: Callable[[list[Tensor], list[Tensor]], list[Tensor]]

    @property
    def loop(self) -> Loop:
        """The record of the loop."""
        return over_rows(self.body, *self.body.step.names, axis=0, reverse=self.form.by < 0)

    @property
    def feeds(self) -> dict[str, Tensor]:
        """What the loop is fed."""
        return dict(zip(self.body.parameters, (*self.x, *self.state), strict=True))

    def results(self, out: Mapping[str, Any]) -> list[Tensor]:
        """The loop variables after the last step, from the outputs of the loop; arrays hold what it wrote."""
        _, _, new, y = self.body.step.names
        return self.finish([out[name] for name in y], [out[name] for name in new])

    @property
    def sizes(self) -> Any:
        """Shapes and dtypes of a step."""
        return tuple((v.shape[1:], v.dtype) for v in self.x), tuple((v.shape, v.dtype) for v in self.state)

    @property
    def rowwise(self) -> bool:
        """True if the first dimension of every value may count rows."""
        sizes = [v.shape[1] if v.dim() > 1 else None for v in self.x]
        sizes += [v.shape[0] if v.dim() > 0 else None for v in self.state]
        return None not in sizes and bool(sizes) and all(size == sizes[0] for size in sizes)


# On another number of rows than their states have these write where they must not.
_UNCHECKED = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def raise_loop(loop: WhileLoop) -> Raised:
    """See a recorded loop as a scan.

    Raises:
        Unsupported: the rule that it breaks.
    """
    program = loop.program
    unsafe = [op.line for op in program.ops if isinstance(op, Call) and op.name in _UNCHECKED]
    if unsafe:
        raise rule(f"torch does not check the batch of a whole recurrence, so it is not tried ({unsafe[0]})")
    found = program.known.found if program.known is not None else None
    if found is None:
        try:
            found = scan_form(program, loop.updates)
        except Unsupported as refusal:
            found = refusal.reason  # not the exception: its traceback would keep the loop's values alive
        if program.known is not None:
            program.known.found = found
    if isinstance(found, str):
        raise rule(found)
    return _bound(loop, found)


def _bound(loop: WhileLoop, form: ScanForm) -> Raised:
    """A form with the values of one loop."""
    program, boot = loop.program, loop.loop_vars[form.counter]
    start, steps = _range(loop, form)
    if any(program.arrays[number].size() != start for number in form.at_end):
        raise rule("an array is written or read at its end, which is not at the step")
    low = start if form.by > 0 else start - steps + 1
    _check_sizes(program, form, low + form.base + steps)
    x = [_column(loop, op, low + offset, steps) for op, offset in form.inputs]
    for (op, _), column in zip(form.inputs, x, strict=True):
        like = program.examples[op.out]
        if like is not None and (like.shape, like.dtype) != (column.shape[1:], column.dtype):
            raise rule("the values of an array differ in shape or dtype", op)
    if form.counted:
        if boot.dim():
            raise rule("a counter that is used as a number is no scalar")
        x.append(torch.arange(low, low + steps, dtype=boot.dtype, device=boot.device))
    state = _first_state(loop, form, start)
    body = RecordedStep(form.step, [program.constants[place] for place in form.step.constants])

    def finish(ys: list[Tensor], last: list[Tensor]) -> list[Tensor]:
        columns = [Steps(y, computed=True) for y in ys]  # two arrays may be written the same
        for number, column in form.outputs:
            if isinstance(column, int):
                contents_of(program.arrays[number]).put(low + form.base, columns[column])
            else:
                value = program.constants[column.place]
                joined = Steps(value.expand(steps, *value.shape))
                contents_of(program.arrays[number]).put(low + form.base, joined)
        results = list(loop.loop_vars)
        results[form.counter] = boot + form.by * steps
        for place, value in zip(form.carried, last, strict=False):
            results[place] = value
        return results

    return Raised(form, body, x, state, finish)


def _check_sizes(program: Program, form: ScanForm, end: int) -> None:
    """Refuse a loop that asks for the size of an array which it makes grow, by writes up to `end`."""
    written = {number for number, _ in form.outputs}
    for op in program.ops:
        if not isinstance(op, Count) or op.array not in written or op.out in form.ends:
            continue
        if program.arrays[op.array].size() < end:
            raise rule("the size of an array that grows in the loop is used as a number", op)


def _range(loop: WhileLoop, form: ScanForm) -> tuple[int, int]:
    """Where the counter starts, and how many steps there are; of a module that is traced, open sizes."""
    program, boot = loop.program, loop.loop_vars[form.counter]
    sizes = {op.out: program.arrays[op.array].size() for op in program.ops if isinstance(op, Count)}
    known = {place: n for place, n in enumerate(program.examples) if isinstance(n, (int, torch.SymInt))}
    bound = resolve(form.bound, {**known, **program.constants, **sizes})
    start, end = whole_number(boot), integer(bound, "bound") + form.beyond
    if not isinstance(end, torch.SymInt) and not _holds(boot.dtype, end, end - form.beyond):
        raise rule(f"a counter of {boot.dtype} does not count as far as the end")
    steps = (end - start) * form.by
    if steps <= 0:
        raise rule("there are no steps")
    if loop.max_steps is not None and steps > loop.max_steps:
        raise rule("there are more steps than max_steps")
    return start, steps


def _first_state(loop: WhileLoop, form: ScanForm, start: int) -> list[Any]:
    """The loop variables that are carried, and what is read at the step before the first; each must be like
    what a step puts in its place."""
    program = loop.program
    state: list[Any] = [loop.loop_vars[place] for place in form.carried]
    before = start + form.base - form.by
    for op in form.states:
        array, default = program.arrays[op.array], resolve(op.default, program.constants)
        if isinstance(before, torch.SymInt) and default is not None and not contents_of(array).values:
            state.append(default)
        else:
            state.append(_value(op, array, before, default))
    for value, new in zip(state, form.step.new, strict=True):
        like = form.example(program, new)
        if like is None or not isinstance(value, Tensor):
            raise rule("the shape of a state is not known before the loop runs")
        if (like.shape, like.dtype) != (value.shape, value.dtype):
            raise rule(
                f"what is read at the step before the first is {describe_leaf(value)}, "
                f"and what is written {describe_leaf(like)}"
            )
    return state


def _holds(dtype: torch.dtype, *numbers: int) -> bool:
    limits = torch.iinfo(dtype)
    return all(limits.min <= number <= limits.max for number in numbers)


def _column(loop: WhileLoop, op: Read, first: int, steps: int) -> Tensor:
    """What a read gives at every step, stacked."""
    array = loop.program.arrays[op.array]
    whole = contents_of(array).whole
    if whole is not None and first >= 0 and first + steps <= whole.shape[0]:
        return whole if steps == whole.shape[0] else whole.narrow(0, first, steps)
    default = resolve(op.default, loop.program.constants)
    values = [_value(op, array, place, default) for place in range(first, first + steps)]
    like = values[0]
    if not all(isinstance(v, Tensor) for v in values):
        raise rule("an array holds LoDTensors, or its default is no tensor", op)
    if not all(v.shape == like.shape and v.dtype == like.dtype for v in values):
        raise rule("the values of an array differ in shape or dtype", op)
    return torch.stack(values)


def _value(op: Read, array: TensorArray, place: Any, default: Any) -> Any:
    """What a read gives. Where it is an error, the loop runs as recorded, to say at which step."""
    try:
        return array.read(place, default)
    except ArrayError as error:
        raise rule(f"there is nothing at index {place} of an array that is read", op) from error
