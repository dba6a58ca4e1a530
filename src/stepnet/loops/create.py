"""`create_whileloop`: a loop written as a frame, run as a scan where it is one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.api import recurrent
from stepnet.compiler.rewritten.inner_loops import inner
from stepnet.data.in_graph import is_exporting, leave_to_python, not_followed
from stepnet.data.recording import RECORDER
from stepnet.engine import run
from stepnet.errors import IRError, StepError, Unsupported
from stepnet.executors.base import Executor
from stepnet.executors.registry import tried
from stepnet.executors.setting import get_backend
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.front.frame import WhileLoop
from stepnet.front.meta import asks_for_data
from stepnet.front.recorded import Break
from stepnet.front.recorded_step import RecordedStep
from stepnet.front.scan_form import rule
from stepnet.front.symbolic import OPEN
from stepnet.front.while_to_scan import Raised, raise_loop
from stepnet.watchers import Instead, during, instead, replaced, watched, watching

from .as_while import run_as_while
from .nested_frames import record_inside
from .on_tape import record, tape_of, with_tensors
from .recorded_frame import TooManyTurns, run_recorded
from .unbatched_scans import alone, one_row


@not_followed
def create_whileloop(loop_vars: Sequence[Tensor], *, max_steps: int | None = None) -> WhileLoop:
    """A while loop to be written as a frame.

    The frame is written once, with symbolic values: torch functions on them, and reads and writes of
    TensorArrays, are recorded in order. The loop runs when the frame is left. Results are in the arrays that
    it wrote, and in `loop.results`. All of it is differentiable.

    A loop that counts a step, reads arrays at `step` and `step - 1` and writes at `step` runs as a scan, as
    `recurrent` does, also if it computes with the step; `loop.explain()` says so, or which rule it broke.
    Then it runs step by step. Of a model whose loops are frames, `stepnet.explain(model, x)` tells the same.

    Under `with Tape():`, or where it reads an item of a tape, the loop is recorded as a layer of the tape;
    its results and what is read from the arrays that it wrote are then items.

    What does not depend on symbolic values is computed once, when the frame is written: draw noise with
    `torch.rand_like(value)`, which is recorded.

    Args:
        loop_vars: tensors that change from step to step; each is updated in the frame, to the same rank and
            dtype. Where its sizes change, the loop runs step by step.
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
    if torch.compiler.is_dynamo_compiling():
        leave_to_python("stepnet: a frame is written by Python")
    caller = sys._getframe(1)
    return WhileLoop(with_tensors(loop_vars), max_steps, _run, site=(caller.f_code, caller.f_lineno))


def frame_of(body: Callable[..., Any], loop_vars: Sequence[Any], max_steps: int | None) -> WhileLoop:
    """A loop whose frame is what a body does."""
    return WhileLoop(loop_vars, max_steps, _run, site=body)


def _run(loop: WhileLoop) -> Sequence[Any]:
    if OPEN.get() is not None:
        return record_inside(loop)
    tape = tape_of(loop)
    return run_now(loop) if tape is None else record(tape, loop)


def run_now(loop: WhileLoop) -> list[Tensor]:
    """Run a recorded loop, as a scan where it is one."""
    saving = instead()
    if saving is not None:
        return _saved(loop, saving)
    return _with_numbers(loop, _run_any)


def _run_any(loop: WhileLoop) -> list[Tensor]:
    try:
        return _run_raised(loop)
    except Unsupported as refusal:
        loop.reason = refusal.reason
        watch = watching()
        if watch is not None:
            tensors = (v for v in loop.program.constants.values() if isinstance(v, Tensor))
            dtype = next((v.dtype for v in tensors if v.is_floating_point()), torch.float32)
            watch(RecordedStep.name, steps=None, dtype=dtype, refusal=refusal)
        return run_recorded(loop)


def _with_numbers(loop: WhileLoop, run: Callable[[WhileLoop], list[Tensor]]) -> list[Tensor]:
    """Run a loop.

    Raises:
        StepError: it asks for a number that tensors do not have here: they have no data, or are traced.
    """
    try:
        return run(loop)
    except RuntimeError as error:
        if not (asks_for_data(error) or any(text in str(error) for text in _TRACED)):
            raise
        line = next(op.line for op in loop.program.ops if isinstance(op, Break))
        raise StepError(
            f"the while loop asks for a number that is not known here ({line})",
            got=" | ".join(filter(None, (str(error).splitlines()[0], loop.reason))),
            remedy="torch.tensor(0, device='cpu') for what counts: a trace knows no number of torch.zeros; "
            "a loop that is a scan, if it is exported with its steps left open",
        ) from error


_TRACED = ("data-dependent", "_local_scalar_dense")


