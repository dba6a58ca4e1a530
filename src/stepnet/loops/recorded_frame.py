"""A recorded frame as the body of a loop, which the plain loop runs: this is what a frame means."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepnet.errors import StepError
from stepnet.executors import naive
from stepnet.front.examples import changing
from stepnet.front.frame import WhileLoop, check_same, is_one_boolean, not_one_boolean, run_call
from stepnet.front.recorded import Call, Count, Guard, Read, Write
from stepnet.front.template import resolve
from stepnet.ir.loop import BackEdge, Iteration, Last, Loop, Merged

GOING = "it goes on"


class TooManySteps(StepError):
    """A loop did not end within its `max_steps`."""


def run_recorded(loop: WhileLoop) -> list[Tensor]:
    """Run a recorded loop step by step.

    Raises:
        StepError: a condition is not one boolean, a loop variable changed its shape or dtype, or, a
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
    out = naive.run(record, {GOING: True, **dict(zip(body.variables, loop.loop_vars, strict=True))})
    return [out[name] for name in body.variables]


class FrameBody:
    """What was recorded, once: the next loop variables; where the loop breaks, those it came with."""

    name = "the while loop"

    def __init__(self, loop: WhileLoop) -> None:
        self.loop = loop
        self.variables = tuple(f"variable {i}" for i in range(len(loop.loop_vars)))
        self.parameters = ("step", GOING, *self.variables)
        self.results = (GOING, *self.variables)

    def __call__(self, step: int, going: bool, *variables: Any) -> tuple[Any, ...]:
        values = self._values(variables, step)
        if values is None:
            return False, *variables
        if step == self.loop.max_steps:
            raise TooManySteps(f"the while loop did not end within max_steps={step}")
        new = [resolve(self.loop.updates[i], values) for i in range(len(variables))]
        for place, (old, value) in enumerate(zip(variables, new, strict=True)):
            check_same(place, old, value, f" at step {step}")
        return going, *new

    def _values(self, variables: tuple[Any, ...], step: int) -> dict[int, Any] | None:
        """Do what was recorded, in order; None if the loop ends in it."""
        program = self.loop.program
        values: dict[int, Any] = {**program.constants, **dict(enumerate(variables))}
        for number, array in enumerate(program.arrays):
            values[-1 - number] = array
        for op in program.ops:
            if isinstance(op, Call):
                run_call(op, values)
            elif isinstance(op, Read):
                array = program.arrays[op.array]
                values[op.out] = array.read(resolve(op.index, values), resolve(op.default, values))
            elif isinstance(op, Write):
                array = program.arrays[op.array]
                array.write(resolve(op.index, values), resolve(op.value, values), op.data_shared)
            elif isinstance(op, Count):
                values[op.out] = program.arrays[op.array].size()
            elif isinstance(op, Guard):
                if values[op.of.place] != op.told:
                    raise changing(op.told, f"{values[op.of.place]} at step {step}", op.line)
            else:
                condition = values[op.condition.place]
                if not is_one_boolean(condition):
                    raise not_one_boolean(condition, f" at step {step} ({op.line})")
                if bool(condition):
                    return None
        return values
