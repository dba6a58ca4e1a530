"""The form of a scan in a recorded program: what holds for every loop that was recorded the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.in_graph import is_exporting
from stepnet.data.lod import LoDTensor
from stepnet.data.values import whole_number
from stepnet.errors import Unsupported
from stepnet.watchers import instead

from .frame import WhileLoop
from .lines import Line, line_in, lines_of, name_of
from .program import Program
from .recorded import Break, Call, Count, Guard, Op, Read, Write
from .recorded_step import StepForm, interned
from .template import Packed, Ref, places, ref, renamed

_ENDS = {
    1: ("eq", "ge", "gt"),
    -1: ("eq", "le", "lt"),
}  # where a difference grows, or shrinks
_OPPOSITE = {"ne": "eq", "eq": "ne", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_VALUES = (Tensor, LoDTensor, TensorArray)
_NOT, _ALL = {"logical_not", "bitwise_not", "invert"}, {"all", "any"}
_WHOLE = Packed(slice, (None, None, None))
_FARTHEST = 8  # what is read so many turns after it was written is carried in as many states


@dataclass(frozen=True)
class Element:
    """`values[out] = x[..., at]`, of a tensor that is there before the loop; `kept`: `at : at + 1`."""

    place: int
    axis: int
    kept: bool
    out: int
    line: str


@dataclass
class ScanForm:
    """A program that is a scan. Where it reads and writes is a `Line` of what is known before the loop.

    Attributes:
        counters: the loop variables that count, and what they count by.
        end: what ends the loop: how it is compared with 0, and what that is.
        by: 1 if the rows of the scan are its turns, -1 if they are its turns from the last to the first.
        inputs: reads at each turn of what the loop leaves alone.
        fixed: reads that give the same at each turn.
        counted: the counter that is an input after those, as the step is used as a number; or None.
        clocked: whether there is no other input than one that says how many turns there are.
        carried: the other loop variables; they are the first states.
        states: reads of what was written turns before, and how many; a state for each of these turns.
        outputs: arrays that are written, where, and their place among the step's results, or the constant.
        ends: the places of sizes of arrays that grow by one in each turn.
        numbers, sizes: constants, and sizes of arrays as lines, that the form was found with.
        narrow: what is computed in fewer than 64 bits.
    """

    step: StepForm
    counters: dict[int, int]
    slopes: dict[int, int]
    end: tuple[str, Line, Line]
    by: int
    inputs: list[tuple[Read | Element, Line]]
    fixed: list[tuple[Read, Line]]
    counted: int | None
    clocked: bool
    carried: list[int]
    states: list[tuple[Read, int, Line]]
    outputs: list[tuple[int, Line, int | Ref]]
    ends: frozenset[int]
    numbers: dict[int, int]
    sizes: list[tuple[int, Line]]
    narrow: set[tuple[torch.dtype, Line]]
    row_like: dict[Any, set[Any]] = field(default_factory=dict)  # sizes, and steps, of rows seen to be alike
    as_row: set[Any] = field(default_factory=set)  # sizes with which it ran as one row, and not as it is
    too_long: dict[Any, Unsupported] = field(default_factory=dict)  # sizes with which frames inside are long

    @property
    def lines(self) -> Iterator[Line]:
        """All lines."""
        yield from self.end[1:]
        yield from (line for _, line in (*self.inputs, *self.fixed, *self.sizes))
        yield from (line for _, line, _ in self.outputs)
        yield from (line for _, _, line in self.states)
        yield from (line for _, line in self.narrow)


def like_of(program: Program, template: Any, held: Mapping[int, Any] | None = None) -> Any:
    """What a value is like. `held`: those that do not change, if these are more than the constants."""
    if not isinstance(template, Ref):
        return None
    known = program.constants if held is None else held
    return known[template.place] if template.place in known else program.examples[template.place]


def rule(text: str, op: Op | Element | None = None) -> Unsupported:
    """The refusal of a loop that breaks a rule."""
    return Unsupported(text if op is None else f"{text} ({op.line})")


def check_takes_no_arrays(op: Op) -> None:
    """Refuse a call that is given arrays: a frame inside."""
    if isinstance(op, Call) and any(place < 0 for place in places((op.args, op.kwargs))):
        raise rule("a loop inside reads or writes arrays", op)


def in_file() -> bool:
    """Whether the loop becomes part of a file or of an exported program, where numbers may be left open: only
    a loop over arrays is a scan then, and one that counts by numbers which stand in it."""
    return is_exporting() or instead() is not None


def scan_form(loop: WhileLoop) -> ScanForm:
    """See a loop as a scan.

    Raises:
        Unsupported: the rule that it breaks.
    """
    return _Raising(loop).form()


class _Raising:
    def __init__(self, loop: WhileLoop) -> None:
        self.loop, self.program, self.updates = loop, loop.program, loop.updates
        program = self.program
        self.calls = [op for op in program.ops if isinstance(op, Call)]
        self.made_by = {op.out: op for op in self.calls}
        self.numbers: dict[int, int] = {}
        self.saved = in_file()
        self.arrays = {op.out: op.array for op in program.ops if isinstance(op, Count)}
        self.lines = lines_of(self.calls, program.wholes())
        self.slopes: dict[int, int] = dict.fromkeys(_growing(program), 1)
        self._find_counters()
        self.tests, self.negated = self._tests()
        self.tested = {op.out for op in self.tests}
        if not self._only_places():
            self.slopes = {place: by for place, by in self.slopes.items() if place not in self.arrays}
        self.sizes: list[tuple[int, Line]] = []

    def form(self) -> ScanForm:
        """What the loop goes over, what its step is given, carries and gives, and where that is written."""
        program = self.program
        self._tie_sizes()
        end = self._end()
        writes = self._writes()
        found, fixed, states, read_back = self._reads(writes)
        inputs: list[Any] = sorted([*found, *self._elements()], key=lambda pair: pair[0].out)
        rename = self._sizes() | read_back
        used_lines = [*end[1:], *(line for _, line in writes.values()), *(line for _, line in inputs)]
        used_lines += [line for _, line in fixed]
        elements = {op.out for op, _ in inputs if isinstance(op, Element)}
        counters, counted, used = self._counters(used_lines, elements)
        carried = [i for i in range(program.variables) if i not in counters]
        clocked = not inputs and counted is None
        if (clocked and not (states or carried)) or (self.saved and not inputs):
            raise rule("no array is read at the step")
        calls = self._calls(rename, used, elements)
        fresh = iter(range(len(program.examples), 1 << 62))
        x = [op.out for op, _ in inputs] + [counted] * (counted is not None) + [next(fresh)] * clocked
        state, new = [*carried], [renamed(self.updates[i], rename) for i in carried]
        for op, distance, _ in states:
            chain = [op.out, *(next(fresh) for _ in range(distance - 1))]  # the oldest first
            state += chain
            new += [*(ref(place) for place in chain[1:]), renamed(writes[op.array][0].value, rename)]
        written = {a: (line, renamed(op.value, rename)) for a, (op, line) in writes.items()}
        y = list(dict.fromkeys(v for _, v in written.values() if v.place not in program.constants))
        needed = [p for c in calls for p in places((c.args, c.kwargs))]
        needed += [p for v in new for p in places(v)]
        held = {*program.constants, *(op.out for op, _ in fixed)}
        step = StepForm(
            calls=calls,
            x=tuple(x),
            state=tuple(state),
            y=tuple(y),
            new=tuple(new),
            constants=tuple(dict.fromkeys(p for p in needed if p in held)),
        )
        if any(v.place in held and v.place not in program.constants for _, v in written.values()):
            raise rule("what is read at one place is written at every step")
        outputs = [
            (array, line, v if v.place in program.constants else y.index(v))
            for array, (line, v) in written.items()
        ]
        first = next((line for _, line, _ in outputs), None) or next((line for _, line in inputs), Line(0))
        return ScanForm(
            interned(step), counters, self.slopes, end, -1 if first.by(self.slopes) < 0 else 1, inputs, fixed,
            counted, clocked, carried, states, outputs,
            frozenset(place for place in self.arrays if place in self.slopes), self.numbers, self.sizes,
            self._narrow(),
        )  # fmt: skip

    def _counters(
        self, lines: Iterable[Line], elements: set[int]
    ) -> tuple[dict[int, int], int | None, set[int]]:
        """The counters that lines go along, with how far each counts; the one that the step is given as a
        number; and what it uses as numbers."""
        terms = {place for line in lines for place, _ in line.terms}
        counters = {
            i: by for i, by in self.slopes.items() if i < self.program.variables and by and i in terms
        }
        counted, used = None, self._used_as_numbers(counters, elements)
        for i in sorted(used & counters.keys()):
            if counted is None:
                counted = i
            else:  # the others are carried
                del counters[i]
                used = self._used_as_numbers(counters, elements)
        return counters, counted, used

    def _find_counters(self) -> None:
        """The loop variables that change by the same number in each turn."""
        program = self.program
        for i in range(program.variables):
            update = self.updates[i]
            line = self.lines.get(update.place) if isinstance(update, Ref) else None
            change = None if line is None else line.plus(Line.of(i), -1)
            if change is None or i not in self.lines:
                continue
            known = all(type(program.constants.get(place)) in _PLAIN for place, _ in change.terms)
            if change.terms and (self.saved or not known):
                continue
            for place, _ in change.terms:
                self.numbers[place] = _number(program.constants[place])
            self.slopes[i] = change.at(self.numbers)

    def _line(self, part: Any) -> tuple[Line, int] | None:
        """A number as a line, and what it changes by in each turn; None for another."""
        line = line_in(self.lines, part)
        if line is None or any(p < self.program.variables and p not in self.slopes for p, _ in line.terms):
            return None
        return line, line.by(self.slopes)

    def _narrow(self) -> set[tuple[torch.dtype, Line]]:
        """The tensors of fewer than 64 bits that are lines: these do not hold all numbers."""
        found = set[tuple[torch.dtype, Line]]()
        for place in self.lines:
            at, like = self._line(ref(place)), like_of(self.program, ref(place))
            if at is not None and isinstance(like, Tensor) and like.dtype != torch.int64:
                found.add((like.dtype, at[0]))
        return found

    def _tests(self) -> tuple[list[Call], bool]:
        """The comparison that ends a loop, after what negates it, or asks for all of its elements; and
        whether it is negated. No call where it is no comparison of two."""
        ends = [op for op in self.program.ops if isinstance(op, Break)]
        if len(ends) > 1:
            raise rule("the loop ends in more than one place", ends[1])
        tests, negated = list[Call](), False
        test = self.made_by.get(ends[0].condition.place)
        while test is not None and name_of(test) in _NOT | _ALL and len(test.args) == 1 and not test.kwargs:
            tests.append(test)
            negated ^= name_of(test) in _NOT
            test = self.made_by.get(test.args[0].place) if isinstance(test.args[0], Ref) else None
        if test is None or len(test.args) != 2 or test.kwargs or name_of(test) not in _OPPOSITE:
            return [], False
        return [*tests, test], negated

    def _end(self) -> tuple[str, Line, Line]:
        """How two numbers are compared, and which, to end the loop."""
        program = self.program
        end = next(op for op in program.ops if isinstance(op, Break))
        unlike = rule("the loop does not end where a counted step reaches a fixed number", end)
        if not self.tests:
            raise unlike.fresh()
        test = self.tests[-1]
        left, right = map(self._line, test.args)
        if left is None or right is None or left[1] == right[1]:
            raise unlike.fresh()
        name = _OPPOSITE[name_of(test)] if self.negated else name_of(test)
        if name not in _ENDS[1 if left[1] > right[1] else -1]:
            raise unlike.fresh()
        if getattr(test.function, "__name__", "") == "equal" and not self._of_one_shape(*test.args):
            raise unlike.fresh()  # as it never ends: torch.equal of two shapes is False
        for op in program.ops[: program.ops.index(end)]:
            if isinstance(op, (Read, Write)) or (isinstance(op, Call) and self._element(op) is not None):
                raise rule("an array is read or written before break_if", op)
        return name, left[0], right[0]

    def _of_one_shape(self, *templates: Any) -> bool:
        shapes = {getattr(like_of(self.program, template), "shape", None) for template in templates}
        return len(shapes) == 1

    def _only_places(self) -> bool:
        """Whether the loop only writes, reads and ends at sizes of arrays that grow."""
        derived = {
            out
            for out, line in self.lines.items()
            for p, _ in line.terms
            if p in self.arrays and p in self.slopes
        }
        used: list[Any] = [*self.updates.values()]
        for op in self.program.ops:
            if isinstance(op, Call) and not _gives_only({*derived, *self.tested}, op):
                used.append((op.args, op.kwargs))
            elif isinstance(op, Write):
                used.append(op.value)
            elif isinstance(op, Read):
                used.append(op.default)
            elif isinstance(op, Guard):
                used.append(op.of)
        return derived.isdisjoint(places(tuple(used)))

    def _tie_sizes(self) -> None:
        """Find what sizes of arrays that grow are: they count by themselves, where the array is only used at
        its size; where it is written or read at a counter, they are that counter, if they begin with it."""
        for place, array in self.arrays.items():
            if place not in self.slopes:
                continue
            ops = [op for op in self.program.ops if isinstance(op, (Read, Write)) and op.array == array]
            lines = [found and found[0] for found in (self._line(op.index) for op in ops)]
            (written,) = (line for op, line in zip(ops, lines, strict=True) if isinstance(op, Write))
            others = [line for line in lines if line is not None and place not in dict(line.terms)]
            if written == Line.of(place) and not others:
                continue
            counts = replace((written if written in others else others[0]) if others else Line(0), const=0)
            begins = self.program.arrays[array].size() - counts.at(_values(self.loop, [counts]))
            here = Line(begins).plus(counts)
            alike = type(begins) is int and counts.by(self.slopes) == 1
            if not alike or written not in (here, Line.of(place)):
                del self.slopes[place]
                continue
            self.sizes.append((array, here))
            for out, line in self.lines.items():
                self.lines[out] = line.plus(here.plus(Line.of(place), -1), dict(line.terms).get(place, 0))

    def _writes(self) -> dict[int, tuple[Write, Line]]:
        """What is written to each array, once a step; and where."""
        writes: dict[int, tuple[Write, Line]] = {}
        for op in self.program.ops:
            if isinstance(op, Write):
                at = self._line(op.index)
                if at is None or abs(at[1]) != 1:
                    raise rule("an array is written elsewhere than at the step", op)
                if op.array in writes:
                    raise rule("an array is written twice in a step", op)
                writes[op.array] = op, at[0]
        return writes

    def _reads(self, writes: Mapping[int, tuple[Write, Line]]) -> tuple[Any, Any, Any, dict[int, Any]]:
        """Reads of arrays that the loop does not write, where these move and where not; reads of what was
        written turns before, with their number; and, by their places, values that were written just now."""
        inputs, fixed, states, read_back = [], [], [], {}
        done: set[int] = set()  # the arrays that are written by now
        for op in self.program.ops:
            if isinstance(op, Write):
                done.add(op.array)
            if not isinstance(op, Read):
                continue
            elsewhere = rule("an array is read elsewhere than at the step and at steps before", op)
            at = self._line(op.index)
            if at is None:
                raise elsewhere.fresh()
            if any(place not in self.program.constants for place in places(op.default)):
                raise rule("a default is computed in the loop", op)
            if op.array not in writes:
                (inputs if at[1] else fixed).append((op, at[0]))
                continue
            write, line = writes[op.array]
            by = line.by(self.slopes)
            behind = line.plus(at[0], -1)
            distance = behind.const * by
            if behind.terms or not 0 <= distance <= _FARTHEST:
                raise elsewhere.fresh()
            if distance:
                states.append((op, distance, line))
            elif op.array not in done:
                raise rule("an array is read at the step before it is written there", op)
            else:
                read_back[op.out] = write.value
        return inputs, fixed, states, read_back

    def _elements(self) -> list[tuple[Element, Line]]:
        """What is read of tensors at the step. A file's loop has a condition, and takes them by the index."""
        if self.saved:
            return []
        return [found for found in map(self._element, self.calls) if found is not None]

    def _element(self, op: Call) -> tuple[Element, Line] | None:
        """A read of a tensor at the step; none is what a line does without gradients, or in other modes."""
        if op.function is not Tensor.__getitem__ or len(op.args) != 2 or not isinstance(op.args[0], Ref):
            return None
        whole: Any = self.program.constants.get(op.args[0].place)
        index = op.args[1]
        index = index if type(index) is tuple else (index,)
        if not (index and all(part == _WHOLE for part in index[:-1])):
            return None
        axis, last = len(index) - 1, index[-1]
        kept = isinstance(last, Packed) and last.kind is slice and last.items[2] in (None, 1)
        start, stop = last.items[:2] if kept else (last, None)
        at = self._line(start) if isinstance(start, Ref) else None
        end = self._line(stop) if isinstance(stop, Ref) else None
        like = self.program.examples[op.out]
        if at is None or not at[1] or type(whole) not in _PLAIN or not isinstance(like, Tensor):
            return None
        if kept and (end is None or end[0].plus(at[0], -1) != Line(1)):
            return None
        one = (1,) if kept else ()
        if whole.dim() <= axis or like.shape != (*whole.shape[:axis], *one, *whole.shape[axis + 1 :]):
            return None
        return Element(op.args[0].place, axis, kept, op.out, op.line), at[0]

    def _calls(self, rename: Mapping[int, Any], used: set[int], elements: set[int]) -> tuple[Call, ...]:
        """What the step computes, without lines: the same step written in two places is compiled once."""
        calls: list[Call] = []
        for op in self.calls:
            if op.out in rename or op.out in elements:
                continue
            if _gives_only({*self.lines, *self.tested} - used, op):
                continue
            check_takes_no_arrays(op)
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

    def _used_as_numbers(self, counters: Iterable[int], elements: set[int]) -> set[int]:
        """The places of counters, and of what only counts or compares, that the step computes with."""
        numbers = {*self.lines, *self.tested}
        read: list[Any] = [update for at, update in self.updates.items() if at not in counters]
        for op in self.program.ops:
            if isinstance(op, Write):
                read.append(op.value)
            elif isinstance(op, Call) and not _gives_only(numbers, op) and op.out not in elements:
                read.append((op.args, op.kwargs))
        used = numbers.intersection(places(tuple(read)))
        for op in reversed(self.calls):
            if op.out in used:
                used |= numbers.intersection(places((op.args, op.kwargs)))
        return used


