"""The graph form of a while loop: a frame is recorded once, and run when it is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.recording import RECORDER, StandIn
from stepnet.data.tree import flatten
from stepnet.errors import StepError

from .program import Break, Call, Op, Program, Read, Write, named
from .step import describe_leaf
from .symbolic import Symbolic, flatten_call
from .template import resolve

Runner = Callable[["WhileLoop"], Sequence[Any]]


class WhileLoop:
    """A while loop written as a frame; made by `stepnet.create_whileloop`.

    Attributes:
        results: the loop variables after the last step, in the order of `loop_vars`.
    """

    def __init__(
        self, loop_vars: Sequence[Any], max_steps: int | None, runner: Runner, site: Any = None
    ) -> None:
        if type(loop_vars) not in (tuple, list) or not all(_is_tensor(v) for v in loop_vars):
            raise StepError(
                "create_whileloop: loop_vars must be a list of tensors",
                got=[describe_leaf(v) for v in loop_vars]
                if isinstance(loop_vars, (tuple, list))
                else describe_leaf(loop_vars),
                remedy="loop_vars=[torch.tensor(0)]; TensorArrays are used in the frame as they are",
            )
        self.loop_vars: list[Any] = list(loop_vars)
        self.max_steps = max_steps
        self.program = Program(self.loop_vars, site)
        self.updates: dict[int, Any] = {}  # place of a loop variable -> the template of its next value
        self.executor = ""
        self.reason: str | None = None
        self.place = ""  # where it is recorded, if it is on a tape
        self._runner = runner
        self._frame: Frame | None = None
        self._results: tuple[Tensor, ...] | None = None

    def frame(self) -> Frame:
        """The frame to write the loop in: `with loop.frame() as (step,):`.

        Raises:
            StepError: the loop has a frame already.
        """
        if self._frame is not None:
            raise StepError(
                "a while loop has one frame, and this loop's was entered before",
                remedy="create_whileloop(...) makes another loop",
            )
        self._frame = Frame(self)
        return self._frame

    def break_if(self, condition: Any) -> None:
        """End the loop where the condition is True, before what the frame does after this line.

        Raises:
            StepError: the condition is not one boolean, or was not made from symbolic values.
        """
        self._check_open("break_if")
        if not isinstance(condition, Symbolic):
            raise StepError(
                "break_if: the condition does not depend on the loop, so it would never change",
                got=describe_leaf(condition),
                remedy="compare a loop variable or what was computed from one",
            )
        example = condition._example
        if example is not None and (example.dtype != torch.bool or example.numel() != 1):
            raise _not_one_boolean(example, "")
        self.program.break_if(condition)

    def update(self, variable: Symbolic, value: Any) -> None:
        """Give a loop variable its value for the next step.

        Raises:
            StepError: not a loop variable, updated before, or another shape or dtype.
        """
        self._check_open("update")
        is_value = isinstance(variable, Symbolic)
        place = self.program.template(variable).place if is_value else len(self.loop_vars)
        if place >= len(self.loop_vars):
            raise StepError(
                "update: the first argument must be a loop variable of this loop",
                got=repr(variable) if is_value else describe_leaf(variable),
                expected="one of what `with loop.frame() as (...)` gave",
            )
        if place in self.updates:
            raise StepError(f"update: loop variable {place} was updated before in this frame")
        old = self.program.examples[place]
        if not isinstance(value, (Symbolic, Tensor, StandIn)):
            value = torch.as_tensor(value, dtype=None if old is None else old.dtype)
        example = value._example if isinstance(value, Symbolic) else value
        if old is not None and isinstance(example, Tensor):
            _check_same(place, old, example, "")
        self.updates[place] = self.program.template(value)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The loop variables after the last step."""
        if self._results is None:
            raise StepError("the loop runs when its frame is left, and it has not run yet")
        return self._results

    def explain(self) -> str:
        """How the loop ran: raised to a scan, and by which executor, or the rule that it broke; if it is on
        a tape, how it ran when the tape was played last."""
        if self._results is None:
            return "not run yet"
        if self.place and not (self.executor or self.reason):
            return f"recorded on a tape as {self.place}, and not played yet"
        if self.reason is None:
            return f"raised to a scan over its arrays, run by {self.executor}"
        return f"run step by step, as recorded: {self.reason}"

    def _check_open(self, what: str) -> None:
        if self._frame is None or not self._frame.inside:
            raise StepError(
                f"{what} belongs inside the loop's frame", remedy="with loop.frame() as (step,): ..."
            )

    def _finish(self) -> None:
        self.program.close(self.updates)
        missing = [i for i in range(len(self.loop_vars)) if i not in self.updates]
        if missing:
            raise StepError(
                f"loop variable(s) {', '.join(map(str, missing))} of the while loop were never updated",
                got=", ".join(f"{i}: {describe_leaf(self.loop_vars[i])}" for i in missing),
                remedy="loop.update(variable, value) in the frame; what never changes need not be one",
            )
        if not any(isinstance(op, Break) for op in self.program.ops):
            raise StepError("the while loop would never end", remedy="loop.break_if(condition) in the frame")
        self._results = tuple(self._runner(self))


