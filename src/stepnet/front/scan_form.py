"""The form of a scan in a recorded program: what holds for every loop that was recorded the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.errors import Unsupported

from .program import Program
from .recorded import Break, Call, Count, Guard, Op, Read, Write
from .recorded_step import StepForm, interned
from .template import Literal, Ref, places, renamed

# How a loop may end that counts up, or down: what is added to the number that it is compared with.
_ENDS = {1: {"eq": 0, "ge": 0, "gt": 1}, -1: {"eq": 0, "le": 0, "lt": -1}}
_SWAPPED = {"eq": "eq", "ne": "ne", "ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}
_OPPOSITE = {"ne": "eq", "eq": "ne", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_VALUES = (Tensor, LoDTensor, TensorArray)
_NOT = {"logical_not", "bitwise_not", "invert"}
_NAMES = {
    "radd": "add", "subtract": "sub", "greater_equal": "ge", "greater": "gt", "less_equal": "le",
    "less": "lt", "equal": "eq", "not_equal": "ne",
}  # fmt: skip


@dataclass
class ScanForm:
    """A program that is a scan.

    Attributes:
        counter: the loop variable that counts.
        by: what it counts by, 1 or -1.
        bound: the template of the number where it ends.
        beyond: what is added to that number.
        base: where arrays are written: at the counter (0), or, counting down, at the one below (-1).
        inputs: reads at each step, and what is added to the counter.
        counted: whether the step itself is an input after those: it is used as a number.
        carried: the other loop variables; they are the first states.
        states: reads of what was written at the step before; the states after them.
        outputs: arrays that are written, each with its place among the step's results, or the constant.
        at_end: arrays that are written or read by their size, which is to be the counter before the loop.
        ends: the places of those sizes.
    """

    step: StepForm
    counter: int
    by: int
    bound: Any
    beyond: int
    base: int
    inputs: list[tuple[Read, int]]
    carried: list[int]
    states: list[Read]
    outputs: list[tuple[int, int | Ref]]
    at_end: frozenset[int]
    ends: frozenset[int]
    counted: bool = False
    row_like: dict[Any, set[Any]] = field(default_factory=dict)  # sizes, and steps, of rows seen to be alike
    as_row: set[Any] = field(default_factory=set)  # sizes with which it ran as one row, and not as it is

    @staticmethod
    def example(program: Program, template: Any) -> Any:
        """What a value is like."""
        if not isinstance(template, Ref):
            return None
        return program.constants.get(template.place, program.examples[template.place])


def rule(text: str, op: Op | None = None) -> Unsupported:
    """The refusal of a loop that breaks a rule."""
    return Unsupported(text if op is None else f"{text} ({op.line})")


def scan_form(program: Program, updates: dict[int, Any]) -> ScanForm:
    """See a program as a scan.

    Raises:
        Unsupported: the rule that it breaks.
    """
    return _Raising(program, updates).form()


class _Raising:
    def __init__(self, program: Program, updates: dict[int, Any]) -> None:
        self.program, self.updates = program, updates
        self.counter, self.by = -1, 0
        self.offsets: dict[int, int] = {}  # place of a value -> what it adds to the counter
        self.control: set[int] = set()  # ids of calls that only count or compare
        self.numbers: set[int] = set()  # places of what those give
        self.ends = _ends(program, updates)

    def form(self) -> ScanForm:
        program = self.program
        bound, beyond = self._count()
        writes, base = self._writes()
        numbers, rename = self._used_as_numbers(), self._sizes()
        inputs, states, read_back = self._reads(writes, base)
        rename |= read_back
        calls = self._calls(rename, numbers)
        if not inputs:
            raise rule("no array is read at the step")
        carried = [i for i in range(program.variables) if i != self.counter]
        new = [renamed(self.updates[i], rename) for i in carried]
        new += [renamed(writes[op.array].value, rename) for op in states]
        written = {op.array: renamed(op.value, rename) for op in writes.values()}
        y = list(dict.fromkeys(v for v in written.values() if v.place not in program.constants))
        used = [p for c in calls for p in places((c.args, c.kwargs))]
        used += [p for v in new for p in places(v)]
        step = StepForm(
            calls=calls,
            x=(*(op.out for op, _ in inputs), *([self.counter] if numbers else [])),
            state=(*carried, *(op.out for op in states)),
            y=tuple(y),
            new=tuple(new),
            constants=tuple(dict.fromkeys(p for p in used if p in program.constants)),
        )
        outputs = [(array, v if v.place in program.constants else y.index(v)) for array, v in written.items()]
        return ScanForm(
            interned(step), self.counter, self.by, bound, beyond, base, inputs, carried, states, outputs,
            frozenset(self.ends.values()), frozenset(self.ends), bool(numbers),
        )  # fmt: skip

    def _writes(self) -> tuple[dict[int, Write], int]:
        """What is written to each array, once a step; and where: what that adds to the counter."""
        writes: dict[int, Write] = {}
        bases: set[int | None] = set()
        for op in self.program.ops:
            if isinstance(op, Write):
                bases.add(self._offset(op.index))
                if self._offset(op.index) not in ((0,) if self.by > 0 else (0, -1)):
                    raise rule("an array is written elsewhere than at the step", op)
                if op.array in writes:
                    raise rule("an array is written twice in a step", op)
                writes[op.array] = op
        if len(bases) > 1:
            raise rule("arrays are written at different places")
        return writes, bases.pop() or 0 if bases else 0

    def _reads(
        self, writes: Mapping[int, Write], base: int
    ) -> tuple[list[tuple[Read, int]], list[Read], dict[int, Any]]:
        """Reads of arrays that the loop does not write, with what they add to the counter; reads of what was
        written at the step before; and, by their places, the values of those that were written just now."""
        inputs: list[tuple[Read, int]] = []
        states: list[Read] = []
        read_back: dict[int, Any] = {}
        done: set[int] = set()  # the arrays that are written by now
        for op in self.program.ops:
            if isinstance(op, Write):
                done.add(op.array)
            elif isinstance(op, Read):
                offset = self._offset(op.index)
                if offset is None:
                    raise rule("an array is read elsewhere than at the step and the step before", op)
                if any(place not in self.program.constants for place in places(op.default)):
                    raise rule("a default is computed in the loop", op)
                if op.array not in writes:
                    inputs.append((op, offset))
                elif offset == base - self.by:
                    states.append(op)
                elif offset != base:
                    raise rule("an array is read elsewhere than at the step and the step before", op)
                elif op.array not in done:
                    raise rule("an array is read at the step before it is written there", op)
                else:
                    read_back[op.out] = writes[op.array].value
        return inputs, states, read_back

    def _calls(self, rename: Mapping[int, Any], numbers: set[int]) -> tuple[Call, ...]:
        """What the step computes, without lines: the same step written in two places is compiled once."""
        calls: list[Call] = []
        for op in self.program.ops:
            if not isinstance(op, Call) or op.out in rename:
                continue
            if id(op) in self.control and op.out not in numbers:
                continue
            if any(place < 0 for place in places((op.args, op.kwargs))):
                raise rule("a loop inside reads or writes arrays of this one", op)
            calls.append(op)
        return tuple(
            replace(c, args=renamed(c.args, rename), kwargs=renamed(c.kwargs, rename), line="") for c in calls
        )

    def _sizes(self) -> dict[int, Any]:
        """The numbers that follow from sizes: in a scan these are the same at every step."""
        found: dict[int, Any] = {}
        for op in self.program.ops:
            if isinstance(op, Count):
                found[op.out] = self.program.examples[op.out]
            elif isinstance(op, Call):
                outs = range(op.out, op.out + op.count)
                examples = [self.program.examples[place] for place in outs]
                if not any(value is None or isinstance(value, _VALUES) for value in examples):
                    found |= zip(outs, examples, strict=True)
        return found

    def _count(self) -> tuple[Any, int]:
        """Find the counter; the template of the number where it ends, and what is added to that."""
        program = self.program
        ends = [op for op in program.ops if isinstance(op, Break)]
        if len(ends) > 1:
            raise rule("the loop ends in more than one place", ends[1])
        (end,) = ends
        made_by = {op.out: op for op in program.ops if isinstance(op, Call)}
        unlike = rule("the loop does not end where a counted step reaches a fixed number", end)
        tests = self._tests(end, made_by)
        if not tests:
            raise unlike
        name, (left, right) = _name(tests[-1]), tests[-1].args
        for self.counter in range(program.variables):
            self._find_offsets(made_by)
            counted = [isinstance(v, Ref) and v.place in self.offsets for v in (left, right)]
            update = self.updates[self.counter]
            self.by = self.offsets.get(update.place, 0) if isinstance(update, Ref) else 0
            if counted.count(True) == 1:
                break
        else:
            raise unlike
        if counted[1]:
            left, right, name = right, left, _SWAPPED[name]
        if len(tests) % 2 == 0:  # an odd number of negations before it
            name = _OPPOSITE[name]
        if isinstance(right, Ref) and not self._is_fixed(right.place):
            raise unlike
        if getattr(tests[-1].function, "__name__", "") == "equal" and not self._of_one_shape(left, right):
            raise unlike  # as it never ends: torch.equal of two shapes is False
        boot = program.examples[self.counter]
        one = isinstance(boot, Tensor) and boot.numel() == 1 and _whole(boot)
        if not (one and self._whole_bound(right)):
            raise rule("the counter or its bound is not one integer", end)
        if self.by not in _ENDS:
            raise rule("the counter is not updated by step + 1 or step - 1")
        if self.by < 0:  # while arrays grow
            self.ends = {}
            self._find_offsets(made_by)
        if name not in _ENDS[self.by]:
            raise unlike
        self.control.update(id(op) for op in tests)
        self.numbers = {*self.offsets, *(op.out for op in tests)}
        for op in program.ops[: program.ops.index(end)]:
            if isinstance(op, (Read, Write)):
                raise rule("an array is read or written before break_if", op)
        return right, _ENDS[self.by][name] - self.offsets[left.place]

    @staticmethod
    def _tests(end: Break, made_by: Mapping[int, Call]) -> list[Call]:
        """The comparison that ends a loop, after what negates it; none where it is no comparison of two."""
        tests: list[Call] = []
        test = made_by.get(end.condition.place)
        while test is not None and _name(test) in _NOT and len(test.args) == 1:
            tests.append(test)
            test = made_by.get(test.args[0].place) if isinstance(test.args[0], Ref) else None
        if test is None or len(test.args) != 2 or test.kwargs or _name(test) not in _SWAPPED:
            return []
        return [*tests, test]

    def _is_fixed(self, place: int) -> bool:
        """Whether a value is the same at every step: a constant, a size, or a number of Python's."""
        sizes = (op.out for op in self.program.ops if isinstance(op, Count))
        if place in self.program.constants or place in sizes:
            return True
        return place >= 0 and isinstance(self.program.examples[place], (int, torch.SymInt))

    def _of_one_shape(self, *templates: Any) -> bool:
        shapes = {getattr(ScanForm.example(self.program, template), "shape", None) for template in templates}
        return len(shapes) == 1

    def _whole_bound(self, bound: Any) -> bool:
        value = bound.value if isinstance(bound, Literal) else bound
        if isinstance(bound, Ref):
            value = self.program.constants.get(bound.place, self.program.examples[bound.place])
        if isinstance(value, torch.SymInt):
            return True
        return type(value) is int or (isinstance(value, Tensor) and value.numel() == 1 and _whole(value))

    def _find_offsets(self, made_by: dict[int, Call]) -> None:
        self.offsets = _offsets(made_by.values(), self.counter, *self.ends)
        self.control = {id(made_by[out]) for out in self.offsets if out in made_by}

    def _offset(self, index: Any) -> int | None:
        """What an index adds to the counter; None for another."""
        return self.offsets.get(index.place) if isinstance(index, Ref) else None

    def _used_as_numbers(self) -> set[int]:
        """The places of the counter, and of what only counts or compares, that the step computes with."""
        read: list[Any] = [update for at, update in self.updates.items() if at != self.counter]
        for op in self.program.ops:
            if isinstance(op, Write):
                read.append(op.value)
            elif isinstance(op, Call) and id(op) not in self.control:
                read.append((op.args, op.kwargs))
        used = self.numbers.intersection(places(tuple(read)))
        for op in reversed(self.program.ops):
            if isinstance(op, Call) and op.out in used:
                used |= self.numbers.intersection(places((op.args, op.kwargs)))
        return used


