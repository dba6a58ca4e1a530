"""The form of a scan in a recorded program: what holds for every loop that was recorded the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stepnet.data.recording import Interned
from stepnet.errors import Refusal

from .frame import run_call
from .program import Break, Call, Op, Program, Read, Write
from .template import Ref, places, renamed, resolve

_ENDS = {"eq", "ge"}
_MATMUL = {"matmul", "__matmul__", "mv", "__rmatmul__"}


@dataclass(frozen=True, eq=False)
class StepForm(Interned):
    """The calls of one step, and the places of what it is given and of what it gives."""

    calls: tuple[Call, ...]
    x: tuple[int, ...]
    state: tuple[int, ...]
    y: tuple[Ref, ...]
    new: tuple[Any, ...]
    constants: tuple[int, ...]


class RecordedStep:
    """The calls of a frame as a step: `step(x, state) -> (written values, new state)`, all of them tuples."""

    __name__ = "the while loop"

    def __init__(self, form: StepForm, constants: list[Any]) -> None:
        self.form, self.constants = form, constants

    def __call__(self, x: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Any, Any]:
        form = self.form
        given = (*x, *state, *self.constants)
        values: dict[int, Any] = dict(zip((*form.x, *form.state, *form.constants), given, strict=True))
        for call in form.calls:
            run_call(call, values)
        return tuple(values[at.place] for at in form.y), tuple(resolve(new, values) for new in form.new)


@dataclass
class ScanForm:
    """A program that is a scan.

    Attributes:
        counter: the loop variable that counts.
        bound: the template of the number where it ends.
        inputs: reads at each step, of the step itself (0) or the one before (-1).
        carried: the other loop variables; they are the first states.
        states: reads of what was written at the step before; the states after them.
        outputs: arrays that are written, each with its place among the step's results, or the constant.
    """

    step: StepForm
    counter: int
    bound: Any
    inputs: list[tuple[Read, int]]
    carried: list[int]
    states: list[Read]
    outputs: list[tuple[int, int | Ref]]
    row_like: set[Any] = field(default_factory=set)  # sizes for which rows of a batch were seen to be alike
    as_row: set[Any] = field(default_factory=set)  # sizes with which it ran as one row, and not as it is

    @cached_property
    def lifted(self) -> StepForm:
        """The step for rows of a batch: a matrix times a vector is written from the other side."""
        varying = {op.out for op, _ in self.inputs} | {*self.step.state}
        varying |= {call.out for call in self.step.calls}
        return _interned(replace(self.step, calls=tuple(_lifted(c, varying) for c in self.step.calls)))

    @staticmethod
    def example(program: Program, template: Any) -> Any:
        """What a value is like."""
        if not isinstance(template, Ref):
            return None
        return program.constants.get(template.place, program.examples[template.place])


def rule(text: str, op: Op | None = None) -> Refusal:
    """The refusal of a loop that breaks a rule."""
    return Refusal(text if op is None else f"{text} ({op.line})")


def scan_form(program: Program, updates: dict[int, Any]) -> ScanForm:
    """See a program as a scan.

    Raises:
        Refusal: the rule that it breaks.
    """
    return _Raising(program, updates).form()


class _Raising:
    def __init__(self, program: Program, updates: dict[int, Any]) -> None:
        self.program, self.updates = program, updates
        self.counter = -1
        self.offsets: dict[int, int] = {}  # place of a value -> what it adds to the counter
        self.control: set[int] = set()  # ids of calls that only count or compare
        self.numbers: set[int] = set()  # places of what those give

    def form(self) -> ScanForm:
        program = self.program
        bound = self._count()
        writes: dict[int, Write] = {}
        for op in program.ops:
            if isinstance(op, Write):
                if self._offset(op.index) != 0:
                    raise rule("an array is written elsewhere than at the step", op)
                if op.array in writes:
                    raise rule("an array is written twice in a step", op)
                writes[op.array] = op
        calls: list[Call] = []
        inputs: list[tuple[Read, int]] = []
        carried = [i for i in range(program.variables) if i != self.counter]
        states: list[Read] = []
        rename: dict[int, Any] = {}  # what is read back in the step that wrote it
        done: set[int] = set()
        for op in program.ops:
            if isinstance(op, Read):
                offset = self._offset(op.index)
                write = writes.get(op.array)
                if offset is None:
                    raise rule("an array is read elsewhere than at the step and the step before", op)
                if any(place not in program.constants for place in places(op.default)):
                    raise rule("a default is computed in the loop", op)
                if write is None:
                    inputs.append((op, offset))
                elif offset == -1:
                    states.append(op)
                elif id(write) in done:
                    rename[op.out] = write.value
                else:
                    raise rule("an array is read at the step before it is written there", op)
            elif isinstance(op, Write):
                self._check_free_of_counter(op.value, op)
                done.add(id(op))
            elif isinstance(op, Call) and id(op) not in self.control:
                self._check_free_of_counter((op.args, op.kwargs), op)
                calls.append(op)
        if not inputs:
            raise rule("no array is read at the step")
        new = [renamed(self.updates[i], rename) for i in carried]
        new += [renamed(writes[op.array].value, rename) for op in states]
        written = {op.array: renamed(op.value, rename) for op in writes.values()}
        y = list(dict.fromkeys(v for v in written.values() if v.place not in program.constants))
        # Without lines: the same step written in two places is one step, compiled once.
        calls = [
            replace(c, args=renamed(c.args, rename), kwargs=renamed(c.kwargs, rename), line="") for c in calls
        ]
        used = [p for c in calls for p in places((c.args, c.kwargs))] + [p for v in new for p in places(v)]
        step = StepForm(
            calls=tuple(calls),
            x=tuple(op.out for op, _ in inputs),
            state=(*carried, *(op.out for op in states)),
            y=tuple(y),
            new=tuple(new),
            constants=tuple(dict.fromkeys(p for p in used if p in program.constants)),
        )
        outputs = [(array, v if v.place in program.constants else y.index(v)) for array, v in written.items()]
        return ScanForm(_interned(step), self.counter, bound, inputs, carried, states, outputs)

    def _count(self) -> Any:
        """Find the counter; the template of the number where it ends."""
        program = self.program
        ends = [op for op in program.ops if isinstance(op, Break)]
        if len(ends) > 1:
            raise rule("the loop ends in more than one place", ends[1])
        (end,) = ends
        made_by = {op.out: op for op in program.ops if isinstance(op, Call)}
        test = made_by.get(end.condition.place)
        name = _name(test) if test is not None else ""
        operands = list(test.args) if test is not None and len(test.args) == 2 else []
        variables = range(program.variables)
        counters = [v.place for v in operands if isinstance(v, Ref) and v.place in variables]
        fixed = [v for v in operands if not isinstance(v, Ref) or v.place in program.constants]
        swapped = name == "ge" and bool(operands) and operands[0] in fixed
        if test is None or name not in _ENDS or len(counters) != 1 or len(fixed) != 1 or swapped:
            raise rule("the loop does not end where a counted step reaches a fixed number", end)
        self.counter = counters[0]
        boot = program.examples[self.counter]
        if not isinstance(boot, Tensor) or boot.dim() or not _whole(boot) or not self._whole_bound(fixed[0]):
            raise rule("the counter or its bound is not one integer", end)
        self._find_offsets(made_by)
        self.control.add(id(test))
        self.numbers = {*self.offsets, test.out}
        update = self.updates[self.counter]
        if not isinstance(update, Ref) or self.offsets.get(update.place) != 1:
            raise rule("the counter is not updated by step + 1")
        for op in program.ops[: program.ops.index(end)]:
            if not isinstance(op, Call):
                raise rule("an array is read or written before break_if", op)
        return fixed[0]

    def _whole_bound(self, bound: Any) -> bool:
        value = self.program.constants[bound.place] if isinstance(bound, Ref) else bound
        return type(value) is int or (isinstance(value, Tensor) and value.numel() == 1 and _whole(value))

    def _find_offsets(self, made_by: dict[int, Call]) -> None:
        self.offsets = {self.counter: 0}
        for out, op in made_by.items():
            if op.kwargs or len(op.args) != 2:
                continue
            a, b = op.args
            sign = {"add": 1, "sub": -1}.get(_name(op))
            if sign == 1 and isinstance(b, Ref):
                a, b = b, a
            if sign and isinstance(a, Ref) and a.place in self.offsets and type(b) is int:
                self.offsets[out] = self.offsets[a.place] + sign * b
                self.control.add(id(op))

    def _offset(self, index: Any) -> int | None:
        """An index as the counter plus 0 or -1."""
        offset = self.offsets.get(index.place) if isinstance(index, Ref) else None
        return offset if offset in (0, -1) else None

    def _check_free_of_counter(self, template: Any, op: Op) -> None:
        if not self.numbers.isdisjoint(places(template)):
            raise rule("the step is used as a number, not only to count and to index", op)


_forms: dict[Any, StepForm] = {}


def _interned(form: StepForm) -> StepForm:
    """The one object for forms that are equal."""
    key = (form.calls, form.x, form.state, form.y, form.new, form.constants)
    try:
        known = _forms.get(key)
    except TypeError:  # an argument that does not hash
        return form
    if known is None:
        if len(_forms) > 1024:
            _forms.clear()
        known = _forms[key] = form
    return known


def _name(op: Call) -> str:
    """`add` for torch.add, Tensor.add and Tensor.__add__; `eq` and `ge` likewise."""
    name = getattr(op.function, "__name__", "")
    plain = name.strip("_")
    return {"radd": "add", "subtract": "sub", "greater_equal": "ge"}.get(plain, plain)


def _whole(value: Tensor) -> bool:
    return not value.dtype.is_floating_point and not value.dtype.is_complex and value.dtype != torch.bool


def _matvec(vector: Tensor, matrix: Tensor) -> Tensor:
    return vector @ matrix.mT


def _lifted(call: Call, varying: set[int]) -> Call:
    """A product of a constant with what varies, from the other side; `_check_row` compares."""
    if getattr(call.function, "__name__", "") in _MATMUL and len(call.args) == 2:
        a, b = call.args
        if isinstance(a, Ref) and isinstance(b, Ref) and a.place not in varying and b.place in varying:
            return replace(call, function=_matvec, args=(b, a))
    return call