class TooManySteps(StepError):
    """A loop did not end within its `max_steps`."""


class Frame:
    """The inside of a while loop, as a context manager; gives the loop variables as symbolic values."""

    def __init__(self, loop: WhileLoop) -> None:
        self._loop = loop
        self.inside = False
        self._entered = False
        self._made: set[int] = set()
        self._alive: list[Any] = []

    def __enter__(self) -> tuple[Symbolic, ...]:
        if self._entered:
            raise StepError(
                "a frame is entered once, and this one was entered before",
                remedy="create_whileloop(...) makes another loop",
            )
        if RECORDER.get() is not None:
            raise StepError(
                "a frame cannot be opened inside another frame",
                remedy="stepnet.while_loop nests to any depth",
            )
        self._entered = self.inside = True
        self._token = RECORDER.set(self._record)
        return self._loop.program.parameters

    def __exit__(self, kind: Any, *_: object) -> None:
        self.inside = False
        RECORDER.reset(self._token)
        loop = self._loop
        del self._loop, self._token  # the loop refers to its frame: what it holds is to go with the loop
        if kind is None:
            loop._finish()
        else:
            loop.program.close({})

    def _record(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a TensorArray's method: recorded, unless the array is no part of the loop."""
        array, program = args[0], self._loop.program
        if method.__name__ == "__init__":
            if _any_symbolic(args, kwargs):
                raise _made_inside()
            self._made.add(id(array))
            self._alive.append(array)
            return NotImplemented
        if id(array) in self._made:
            if not _any_symbolic(args, kwargs):
                return NotImplemented
            if method.__name__ == "write":
                raise _made_inside()
        if method.__name__ == "read":
            return program.read(*args, **kwargs)
        if method.__name__ == "write":
            return program.write(*args, **kwargs)
        raise StepError(
            f"TensorArray.{method.__name__} belongs after the frame: inside, arrays are read and written",
            remedy="loop.break_if on a step that is counted; stack() after the frame",
        )


def _made_inside() -> StepError:
    return StepError(
        "a TensorArray is made outside the frame that fills it", remedy="make it before `with loop.frame()`"
    )


def _any_symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(leaf, Symbolic) for leaf in flatten_call((args[1:], kwargs)))


def run_recorded(loop: WhileLoop) -> list[Tensor]:
    """Run a recorded loop step by step; this is what a frame means.

    Raises:
        StepError: a condition is not one boolean, a loop variable changed its shape or dtype, or, a
            TooManySteps, the loop did not end within its `max_steps`.
    """
    variables = list(loop.loop_vars)
    step = 0
    while True:
        values = run_step(loop.program, variables, step)
        if values is None:
            return variables
        if step == loop.max_steps:
            raise TooManySteps(f"the while loop did not end within max_steps={step}")
        new = [resolve(loop.updates[i], values) for i in range(len(variables))]
        for place, (old, value) in enumerate(zip(variables, new, strict=True)):
            _check_same(place, old, value, f" at step {step}")
        variables = new
        step += 1