def offsets_from(program: Program, variable: int) -> dict[int, int]:
    """What is a number more or less than a loop variable, by place."""
    return _offsets([op for op in program.ops if isinstance(op, Call)], variable)


def _ends(program: Program, updates: dict[int, Any]) -> dict[int, int]:
    """The sizes of arrays, by their places, that the loop only writes or reads at, such as those of
    `array.write(value)`: where one value is written in each step, that size counts as the step does."""
    first: dict[int, int] = {}  # where an array is written
    for at, op in enumerate(program.ops):
        if isinstance(op, Write):
            first.setdefault(op.array, at)
    calls = [op for op in program.ops if isinstance(op, Call)]
    sizes = [(at, op) for at, op in enumerate(program.ops) if isinstance(op, Count)]
    ends = {op.out: op.array for at, op in sizes if at < first.get(op.array, 0)}
    derived = _offsets(calls, *ends)
    used: list[Any] = [*updates.values()]
    for op in program.ops:
        if isinstance(op, Call) and op.out not in derived:
            used.append((op.args, op.kwargs))
        elif isinstance(op, Write):
            used.append(op.value)
        elif isinstance(op, Read):
            used.append(op.default)
        elif isinstance(op, (Break, Guard)):
            used.append(op.condition if isinstance(op, Break) else op.of)
    if not derived.keys().isdisjoint(places(tuple(used))):
        return {}
    return ends


def _offsets(calls: Iterable[Call], *variables: int) -> dict[int, int]:
    found = dict.fromkeys(variables, 0)
    for op in calls:
        if op.kwargs or len(op.args) != 2:
            continue
        a, b = op.args
        sign = {"add": 1, "sub": -1}.get(_name(op))
        if sign == 1 and isinstance(b, Ref):
            a, b = b, a
        if sign and isinstance(a, Ref) and a.place in found and type(b) is int:
            found[op.out] = found[a.place] + sign * b
    return found


def _name(op: Call) -> str:
    """`add` for torch.add, Tensor.add and Tensor.__add__; `eq` and `ge` likewise."""
    name = getattr(op.function, "__name__", "")
    plain = name.strip("_")
    return _NAMES.get(plain, plain)


def _whole(value: Tensor) -> bool:
    return not value.dtype.is_floating_point and not value.dtype.is_complex and value.dtype != torch.bool
