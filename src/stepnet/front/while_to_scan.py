"""Raising: a recorded while loop that is a scan over arrays becomes a loop over what it reads.

It is one if it counts, and reads and writes arrays where it has counted to. Then what was read from an
array that the loop leaves alone is an input; what was read from one that it writes, where that was written
in turns before, is a state; and what is written is an output. Anything else is a broken rule, said as
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
from stepnet.errors import ArrayError, Unsupported
from stepnet.ir.loop import Loop
from stepnet.ir.sweep import over_rows

from .frame import WhileLoop
from .lines import Line
from .program import Program
from .recorded import Call, Count, Read
from .recorded_step import RecordedStep
from .scan_form import Element, ScanForm, in_file, like_of, rule, scan_form, values_of
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
    known = None if in_file() else program.known
    found = known.found if known is not None else None
    values = values_of(loop, found) if isinstance(found, ScanForm) else None
    if found is None:
        try:
            found = scan_form(loop)
        except Unsupported as refusal:
            found = refusal.reason  # not the exception: its traceback would keep the loop's values alive
    elif isinstance(found, ScanForm) and values is None:  # of other numbers
        found = scan_form(loop)
    if known is not None:
        known.found = found
    if isinstance(found, str):
        raise rule(found)
    values = values_of(loop, found) if values is None else values
    assert values is not None
    return _bound(loop, found, values)


def _bound(loop: WhileLoop, form: ScanForm, numbers: dict[int, Any]) -> Raised:
    """A form with the values of one loop."""
    program = loop.program
    steps = _steps(loop, form, numbers)
    turns = _Turns(numbers, form.slopes, steps, form.by)
    _check_places(program, form, turns)
    x = [_column(loop, op, *turns.rows(line)) for op, line in form.inputs]
    for (op, _), column in zip(form.inputs, x, strict=True):
        like = program.examples[op.out]
        if like is not None and (like.shape, like.dtype) != (column.shape[1:], column.dtype):
            raise rule("the values of an array differ in shape or dtype", op)
    held = dict(program.constants)
    for op, line in form.fixed:
        held[op.out] = _fixed(loop, op, line.at(numbers))
    state = _first_state(loop, form, numbers, held)
    if form.counted is not None:
        boot = loop.loop_vars[form.counted]
        if boot.dim():
            raise rule("a counter that is used as a number is no scalar")
        first, by = turns.rows(Line.of(form.counted))[:2]
        x.append((torch.arange(steps, device=boot.device) * by + first).to(boot.dtype))
    elif form.clocked:
        like = state[0]
        x.append(torch.zeros(steps, *like.shape[:1], device=like.device))
    body = RecordedStep(form.step, [held[place] for place in form.step.constants])

    def finish(ys: list[Tensor], last: list[Tensor]) -> list[Tensor]:
        columns: dict[tuple[int, bool], Steps] = {}  # two arrays may be written the same
        for number, line, column in form.outputs:
            first, by, _ = turns.rows(line)
            low = first if by > 0 else first + by * (steps - 1)
            if isinstance(column, int):
                key = column, by > 0
                if key not in columns:
                    columns[key] = Steps(ys[column] if by > 0 else ys[column].flip(0), computed=True)
                joined = columns[key]
            else:
                value = program.constants[column.place]
                joined = Steps(value.expand(steps, *value.shape))
            contents_of(program.arrays[number]).put(low, joined)
        results = list(loop.loop_vars)
        turned: Any = steps
        if not _never_negative(steps):  # torch, to which no size is 0, says n - 1 for max(n - 1, 0)
            turned = torch.full((), steps).clamp(min=0)
        for place, by in form.counters.items():
            results[place] = (results[place] + by * turned).to(results[place].dtype)
        for place, value in zip(form.carried, last, strict=False):
            results[place] = value
        return results

    return Raised(form, body, x, state, finish)


@dataclass(frozen=True)
class _Turns:
    """The turns of a loop, and the rows that they are: from the first turn, or from the last."""

    numbers: dict[int, Any]
    slopes: dict[int, int]
    steps: Any
    by: int

    def rows(self, line: Line) -> tuple[Any, int, Any]:
        """A line at the first row, what it changes by from row to row, and how many there are."""
        first, by = line.at(self.numbers), line.by(self.slopes)
        return (first, by, self.steps) if self.by > 0 else (first + by * (self.steps - 1), -by, self.steps)


def _check_places(program: Program, form: ScanForm, turns: _Turns) -> None:
    """Refuse a loop that writes below an array, or asks for the size of one which it makes grow."""
    ends = dict[int, Any]()
    for array, line, _ in form.outputs:
        first, by, steps = turns.rows(line)
        last = first + by * (steps - 1)
        low, high = (first, last) if by > 0 else (last, first)
        if not isinstance(low, torch.SymInt) and low < 0:
            raise rule("an array is written at a negative index")
        ends[array] = high + 1
    for op in program.ops:
        if not isinstance(op, Count) or op.array not in ends or op.out in form.ends:
            continue
        if program.arrays[op.array].size() < ends[op.array]:
            raise rule("the size of an array that grows in the loop is used as a number", op)


def _steps(loop: WhileLoop, form: ScanForm, numbers: dict[int, Any]) -> Any:
    """How many steps there are; of a module that is traced, an open size."""
    name, left, right = form.end
    apart = left.plus(right, -1)
    far, by = -apart.at(numbers), apart.by(form.slopes)
    if by < 0:
        far, by = -far, -by
    if name == "eq" and by > 1 and far % by:
        raise rule("the loop does not end where a counted step reaches a fixed number")
    up = 1 if name in ("gt", "lt") else 0
    steps: Any = far + up if by == 1 else (far + (by if up else by - 1)) // by
    if steps <= 0:
        raise rule("there are no steps")
    if not isinstance(steps, torch.SymInt):
        _check_range(form, numbers, steps)
    elif not _never_negative(steps):
        steps = torch.sym_max(steps, 0)
    if loop.max_steps is not None and steps > loop.max_steps:
        raise rule("there are more steps than max_steps")
    return steps


def _check_range(form: ScanForm, numbers: dict[int, Any], steps: int) -> None:
    """Refuse a loop that counts where that are too few bits for it."""
    for kind, line in form.narrow:
        first, limits = line.at(numbers), torch.iinfo(kind)
        for number in (first, first + line.by(form.slopes) * steps):
            if not isinstance(number, torch.SymInt) and not limits.min <= number <= limits.max:
                raise rule(f"a counter of {kind} does not count as far as the end")


def _first_state(loop: WhileLoop, form: ScanForm, numbers: dict[int, Any], held: dict[int, Any]) -> list[Any]:
    """The loop variables that are carried, and what is read at steps before the first; each must be like
    what a step puts in its place."""
    program = loop.program
    state: list[Any] = [loop.loop_vars[place] for place in form.carried]
    likes = [like_of(program, new, held) for new in form.step.new[: len(state)]]
    new = len(state)
    for op, distance, line in form.states:
        array, default = program.arrays[op.array], resolve(op.default, program.constants)
        first, by = line.at(numbers), line.by(form.slopes)
        likes += [like_of(program, form.step.new[new + distance - 1], held)] * distance
        new += distance
        for before in (first - by * turn for turn in range(distance, 0, -1)):
            if isinstance(before, torch.SymInt) and default is not None and not contents_of(array).values:
                state.append(default)
            else:
                state.append(_value(op, array, before, default))
    for value, like in zip(state, likes, strict=True):
        if like is None or not isinstance(value, Tensor):
            raise rule("the shape of a state is not known before the loop runs")
        if (like.shape, like.dtype) != (value.shape, value.dtype):
            raise rule(
                f"what is read at the step before the first is {describe_leaf(value)}, "
                f"and what is written {describe_leaf(like)}"
            )
    return state


def _column(loop: WhileLoop, op: Read | Element, first: Any, by: int, steps: Any) -> Tensor:
    """What a read gives at every row, stacked."""
    if isinstance(op, Element):
        given: Any = loop.program.constants[op.place]
        whole: Any = (given.unsqueeze(op.axis + 1) if op.kept else given).movedim(op.axis, 0)
    else:
        whole = contents_of(loop.program.arrays[op.array]).whole
    last = first + by * (steps - 1)
    low, high = (first, last) if by > 0 else (last, first)
    if isinstance(op, Element) and high < 0 and not op.kept:
        low, high = low + whole.shape[0], high + whole.shape[0]
    default = resolve(op.default, loop.program.constants) if isinstance(op, Read) else None
    if whole is not None and default is not None and not _everywhere(whole, low, high, steps):
        return _where_it_is(op, whole, default, torch.arange(steps, device=whole.device) * by + first)
    if whole is not None and low >= 0 and high < whole.shape[0]:
        count = high + 1 - low
        part = whole if count == whole.shape[0] else whole.narrow(0, low, count)
        part = part if abs(by) == 1 else part[:: abs(by)]
        return part if by > 0 else part.flip(0)
    if isinstance(op, Element):
        raise rule("a tensor is read behind its end, or before its beginning", op)
    array = loop.program.arrays[op.array]
    values = [_value(op, array, place, default) for place in range(first, first + by * steps, by)]
    like = values[0]
    if not all(isinstance(v, Tensor) for v in values):
        raise rule("an array holds LoDTensors, or its default is no tensor", op)
    if not all(v.shape == like.shape and v.dtype == like.dtype for v in values):
        raise rule("the values of an array differ in shape or dtype", op)
    return torch.stack(values)


def _fixed(loop: WhileLoop, op: Read, place: Any) -> Any:
    """What a read gives that is the same at every step."""
    array, default = loop.program.arrays[op.array], resolve(op.default, loop.program.constants)
    whole = contents_of(array).whole
    if whole is not None and default is not None and not _everywhere(whole, place, place, 1):
        return _where_it_is(op, whole, default, torch.full((1,), place, device=whole.device)).squeeze(0)
    return _value(op, array, place, default)


def _everywhere(whole: Tensor, low: Any, high: Any, steps: Any) -> bool:
    """False if open sizes may be such that a tensor has not all of some places."""
    if not isinstance(low + high + steps + whole.shape[0], torch.SymInt):
        return True
    return _never_negative(low) and _never_negative(whole.shape[0] - 1 - high)


def _never_negative(number: Any) -> bool:
    """True of what is 0 or more for all open sizes, also for 0 and 1, which torch says none is."""
    if not isinstance(number, torch.SymInt):
        return number >= 0
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

    asked = number.node.expr
    few = (asked.subs(dict.fromkeys(asked.free_symbols, size)) for size in (0, 1))
    return all(found >= 0 for found in few) and statically_known_true(number >= 0)


def _where_it_is(op: Read | Element, whole: Tensor, default: Any, at: Tensor) -> Tensor:
    """What is read of a tensor of open length at some places: the default where it has none."""
    if not isinstance(default, Tensor) or (default.shape, default.dtype) != (whole.shape[1:], whole.dtype):
        raise rule("the values of an array differ in shape or dtype", op)
    size = whole.shape[0]
    inside = (at >= 0) & (at < size)
    return torch.cat([whole, default.unsqueeze(0)]).index_select(0, torch.where(inside, at, size))


def _value(op: Read, array: TensorArray, place: Any, default: Any) -> Any:
    """What a read gives. Where it is an error, the loop runs as recorded, to say at which step."""
    try:
        return array.read(place, default)
    except ArrayError as error:
        raise rule(f"there is nothing at index {place} of an array that is read", op) from error