def run_step(program: Program, variables: Sequence[Tensor], step: int) -> dict[int, Any] | None:
    """Do what was recorded once, in order; None if the loop ends in it."""
    values: dict[int, Any] = {**program.constants, **dict(enumerate(variables))}
    for op in program.ops:
        if isinstance(op, Call):
            run_call(op, values)
        elif isinstance(op, Read):
            array = program.arrays[op.array]
            values[op.out] = array.read(resolve(op.index, values), resolve(op.default, values))
        elif isinstance(op, Write):
            array = program.arrays[op.array]
            array.write(resolve(op.index, values), resolve(op.value, values), op.data_shared)
        else:
            condition = values[op.condition.place]
            if not isinstance(condition, Tensor) or condition.dtype != torch.bool or condition.numel() != 1:
                raise _not_one_boolean(condition, f" at step {step} ({op.line})")
            if bool(condition):
                return None
    return values


def run_call(op: Call, values: dict[int, Any]) -> None:
    """Do one recorded call."""
    kwargs = resolve(op.kwargs, values) if op.kwargs else {}
    result = op.function(*resolve(op.args, values), **kwargs)
    if op.count == 1 and isinstance(result, Tensor):
        values[op.out] = result
    else:
        values.update(enumerate(flatten(named(result))[0], op.out))


@dataclass(frozen=True)
class Recording:
    """A recorded loop without the values that it was recorded on."""

    ops: tuple[Op, ...]
    updates: dict[int, Any]
    max_steps: int | None
    runner: Runner

    @staticmethod
    def of(loop: WhileLoop) -> Recording:
        """What was recorded in the frame of a loop."""
        return Recording(tuple(loop.program.ops), loop.updates, loop.max_steps, loop._runner)

    def run(
        self, loop_vars: Sequence[Tensor], constants: dict[int, Any], arrays: Sequence[TensorArray]
    ) -> WhileLoop:
        """Record the same loop anew, on other values, and run it.

        Args:
            loop_vars: what the loop variables start with.
            constants: the values from outside the frame, by their place in the program.
            arrays: the TensorArrays, by their number in the program.
        """
        loop = WhileLoop(loop_vars, self.max_steps, self.runner, site=Recording)
        program = loop.program
        values: dict[int, Any] = {**constants, **dict(enumerate(program.parameters))}
        for op in self.ops:
            if isinstance(op, Call):
                kwargs = resolve(op.kwargs, values) if op.kwargs else {}
                result = program.call(op.function, resolve(op.args, values), kwargs, line=op.line)
                values.update(enumerate([result] if op.count == 1 else flatten(result)[0], op.out))
            elif isinstance(op, Read):
                index, default = resolve((op.index, op.default), values)
                values[op.out] = program.read(arrays[op.array], index, default, op.line)
            elif isinstance(op, Write):
                index, value = resolve((op.index, op.value), values)
                program.write(arrays[op.array], index, value, op.data_shared, op.line)
            else:
                program.break_if(values[op.condition.place], op.line)
        loop.updates = {at: program.template(resolve(new, values)) for at, new in self.updates.items()}
        loop._finish()
        return loop


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, StandIn))


def _check_same(place: int, old: Tensor, new: Any, at: str) -> None:
    if not isinstance(new, Tensor) or (old.shape, old.dtype) != (new.shape, new.dtype):
        raise StepError(
            f"loop variable {place} of the while loop changed its shape or dtype{at}",
            got=f"was {describe_leaf(old)}, became {describe_leaf(new)}",
            remedy="start with the final shape and dtype, or collect what grows in a TensorArray",
        )


def _not_one_boolean(condition: Any, at: str) -> StepError:
    return StepError(
        f"break_if: the condition must be one boolean{at}",
        got=describe_leaf(condition),
        expected="bool[]",
        remedy="compare, and take .all() or .any() of many",
    )