def _run_raised(loop: WhileLoop) -> list[Tensor]:
    if inner() is not None:
        raise Unsupported("the step around it is tried or traced, which is to see each call")
    executors = tried(get_backend())
    if not executors:
        raise Unsupported("the backend 'naive' is set")
    raised = raise_loop(loop)
    if not is_exporting() and raised.sizes in raised.form.too_long:  # sizes that are open are no key
        raise raised.form.too_long[raised.sizes].fresh()
    with _unfilled(loop, raised):
        return _run_scan(loop, raised, executors)


def _run_scan(loop: WhileLoop, raised: Raised, executors: Sequence[Executor]) -> list[Tensor]:
    if is_exporting():
        return _exported(loop, raised)
    if not raised.rowwise or raised.sizes in raised.form.as_row:
        return _scan(loop, one_row(raised), executors)
    try:
        return _scan(loop, raised, executors)
    except TooManyTurns:
        raise
    except Unsupported as refusal:
        try:
            results = _scan(loop, one_row(raised), executors)
        except Unsupported:
            raise refusal from None
    raised.form.as_row.add(raised.sizes)
    return results


@contextlib.contextmanager
def _unfilled(loop: WhileLoop, raised: Raised) -> Iterator[None]:
    """In this block the arrays that a scan writes are as they were: a function of the user that is called in
    it, and uses one unseen, as a global or an attribute, is refused."""
    written = [loop.program.arrays[number] for number, *_ in raised.form.outputs]
    around = RECORDER.get()

    def met(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(args[0] is array for array in written):
            raise rule("a function that is called in the loop uses an array that the loop writes")
        return NotImplemented if around is None else around(method, args, kwargs)

    with during(RECORDER, met):
        yield


def _exported(loop: WhileLoop, raised: Raised) -> list[Tensor]:
    """Run the scan as a recurrence, which is one operator of the program that torch exports.

    Raises:
        Unsupported: its values are no rows of a batch.
    """
    if not raised.rowwise:
        raise rule("it is exported by torch, and its values have no batch")

    def step(x: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Any, Any]:
        y, new = raised.body.run((*x, *state))
        return tuple(y), tuple(new)

    try:
        y, last = recurrent(step, tuple(raised.x), tuple(raised.state), reverse=raised.form.by < 0)
    except (RuntimeError, StepError) as error:
        raise rule(f"torch does not export it as a recurrence: {str(error).splitlines()[0]}") from error
    loop.executor = "a recurrence of the exported program"
    return raised.finish(list(y), list(last))


def _saved(loop: WhileLoop, saving: Instead) -> list[Tensor]:
    """Run the loop as one recurrence that what saves a module sees.

    Raises:
        IRError: it is no scan, so that it would be saved unrolled.
    """
    line = loop.program.ops[0].line
    try:
        raised = raise_loop(loop)
        loop.executor = "the recurrence that is saved"
        written = saving.alone(lambda: _written(raised))
        if written:
            raised = one_row(raised, written=True, known=True) if written == ONE_ROW else alone(raised)
    except Unsupported:
        try:
            return run_as_while(loop)
        except Unsupported as refusal:
            raise IRError(
                f"the while loop at {line} cannot be written as a loop",
                got=refusal.reason,
                expected="arrays that are read and written at a counted step, or written once in each turn",
                remedy=refusal.remedy,
            ) from refusal
    with _unfilled(loop, raised):
        return raised.results(saving.loop(raised.loop, raised.feeds))


ONE_ROW, ALONE = "the one row of a batch", "alone"


def _written(raised: Raised) -> str:
    """How a scan is written: over rows of a batch (""), or else over values that are each the one row of one,
    or alone in it."""
    if raised.rowwise and raised.sizes not in raised.form.as_row:
        with contextlib.suppress(Unsupported), replaced(None):
            run(raised.loop, raised.feeds, backend=TORCH_OPS.name, warn=False)
            return ""
    try:
        one_row(raised, written=True)
    except Unsupported:
        return "" if raised.rowwise else ALONE
    return ONE_ROW


def _scan(loop: WhileLoop, raised: Raised, executors: Sequence[Executor]) -> list[Tensor]:
    """Run the scan by the first executor that takes it; each asked by name, so that none warns."""
    refusal: Unsupported | None = None
    record, feeds = raised.loop, raised.feeds
    for executor in executors:
        try:
            out = run(record, feeds, backend=executor.name, warn=False)
        except TooManyTurns as error:
            raised.form.too_long[raised.sizes] = error.fresh()  # it is not tried at each call
            raise
        except Unsupported as error:
            refusal = refusal or error.fresh()
            continue
        watch = watching()
        if watch is not None:
            with watched(None):
                watch(record, feeds, scopes=False, backend=None)
        loop.executor = executor.label
        return raised.results(out)
    assert refusal is not None
    raise refusal.fresh()