def _gives_only(found: set[int], op: Call) -> bool:
    """Whether all that a call gives stands at some places: a while loop gives its count and more."""
    return found.issuperset(range(op.out, op.out + op.count))


_PLAIN = (Tensor, torch.nn.Parameter)


def _number(value: Any) -> int:
    return whole_number(value) if isinstance(value, Tensor) else value


def _values(loop: WhileLoop, lines: Iterable[Line]) -> dict[int, Any]:
    """The numbers that lines are made of, before the loop."""
    program, found = loop.program, dict[int, Any]()
    sizes = {op.out: op.array for op in program.ops if isinstance(op, Count)}
    for line in lines:
        for place, _ in line.terms:
            if place < program.variables:
                found[place] = _number(loop.loop_vars[place])
            elif place in sizes:
                found[place] = program.arrays[sizes[place]].size()
            elif place not in found:
                found[place] = _number(program.constants.get(place, program.examples[place]))
    return found


def values_of(loop: WhileLoop, form: ScanForm) -> dict[int, Any] | None:
    """The numbers that the lines of a form are made of; None where the form is of other numbers."""
    constants = loop.program.constants
    if any(_number(constants[place]) != number for place, number in form.numbers.items()):
        return None
    values = _values(loop, form.lines)
    same = all(loop.program.arrays[array].size() == line.at(values) for array, line in form.sizes)
    return values if same else None


def offsets_from(program: Program, variable: int) -> dict[int, int]:
    """What is a number more or less than a loop variable, by place."""
    lines = lines_of([op for op in program.ops if isinstance(op, Call)], [variable])
    return {place: line.const for place, line in lines.items() if line.terms == ((variable, 1),)}


def _growing(program: Program) -> list[int]:
    """The places of sizes of arrays that are written once in a turn, below where their size is asked for."""
    writes = [(op.array, at) for at, op in enumerate(program.ops) if isinstance(op, Write)]
    counts = [(op, at) for at, op in enumerate(program.ops) if isinstance(op, Count)]
    return [
        op.out for op, at in counts
        if [below > at for array, below in writes if array == op.array] == [True]
    ]  # fmt: skip
