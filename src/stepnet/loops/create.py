"""`create_whileloop`: a loop written as a frame, run as a scan where it is one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.api import watched, watching
from stepnet.backends import get_backend
from stepnet.data.tree import flatten
from stepnet.engine import run_compiled
from stepnet.errors import Refusal
from stepnet.front.frame import WhileLoop, run_recorded
from stepnet.front.raise_loop import Raised, raise_loop
from stepnet.front.scan_form import RecordedStep
from stepnet.front.step import StepBody
from stepnet.run.select import executors

from .on_tape import record, tape_of


def create_whileloop(loop_vars: Sequence[Tensor], *, max_steps: int | None = None) -> WhileLoop:
    """A while loop to be written as a frame.

    The frame is written once, with symbolic values: torch functions on them, and reads and writes of
    TensorArrays, are recorded in order. The loop runs when the frame is left. Results are in the arrays that
    it wrote, and in `loop.results`. All of it is differentiable.

    A loop that counts a step, reads arrays at `step` and `step - 1` and writes at `step` runs as a scan, as
    `recurrent` does; `loop.explain()` says so, or which rule it broke. Then it runs step by step. Of a model
    whose loops are frames, `stepnet.explain(model, x)` tells the same.

    Under `with Tape():`, or where it reads an item of a tape, the loop is recorded as a layer of the tape;
    its results and what is read from the arrays that it wrote are then items.

    What does not depend on symbolic values is computed once, when the frame is written: draw noise with
    `torch.rand_like(value)`, which is recorded.

    Args:
        loop_vars: tensors that change from step to step; each is updated in the frame, to the same shape
            and dtype.
        max_steps: an error, if the loop has not ended after so many steps. None: no limit.

    Raises:
        StepError: in the frame, where a symbolic value is used outside it, a loop variable is never updated,
            a condition is not one boolean, Python needs the number in a symbolic value, a frame is entered
            twice; the text names the line where that helps.

    Source: Paddle's "Design for TensorArray" and its Python API (2017): `paddle.create_whileloop`.

    >>> import torch
    >>> from stepnet.data.array import TensorArray
    >>> sums, x = TensorArray(), TensorArray(unstack_from=torch.tensor([1.0, 2.0, 3.0]))
    >>> loop = create_whileloop(loop_vars=[torch.tensor(0)])
    >>> with loop.frame() as (s,):
    ...     loop.break_if(s == 3)
    ...     sums.write(s, sums.read(s - 1, torch.tensor(0.0)) + x.read(s))
    ...     loop.update(s, s + 1)
    >>> sums.stack()
    tensor([1., 3., 6.])
    """
    caller = sys._getframe(1)
    return WhileLoop(loop_vars, max_steps, _run, site=(caller.f_code, caller.f_lineno))


def _run(loop: WhileLoop) -> Sequence[Any]:
    tape = tape_of(loop)
    return run_now(loop) if tape is None else record(tape, loop)


def run_now(loop: WhileLoop) -> list[Tensor]:
    """Run a recorded loop, as a scan where it is one."""
    try:
        return _run_raised(loop)
    except Refusal as refusal:
        loop.reason = refusal.reason
        watch = watching()
        if watch is not None:
            dtype = next((v.dtype for v in loop.program.constants.values() if _floats(v)), torch.float32)
            watch(RecordedStep.__name__, None, None, steps=None, dtype=dtype, refusal=refusal)
        return run_recorded(loop)


def _run_raised(loop: WhileLoop) -> list[Tensor]:
    names = executors(get_backend())
    if not names:
        raise Refusal("the backend 'naive' is set")
    raised = raise_loop(loop)
    if not raised.rowwise or raised.sizes in raised.form.as_row:
        return _scan(loop, raised.one_row(), names)
    try:
        return _scan(loop, raised, names)
    except Refusal as refusal:
        try:
            results = _scan(loop, raised.one_row(), names)
        except Refusal:
            raise refusal from None
    raised.form.as_row.add(raised.sizes)
    return results


_AS_SCAN: Any = {"reverse": False, "level": -1, "axis": 0}


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _scan(loop: WhileLoop, raised: Raised, names: Sequence[str]) -> list[Tensor]:
    """Run the scan by the first executor that takes it; each asked by name, so that none warns."""
    refusal: Refusal | None = None
    x, state = tuple(raised.x), tuple(raised.state)
    for name in names:
        body = StepBody(raised.step, flatten(x)[1], flatten(state)[1])
        try:
            y, last = run_compiled(body, x, state, **_AS_SCAN, backend=name)
        except Refusal as error:
            refusal = refusal or error
            continue
        watch = watching()
        if watch is not None:
            with watched(None):
                watch(raised.step, x, state, **_AS_SCAN, scopes=False, backend=None)
        loop.executor = {"c": "generated C", "eager": "torch ops"}[name]
        return raised.finish(flatten(y)[0], last)
    assert refusal is not None
    raise refusal
