"""The graph form of a while loop: a frame is recorded once, and run when it is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray, contents_of, written
from stepnet.data.in_graph import follow, not_followed
from stepnet.data.no_graph import refuse_proxies
from stepnet.data.recording import RECORDER, InFrame, StandIn, inside
from stepnet.data.tree import flatten
from stepnet.errors import StepError, StepnetError
from stepnet.watchers import during

from .examples import meets_symbolic, no_tensor, packed, read_of
from .no_turns import ops_of_no_turn
from .program import Program
from .recorded import Break, Call, Count, Guard, Op, Read, Write
from .recorded_mode import Recorded, sharded_refused
from .step import describe_leaf
from .symbolic import OPEN, Symbolic, SymbolicNumber, called
from .template import Shape, ref, resolve

Runner = Callable[["WhileLoop"], Sequence[Any]]


class WhileLoop:
    """A while loop written as a frame; made by `stepnet.create_whileloop`.

    Attributes:
        results: the loop variables after the last step, in the order of `loop_vars`.

    Raises:
        StepError: `loop_vars` is no list of tensors, or `results` are read before the frame was left.

    >>> from stepnet import create_whileloop
    >>> loop = create_whileloop([torch.tensor(1)], max_steps=10)
    >>> with loop.frame() as (n,):
    ...     loop.break_if(n > 100)
    ...     loop.update(n, n * 3)
    >>> loop.results
    (tensor(243),)
    """

    def __init__(
        self, loop_vars: Sequence[Any], max_steps: int | None, runner: Runner, site: Any = None
    ) -> None:
        if type(loop_vars) not in (tuple, list) or not all(
            isinstance(v, (Tensor, StandIn, InFrame)) for v in loop_vars
        ):
            raise StepError(
                "create_whileloop: loop_vars must be a list of tensors",
                got=[describe_leaf(v) for v in loop_vars]
                if isinstance(loop_vars, (tuple, list))
                else describe_leaf(loop_vars),
                remedy="loop_vars=[torch.tensor(0)]; TensorArrays are used in the frame as they are",
            )
        refuse_proxies(loop_vars)
        self.loop_vars: list[Any] = list(loop_vars)
        self.max_steps = max_steps
        self.program = Program(self.loop_vars, site)
        self.updates: dict[int, Any] = {}  # place of a loop variable -> the template of its next value
        self.executor = ""
        self.reason: str | None = None
        self.place = ""  # where it is recorded, if it is on a tape
        self.inside = False  # another frame
        self._runner = runner
        self._frame: Frame | None = None
        self._results: tuple[Tensor, ...] | None = None

    @not_followed
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

        Arrays keep what this step wrote before it. Loop variables are those that this step came with,
        wherever the line stands, as `update` says what they are at the next step.

        Raises:
            StepError: the condition is not one boolean, or was not made from symbolic values.
        """
        self._check_open("break_if")
        if not isinstance(condition, Symbolic):
            raise StepError(
                "break_if: the condition does not depend on the loop, so it would never change",
                got=describe_leaf(condition),
                remedy=f"{_as_names(self.loop_vars)} names the loop variables as they are inside: the "
                "tensors of loop_vars do not change; compare one of those, or what was computed from one",
            )
        example = condition.example
        if example is not None and not is_one_boolean(example):
            raise not_one_boolean(example, "")
        self.program.break_if(condition)

    def update(self, variable: Any, value: Any) -> None:
        """Give a loop variable its value for the next step.

        Raises:
            StepError: not a loop variable, updated before, or another rank or dtype.
        """
        self._check_open("update")
        is_value = isinstance(variable, Symbolic)
        place = self.program.template(variable).place if is_value else len(self.loop_vars)
        if place in self.program.constants:  # of the frame around this one
            place = len(self.loop_vars)
        if place >= len(self.loop_vars):
            raise StepError(
                "update: the first argument must be a loop variable of this loop",
                got=repr(variable) if is_value else describe_leaf(variable),
                expected=f"one of the names of `{_as_names(self.loop_vars)}`",
                remedy="loop.update(step, step + 1): `step += 1` gives the name to another value",
            )
        if place in self.updates:
            raise StepError(
                f"update: loop variable {place} was updated before in this frame",
                remedy="compute the last value first, and update once",
            )
        old = self.program.examples[place]
        if isinstance(value, SymbolicNumber):
            value = self.program.call(
                torch.as_tensor, (value,), {"dtype": None if old is None else old.dtype}
            )
        if not isinstance(value, (Symbolic, Tensor, StandIn)):
            try:
                value = torch.as_tensor(value, dtype=None if old is None else old.dtype)
            except (TypeError, ValueError, RuntimeError) as error:
                raise StepError(
                    "update: the value is no tensor",
                    got=describe_leaf(value),
                    remedy="torch.stack(values) of a list; a loop variable for each of a tuple",
                ) from error
        example = value.example if isinstance(value, Symbolic) else value
        if old is not None and isinstance(example, Tensor):
            check_kind(place, old, example, "")
        self.updates[place] = self.program.template(value)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The loop variables after the last step. Raises StepError in the frame: it has not run."""
        if self._results is None:
            raise StepError(
                "the loop runs when its frame is left, and it has not run yet",
                remedy="take the results after the `with` block",
            )
        return self._results

    def explain(self) -> str:
        """How the loop ran: raised to a scan, and by which executor, or the rule that it broke; if it is on
        a tape, how it ran when the tape was played last."""
        if self._results is None:
            return "not run yet"
        if self.inside and not (self.executor or self.reason):
            return "run as part of the frame around it, whose explain() says how"
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

    def _ends_before(self) -> bool:
        """Whether the loop ends in its first turn, before a line that cannot be recorded; then it is run."""
        ops = ops_of_no_turn(self.program, self.loop_vars)
        if ops is None:
            return False
        self.program.ops = ops
        self.updates = {place: ref(place) for place in range(len(self.loop_vars))}
        self._finish()
        self.reason = "there are no steps"
        return True

    def _finish(self) -> None:
        self.program.close(self.updates)
        missing = [i for i in range(len(self.loop_vars)) if i not in self.updates]
        if missing:
            raise StepError(
                f"loop variable(s) {', '.join(map(str, missing))} of the while loop were never updated",
                got=", ".join(f"{i}: {describe_leaf(self.loop_vars[i])}" for i in missing),
                remedy=f"{_as_names(self.loop_vars)} and loop.update(step, value) in the frame; what never "
                "changes need not be one",
            )
        if not any(isinstance(op, Break) for op in self.program.ops):
            raise StepError("the while loop would never end", remedy="loop.break_if(condition) in the frame")
        self._results = tuple(self._runner(self))


class Frame:
    """The inside of a while loop, as a context manager; gives the loop variables as symbolic values."""

    def __init__(self, loop: WhileLoop) -> None:
        self._loop = loop
        self.inside = False
        self._entered = False

    def __enter__(self) -> tuple[Any, ...]:  # they stand for tensors wherever those are taken
        if self._entered:
            raise StepError(
                "a frame is entered once, and this one was entered before",
                remedy="create_whileloop(...) makes another loop",
            )
        program = self._loop.program
        program.around = OPEN.get()
        self._entered = self.inside = True
        self._followed = follow(None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(during(OPEN, program))
            stack.enter_context(during(RECORDER, self._record))
            stack.enter_context(sharded_refused())
            stack.enter_context(Recorded(program))
            self._until = stack.pop_all()
        return program.parameters

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> bool:
        self.inside = False
        loop = self._loop
        self._until.close()
        del self._loop, self._until  # what the loop holds is to go with the loop
        try:
            if error is None:
                loop._finish()
                return False
            takes_tensors = meets_symbolic(error)
            if (takes_tensors or isinstance(error, StepnetError)) and loop._ends_before():
                return True
            loop.program.close({})
            if takes_tensors:
                raise no_tensor(error) from error
            return False
        finally:
            follow(self._followed)

    def _record(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a TensorArray's method: recorded, unless the array is no part of the loop."""
        array, program = args[0], self._loop.program
        name = method.__name__
        if name == "__init__":
            return self._make(array, args, kwargs)
        own = id(array) in program.made
        if isinstance(array.deferred, Symbolic) and not (own and name in _FILLING):
            return self._of_values(array, name, args, kwargs)
        if own and array.deferred is None and not _any_symbolic(args, kwargs):
            return NotImplemented
        if own and name == "write":
            return self._write_own(array, args, kwargs)
        if name == "read":
            return program.read(*args, **kwargs)
        if name == "write":
            return program.write(*args, **kwargs)
        if name == "size":
            return program.size(array)
        if own and name in _FILLING:
            filled = getattr(TensorArray, name)(*args[1:], **kwargs)
            array.deferred = _deferred(filled if name == "unstack" else filled[0])
            return array if name == "unstack" else (array, filled[1])
        raise StepError(
            f"TensorArray.{name} belongs after the frame: inside, arrays are read and written",
            remedy="loop.break_if on a step that is counted; stack() after the frame",
        )

    def _make(self, array: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An array that is made in the frame: anew at every step, where it is made of symbolic values."""
        program = self._loop.program
        program.made[id(array)] = array
        if not _any_symbolic(args, kwargs):
            return NotImplemented
        size = kwargs.get("size", args[1] if len(args) > 1 else 0)
        if isinstance(size, Symbolic) and not isinstance(size, SymbolicNumber):
            raise _made_inside()
        made = program.call(TensorArray, args[1:], kwargs, "TensorArray")
        array.deferred = _deferred(made)
        return None

    def _write_own(self, array: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A write to an array that the frame made: from here on it is a value of the program."""
        index = kwargs.get("index", args[1] if len(args) > 1 else None)
        if isinstance(index, Symbolic) and not isinstance(index, SymbolicNumber):
            raise _made_inside()  # of all places it would have the one of its step
        contents = contents_of(array)
        array.deferred = _deferred(self._loop.program.call(TensorArray, (contents.size,), {}, "TensorArray"))
        for place, value in contents.values.items():
            self._of_values(array, "write", (array, place, value), {})
        return self._of_values(array, "write", args, kwargs)

    def _of_values(self, array: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of an array that is itself a value of the program."""
        program = self._loop.program
        around = array.deferred.program is not program
        if around and name in ("read", "write", "size"):
            return getattr(program, name)(*args, **kwargs)
        if name == "write":
            changed = program.call(written, args, kwargs, "write_to")
            array.deferred = _deferred(changed)
            return None
        return program.call(_WITH_LIKE.get(name) or called(name), args, kwargs)


_FILLING, _WITH_LIKE = {"unstack", "unpack"}, {"pack": packed, "read": read_of}


def _deferred(made: Any) -> Any:
    """The value of the program that stands for an array; itself where its example is not known."""
    return made.deferred if isinstance(made, TensorArray) else made


for _method in (Frame.__enter__, Frame.__exit__):
    not_followed(_method, calls=True)


def _made_inside() -> StepError:
    return StepError(
        "a TensorArray is made outside the frame that fills it", remedy="make it before `with loop.frame()`"
    )


def _as_names(loop_vars: Sequence[Any]) -> str:
    """How a frame is entered with names for the loop variables."""
    names = ["step", *(f"variable_{i}" for i in range(1, len(loop_vars)))][: len(loop_vars)]
    return f"with loop.frame() as ({', '.join(names)}{',' if len(names) == 1 else ''}):"


def _any_symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(True for _ in inside((args[1:], kwargs)))


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
        values |= {-1 - number: array for number, array in enumerate(arrays)}
        try:
            self._record(program, values, arrays)
        except StepnetError:
            if not loop._ends_before():
                raise
            return loop
        loop.updates = {at: program.template(resolve(new, values)) for at, new in self.updates.items()}
        loop._finish()
        return loop

    def _record(self, program: Program, values: dict[int, Any], arrays: Sequence[TensorArray]) -> None:
        for op in self.ops:
            if isinstance(op, Call):
                kwargs = resolve(op.kwargs, values) if op.kwargs else {}
                result = program.call(op.function, resolve(op.args, values), kwargs, line=op.line)
                parts = tuple(result) if isinstance(result, Shape) else result
                values.update(enumerate(flatten(parts)[0] if op.nested else [result], op.out))
            elif isinstance(op, Read):
                index, default = resolve((op.index, op.default), values)
                values[op.out] = program.read(arrays[op.array], index, default, op.line)
            elif isinstance(op, Write):
                index, value = resolve((op.index, op.value), values)
                program.write(arrays[op.array], index, value, op.data_shared, op.line)
            elif isinstance(op, Count):
                values[op.out] = program.size(arrays[op.array], op.line)
            elif isinstance(op, Guard):
                value = values[op.of.place]
                if isinstance(value, Symbolic):
                    program.guard(program.template(value), op.told, op.line)
                else:
                    op.do(values, arrays)
            else:
                program.break_if(values[op.condition.place], op.line)


def check_kind(place: int, old: Tensor, new: Any, at: str) -> None:
    """Refuse a value of another rank or dtype for a loop variable; its sizes may change."""
    if not isinstance(new, Tensor) or (old.dim(), old.dtype) != (new.dim(), new.dtype):
        raise StepError(
            f"loop variable {place} of the while loop changed its shape or dtype{at}",
            got=f"was {describe_leaf(old)}, became {describe_leaf(new)}",
            remedy="start with the final rank and dtype: sizes may change from step to step",
        )


def is_one_boolean(value: Any) -> bool:
    return type(value) is bool or (
        isinstance(value, Tensor) and value.dtype == torch.bool and value.numel() == 1
    )


def not_one_boolean(condition: Any, at: str) -> StepError:
    return StepError(
        f"break_if: the condition must be one boolean{at}",
        got=describe_leaf(condition),
        expected="bool[]",
        remedy="compare, and take .all() or .any() of many",
    )
