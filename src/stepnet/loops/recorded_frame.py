"""A recorded frame as the body of a loop, which the plain loop runs: this is what a frame means."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from stepnet.compiler.rewritten.inner_loops import inner
from stepnet.data.array import contents_of
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import is_wrapped
from stepnet.data.recording import LeftByRuns
from stepnet.data.storage import apart
from stepnet.errors import ArrayError, StepError, Unsupported
from stepnet.executors import naive
from stepnet.front.examples import does_not_fit
from stepnet.front.frame import Recording, WhileLoop, check_kind, is_one_boolean, not_one_boolean
from stepnet.front.recorded import Break, Call, Read, Write
from stepnet.front.step import kept_dtypes
from stepnet.front.template import places, resolve
from stepnet.ir.loop import BackEdge, Iteration, Last, Loop, Merged

GOING = "it goes on"
_MOST = 8  # turns of a recorded loop that are unrolled in a plan: more of them take longer than its own plan
AROUND = "the plan of what is around it"


class TooManySteps(StepError):
    """A loop did not end within its `max_steps`."""


class TooManyTurns(Unsupported):
    """A frame inside runs longer than is unrolled in the plan of what is around it."""


def _gone() -> None:
    """The loop of a copy in another process."""


class _Told(LeftByRuns):
    """The loop that is told how it ran, while there is one. No value depends on it."""

    def __init__(self, loop: Callable[[], WhileLoop | None]) -> None:
        self.loop = loop


class LoopCall:
    """What calls a recorded loop as one function: its program on the values that it is given."""

    __name__ = "while_loop"

    def __init__(self, loop: WhileLoop, written: Sequence[int]) -> None:
        self.recording, self.places = Recording.of(loop), tuple(loop.program.constants)
        self.written = tuple(written)
        self.tells(loop)

    def tells(self, loop: WhileLoop) -> None:
        """Tell this loop from now on how it ran."""
        self._told = _Told(weakref.ref(loop))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_told": _Told(_gone)}  # a pickled one tells nobody how it ran

    def __deepcopy__(self, memo: Any) -> LoopCall:
        return self  # it holds no values

    def play(
        self, recording: Recording, loop_vars: Sequence[Any], constants: Sequence[Any], arrays: Sequence[Any],
        *, tell: bool = True,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The loop variables after the last step, then the arrays that it writes."""
        within = inner()
        before = 0 if within is None else within.total
        ran = recording.run(loop_vars, dict(zip(self.places, constants, strict=True)), arrays)
        if within is not None and within.total - before > _MOST:
            raise TooManyTurns(f"a frame inside takes more than {_MOST} turns: it runs by a plan of its own")
        loop = self._told.loop() if tell else None
        if loop is not None:
            loop.executor, loop.reason = (AROUND, None) if within else (ran.executor, ran.reason)
        return (*ran.results, *(arrays[number] for number in self.written))


def run_recorded(loop: WhileLoop) -> list[Tensor]:
    """Run a recorded loop step by step.

    Raises:
        StepError: a condition is not one boolean, a loop variable changed its rank or dtype, or, a
            TooManySteps, the loop did not end within its `max_steps`.
    """
    body = FrameBody(loop)
    record = Loop(
        body,
        inputs=(Iteration("step"), *(Merged(name, name) for name in body.results)),
        outputs=[Last(name, name) for name in body.variables],
        back_edges=[BackEdge(name, name) for name in body.results],
        condition=GOING,
    )
    within = inner()
    out = naive.run(record, {GOING: True, **dict(zip(body.variables, loop.loop_vars, strict=True))})
    if within is not None:  # what is traced is not asked where it lies
        within.recurrence(body.steps)
        return [v.clone() if _has_memory(v) else v for v in map(out.__getitem__, body.variables)]
    given = [*loop.loop_vars, *loop.program.constants.values()]
    for array in loop.program.arrays:  # a variable may be what was read of one, or written to it
        given += contents_of(array).held
    return _own([out[name] for name in body.variables], given)


def _own(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Results that share no memory with what was given, nor with each other."""
    own = iter(apart([*filter(_has_memory, results)], filter(_has_memory, given)))
    return [next(own) if _has_memory(value) else value for value in results]


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, LoDTensor) and not is_wrapped(value)


class FrameBody:
    """What was recorded, once: the next loop variables; where the loop breaks, those it came with."""

    name = "the while loop"

    def __init__(self, loop: WhileLoop) -> None:
        self.loop = loop
        self.variables = tuple(f"variable {i}" for i in range(len(loop.loop_vars)))
        self.parameters = ("step", GOING, *self.variables)
        self.results = (GOING, *self.variables)
        self.steps = 0
        self.limit = loop.max_steps

    def __call__(self, step: int, going: bool, *variables: Any) -> tuple[Any, ...]:
        self.steps = step
        values = self._values(variables, step)
        if values is None:
            return False, *variables
        if step == self.loop.max_steps:
            raise TooManySteps(f"the while loop did not end within max_steps={step}")
        new = kept_dtypes(variables, [resolve(self.loop.updates[i], values) for i in range(len(variables))])
        for place, (old, value) in enumerate(zip(variables, new, strict=True)):
            check_kind(place, old, value, f" at step {step}")
        return going, *new

    def _values(self, variables: tuple[Any, ...], step: int) -> dict[int, Any] | None:
        """Do what was recorded, in order; None if the loop ends in it."""
        program = self.loop.program
        values: dict[int, Any] = {**program.constants, **dict(enumerate(variables))}
        for number, array in enumerate(program.arrays):
            values[-1 - number] = array
        at = f" at step {step}"
        for op in program.ops:
            if not isinstance(op, Break):
                try:
                    op.do(values, program.arrays, at)
                except ArrayError as error:
                    if not isinstance(op, Read | Write):
                        raise
                    raise ArrayError(  # of a place that is known at this step only
                        f"{error.where}{at} ({op.line})",
                        got=error.got, expected=error.expected, remedy=error.remedy,
                    ) from error  # fmt: skip
                except (RuntimeError, IndexError) as error:
                    if type(error) not in (RuntimeError, IndexError) or not isinstance(op, Call):
                        raise
                    taken = [values[place] for place in places((op.args, op.kwargs))]
                    raise does_not_fit(op.name, error, taken, op.line, at) from error
                continue
            condition = values[op.condition.place]
            if not is_one_boolean(condition):
                raise not_one_boolean(condition, f"{at} ({op.line})")
            if bool(condition):
                return None
        return values
