"""Raising: a recorded while loop that is a scan over arrays becomes a step, its inputs and its states.

It is one if it counts a step, reads arrays at `step` and `step - 1`, and writes at `step`. Then what was
read at `step` from an array that the loop leaves alone is an input; what was read at `step - 1` from one
that it writes is a state; and what is written is an output. Anything else is a broken rule, said as a
Refusal, and the loop runs as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepnet.data.values import integer
from stepnet.errors import Refusal

from .frame import WhileLoop, resolve, run_call
from .step import describe_leaf
from .symbolic import Break, Call, Op, Read, Ref, Write, flatten_call

_ENDS = {"eq": "eq", "__eq__": "eq", "ge": "ge", "__ge__": "ge"}
_MATMUL = {"matmul", "__matmul__", "mv", "__rmatmul__"}


class RecordedStep:
    """The calls of a frame as a step: `step(x, state) -> (written values, new state)`, all of them tuples."""

    __name__ = "the while loop"

    def __init__(
        self, calls: list[Call], x: list[int], state: list[int], y: list[Ref], new: list[Any]
    ) -> None:
        self.calls, self.x, self.state, self.y, self.new = calls, x, state, y, new

    def __call__(self, x: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Any, Any]:
        values: dict[int, Any] = dict(zip((*self.x, *self.state), (*x, *state), strict=True))
        for call in self.calls:
            run_call(call, values)
        return tuple(values[ref.place] for ref in self.y), tuple(resolve(new, values) for new in self.new)


@dataclass
class Raised:
    """A scan: `step` over `x` ([T, ...] each) from `state`; `finish` hands its results out."""

    step: RecordedStep
    x: list[Tensor]
    state: list[Tensor]
    finish: Callable[[list[Tensor], list[Tensor]], list[Tensor]]

    @property
    def rowwise(self) -> bool:
        """True if the first dimension of every value may count rows."""
        sizes = {v.shape[1] if v.dim() > 1 else None for v in self.x}
        sizes |= {v.shape[0] if v.dim() > 0 else None for v in self.state}
        return len(sizes) == 1 and None not in sizes

    def one_row(self) -> Raised:
        """The same scan with each value as the one row of a batch.

        Raises:
            Refusal: a recorded call treats a row of a batch otherwise than the value alone.
        """
        step = self.step
        lifted = RecordedStep([_lifted(c) for c in step.calls], step.x, step.state, step.y, step.new)
        x, state = [v.unsqueeze(1) for v in self.x], [v.unsqueeze(0) for v in self.state]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            ys, new = step(tuple(v[0] for v in self.x), tuple(self.state))
            try:
                row_ys, row_new = lifted(tuple(v[0] for v in x), tuple(state))
            except (RuntimeError, IndexError) as error:
                raise _Rule("a recorded call does not take values as rows of a batch") from error
        for alone, row in zip((*ys, *new), (*row_ys, *row_new), strict=True):
            if row.shape != (1, *alone.shape) or not torch.allclose(row[0], alone, equal_nan=True):
                raise _Rule("a recorded call treats a row of a batch otherwise than the value alone")

        def finish(ys: list[Tensor], last: list[Tensor]) -> list[Tensor]:
            return self.finish([y.squeeze(1) for y in ys], [v.squeeze(0) for v in last])

        return Raised(lifted, x, state, finish)


def _Rule(text: str, op: Op | None = None) -> Refusal:
    return Refusal(text if op is None else f"{text} ({op.line})")


def raise_loop(loop: WhileLoop) -> Raised:
    """See a recorded loop as a scan.

    Raises:
        Refusal: the rule that it breaks.
    """
    return _Raising(loop).raised()


@dataclass
class _Raising:
    loop: WhileLoop
    counter: int = -1
    offsets: dict[int, int] = field(default_factory=dict)  # place of a value -> what it adds to the counter
    control: set[int] = field(default_factory=set)  # ids of calls that only count or compare

    def raised(self) -> Raised:
        program, loop = self.loop.program, self.loop
        start, steps = self._count()
        writes: dict[int, Write] = {}
        for op in program.ops:
            if isinstance(op, Write):
                if self._offset(op.index) != 0:
                    raise _Rule("an array is written elsewhere than at the step", op)
                if id(op.array) in writes:
                    raise _Rule("an array is written twice in a step", op)
                writes[id(op.array)] = op
        calls: list[Call] = []
        x_places: list[int] = []
        x: list[Tensor] = []
        carried: list[tuple[int, Tensor, Any]] = [
            (i, loop.loop_vars[i], loop.updates[i]) for i in range(len(loop.loop_vars)) if i != self.counter
        ]
        rename: dict[int, Any] = {}  # what is read back in the step that wrote it
        done: set[int] = set()
        for op in program.ops:
            if isinstance(op, Read):
                offset = self._offset(op.index)
                write = writes.get(id(op.array))
                if offset is None or offset > 0:
                    raise _Rule("an array is read elsewhere than at the step and the step before", op)
                if any(isinstance(leaf, Ref) for leaf in flatten_call(op.default)):
                    raise _Rule("a default is computed in the loop", op)
                if write is None:
                    x_places.append(op.out)
                    x.append(self._column(op, start + offset, steps))
                elif offset == -1:
                    carried.append((op.out, op.array.read(start - 1, op.default), write.value))
                elif id(write) in done:
                    rename[op.out] = write.value
                else:
                    raise _Rule("an array is read at the step before it is written there", op)
            elif isinstance(op, Write):
                done.add(id(op))
            elif isinstance(op, Call) and id(op) not in self.control:
                self._check_free_of_counter((op.args, op.kwargs), op)
                calls.append(op)
        if not x:
            raise _Rule("no array is read at the step")
        # Without lines: the same step written in two places is one step, compiled once.
        calls = [
            replace(c, args=_renamed(c.args, rename), kwargs=_renamed(c.kwargs, rename), line="")
            for c in calls
        ]
        new = [_renamed(value, rename) for _, _, value in carried]
        for (place, boot, _), value in zip(carried, new, strict=True):
            self._check_state(place, boot, value)
        outputs = [(w.array, _renamed(w.value, rename), w) for w in writes.values()]
        for _, value, op in outputs:
            self._check_free_of_counter(value, op)
        y = list({v.place: v for _, v, _ in outputs if isinstance(v, Ref)}.values())
        step = RecordedStep(calls, x_places, [place for place, _, _ in carried], y, new)

        def finish(ys: list[Tensor], last: list[Tensor]) -> list[Tensor]:
            columns = {ref.place: values for ref, values in zip(y, ys, strict=True)}
            for array, value, _ in outputs:
                constant = not isinstance(value, Ref)
                array._put(start, value.expand(steps, *value.shape) if constant else columns[value.place])
            results = list(loop.loop_vars)
            results[self.counter] = results[self.counter] + steps
            for (place, _, _), value in zip(carried, last, strict=True):
                if place < len(results):
                    results[place] = value
            return results

        return Raised(step, x, [boot for _, boot, _ in carried], finish)

    def _count(self) -> tuple[int, int]:
        """Where the counter starts and how many steps there are."""
        program, loop = self.loop.program, self.loop
        ends = [op for op in program.ops if isinstance(op, Break)]
        if len(ends) > 1:
            raise _Rule("the loop ends in more than one place", ends[1])
        (end,) = ends
        made_by = {op.out: op for op in program.ops if isinstance(op, Call)}
        test = made_by.get(end.condition.place)
        name = _name(test) if test is not None else ""
        operands = list(test.args) if test is not None and len(test.args) == 2 else []
        counters = [v.place for v in operands if isinstance(v, Ref) and v.place < len(loop.loop_vars)]
        fixed = [v for v in operands if not isinstance(v, Ref)]
        swapped = name == "ge" and bool(operands) and not isinstance(operands[0], Ref)
        if test is None or name not in _ENDS.values() or len(counters) != 1 or len(fixed) != 1 or swapped:
            raise _Rule("the loop does not end where a counted step reaches a fixed number", end)
        self.counter = counters[0]
        boot = loop.loop_vars[self.counter]
        if boot.dim() or boot.dtype.is_floating_point or boot.dtype == torch.bool or not _whole(fixed[0]):
            raise _Rule("the counter or its bound is not one integer", end)
        start, stop = int(boot), integer(fixed[0], "bound")
        self._find_offsets(made_by)
        self.control.add(id(test))
        update = loop.updates[self.counter]
        if not isinstance(update, Ref) or self.offsets.get(update.place) != 1:
            raise _Rule("the counter is not updated by step + 1")
        for op in program.ops[: program.ops.index(end)]:
            if not isinstance(op, Call):
                raise _Rule("an array is read or written before break_if", op)
        steps = stop - start
        if steps <= 0:
            raise _Rule("there are no steps")
        if loop.max_steps is not None and steps > loop.max_steps:
            raise _Rule("there are more steps than max_steps")
        return start, steps

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
        """An index as the counter plus a number."""
        offset = self.offsets.get(index.place) if isinstance(index, Ref) else None
        return offset if offset in (0, -1) else None

    def _check_free_of_counter(self, tree: Any, op: Op) -> None:
        places = {leaf.place for leaf in flatten_call(tree) if isinstance(leaf, Ref)}
        tests = {c.out for c in self.loop.program.ops if isinstance(c, Call) and id(c) in self.control}
        if places & (set(self.offsets) | tests):
            raise _Rule("the step is used as a number, not only to count and to index", op)

    def _check_state(self, place: int, boot: Any, value: Any) -> None:
        like = self.loop.program.examples[value.place] if isinstance(value, Ref) else value
        if like is None or not isinstance(boot, Tensor):
            raise _Rule("the shape of a state is not known before the loop runs")
        if (like.shape, like.dtype) != (boot.shape, boot.dtype):
            raise _Rule(
                f"what is read at the step before the first is {describe_leaf(boot)}, "
                f"and what is written {describe_leaf(like)}"
            )

    @staticmethod
    def _column(op: Read, first: int, steps: int) -> Tensor:
        """What a read gives at every step, stacked."""
        whole = op.array._whole
        if whole is not None and first >= 0 and first + steps <= len(whole):
            return whole.narrow(0, first, steps)
        values = [op.array.read(place, op.default) for place in range(first, first + steps)]
        like = values[0]
        if not all(type(v) is type(like) and v.shape == like.shape and v.dtype == like.dtype for v in values):
            raise _Rule("the values of an array differ in shape or dtype", op)
        if not isinstance(like, Tensor):
            raise _Rule("an array holds LoDTensors", op)
        return torch.stack(values)


def _name(op: Call) -> str:
    """`add` for torch.add, Tensor.add and Tensor.__add__; `eq` and `ge` likewise."""
    name = getattr(op.function, "__name__", "")
    plain = name.strip("_")
    return {"radd": "add", "subtract": "sub", "greater_equal": "ge"}.get(plain, plain)


def _whole(bound: Any) -> bool:
    if isinstance(bound, Tensor):
        return bound.numel() == 1 and not bound.dtype.is_floating_point and bound.dtype != torch.bool
    return type(bound) is int


def _renamed(tree: Any, new: dict[int, Any]) -> Any:
    if not new:
        return tree
    refs: Iterator[Ref] = (leaf for leaf in flatten_call(tree) if isinstance(leaf, Ref))
    table = {ref.place: ref for ref in refs}
    return resolve(tree, {place: new.get(place, ref) for place, ref in table.items()})


def _matvec(vector: Tensor, matrix: Tensor) -> Tensor:
    return vector @ matrix.mT


def _lifted(call: Call) -> Call:
    """The call for rows of a batch: a matrix times a vector is written from the other side."""
    if getattr(call.function, "__name__", "") in _MATMUL and len(call.args) == 2:
        a, b = call.args
        if isinstance(a, Tensor) and a.dim() == 2 and isinstance(b, Ref):
            return replace(call, function=_matvec, args=(b, a))
    return call
