"""A scan whose values are no rows of a batch: each as the one row of a batch, where that means the same."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.rewritten.torch_cells import TORCH_CELLS
from stepnet.compiler.trace.capture import Replaced
from stepnet.data.modes import draws_put_back, transforms
from stepnet.data.tree import flatten
from stepnet.executors.setting import only_plain
from stepnet.front.recorded_step import RecordedStep
from stepnet.front.scan_form import rule
from stepnet.front.template import resolve
from stepnet.front.while_to_scan import Raised
from stepnet.interrupts import let_through


class AloneStep(RecordedStep):
    """A step of values that are no rows, over a batch of one: of more it has no plan."""

    def run(self, values: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
        y, new = super().run([value.select(0, 0) for value in values])
        return [value.unsqueeze(0) for value in y], [value.unsqueeze(0) for value in new]


class VmappedStep(RecordedStep):
    """A step of values that are no rows, over a batch."""

    def run(self, values: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
        with _CellsWrittenOut():
            return torch.vmap(super().run, randomness="different")(list(values))


class _CellsWrittenOut(TorchFunctionMode):
    """Torch has no vmap of its cells."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written: Any = TORCH_CELLS.get(func, func)
        return written(*args, **(kwargs or {}))


def alone(raised: Raised) -> Raised:
    """The same scan, each value in a batch of one, of which the step knows nothing."""
    return _of_one(raised, AloneStep(raised.body.step, raised.body.constants))


def one_row(raised: Raised, *, written: bool = False, known: bool = False) -> Raised:
    """The same scan with each value as the one row of a batch. `written`: in a file, whose sizes may be open,
    and which takes no vmap; `known`: that it may be was seen before.

    Raises:
        Unsupported: a recorded call treats a row of a batch otherwise than the value alone.
    """
    step, constants = raised.body.step, raised.body.constants
    lifted = RecordedStep(step.lifted, constants) if written else VmappedStep(step, constants)
    if not known:
        seen = raised.form.row_like.get(raised.sizes, set())
        steps: set[int | None] = {None}
        if raised.form.counted is not None or not seen:
            if "Vmap" in transforms():
                raise rule("torch.func.vmap is around, where no two results can be compared")
            reason = only_plain([*raised.x, *raised.state], transforms=True)
            if reason is not None:
                raise rule(reason)
            if raised.form.counted is not None:
                steps = set(raised.x[-1].tolist())
        if not steps <= seen:
            _check(raised, lifted, steps - seen)
            raised.form.row_like[raised.sizes] = seen | steps
    return _of_one(raised, lifted)


def _of_one(raised: Raised, body: RecordedStep) -> Raised:
    def finish(ys: list[Tensor], last: list[Tensor]) -> list[Tensor]:
        return raised.finish([y.squeeze(1) for y in ys], [v.squeeze(0) for v in last])

    x, state = [v.unsqueeze(1) for v in raised.x], [v.unsqueeze(0) for v in raised.state]
    return Raised(raised.form, body, x, state, finish)


def _check(raised: Raised, lifted: RecordedStep, steps: Iterable[int | None]) -> None:
    """Hold a value alone against the row of a batch; of a step that is used as a number, at `steps`."""
    with torch.no_grad(), draws_put_back():
        with torch.inference_mode(False):  # so that the copies count their changes
            copies = {id(t): t.detach().clone() for t in _read_by(raised.body)}
        with Replaced(copies):
            for number in steps:
                _check_at(raised, lifted, number)
    if any(copy._version for copy in copies.values()):
        raise rule("a recorded call changes a tensor in place")


def _check_at(raised: Raised, lifted: RecordedStep, number: int | None) -> None:
    own = [*(_any_like(v[0]) for v in raised.x), *(_any_like(v) for v in raised.state)]
    if number is not None:
        own[len(raised.x) - 1].fill_(number)
    try:
        ys, new = raised.body.run(own)
    except Exception as error:  # of what the user calls: it runs as recorded, and raises what it must
        let_through(error)
        raise rule("a recorded call fails on other numbers of that shape") from error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")  # no vmap of a call: row by row
            row_ys, row_new = lifted.run([value.unsqueeze(0) for value in own])
    except Exception as error:
        let_through(error)
        raise rule("a recorded call does not take values as rows of a batch") from error
    for alone, row in zip((*ys, *new), (*row_ys, *row_new), strict=True):
        if row.shape != (1, *alone.shape) or not _alike(row[0], alone):
            raise rule("a recorded call treats a row of a batch otherwise than the value alone")


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.is_floating_point() and a.itemsize == 1:  # which torch does not compare
        a, b = a.float(), b.float()
    return torch.allclose(a, b, equal_nan=True)


def _read_by(body: RecordedStep) -> Iterator[Tensor]:
    """The constants of a step, and the tensors that its functions reach."""
    yield from (t for t in body.constants if isinstance(t, Tensor))
    nothing = defaultdict[int, Any](lambda: None)
    for call in body.step.calls:
        for function in filter(callable, flatten(resolve((call.args, call.kwargs), nothing))[0]):
            yield from reach(function).tensors


def _any_like(value: Tensor) -> Tensor:
    """Other numbers, for values that happen to be alike tell nothing; the same integers in any order."""
    if value.is_floating_point() or value.is_complex():
        kind = (
            torch.complex128 if value.is_complex() else torch.float64
        )  # numbers of eight bits are not drawn
        return torch.randn_like(value, dtype=kind).to(value.dtype)
    return value.flatten()[torch.randperm(value.numel())].view(value.shape)
