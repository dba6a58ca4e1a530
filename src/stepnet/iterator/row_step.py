"""A loop's body as a step over rows."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from stepnet.errors import IRError, LoopError, Unsupported
from stepnet.ir.loop import Concat, Loop

COUNTER = "iteration"
Run = Callable[..., Sequence[Tensor]]


class Form(NamedTuple):
    """What a step needs to know of its loop, as plain values."""

    parameters: tuple[str, ...]
    results: tuple[str, ...]
    cuts: tuple[tuple[str, int, int], ...]  # parameter, axis, part_size
    joins: tuple[tuple[str, str, int, int], ...]  # output, result, axis, part_size
    lasts: tuple[tuple[str, str], ...]  # output, result
    carried: tuple[tuple[str, str], ...]  # parameter, result
    shared: tuple[str, ...]
    counter: str | None
    lone: tuple[str, ...]
    rank: int  # of the counter and of lone states, in the body
    blocks: bool

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def read(text: str) -> Form:
        """From the text that `str(tuple(form))` is."""
        return Form(*ast.literal_eval(text))


class RowStep:
    """A loop's body as `step(x_t, state) -> (y_t, new_state)`, one row for each element of the batch.

    What a step reaches is walked at every call, so this reaches little: the body, the tensors that all rows
    share, and the form of the loop as one text.

    Args:
        loop: the loop; its ports have a part_size.
        run: its body, on any number of rows.
        axes: the axis, from 0, that each sliced parameter is cut along.
        shared: invariants that are no rows, by parameter.
        counter: the parameter that gets the number of the iteration.
        lone: carried parameters of one element for all rows; each row has its own here.
        rank: the dimensions that the body sees in those, so that they go along with rows.
        blocks: what is cut along axis 0 holds the batch in that axis.
    """

    def __init__(
        self, loop: Loop, run: Run, axes: Mapping[str, int], shared: Mapping[str, Tensor],
        counter: str | None, lone: tuple[str, ...], rank: int, blocks: bool,
    ) -> None:  # fmt: skip
        self.__name__ = loop.body.name
        self.run = run
        self.shared = tuple(shared.values())
        self.text = _text(loop, axes, tuple(shared), counter, lone, rank, blocks)

    @property
    def form(self) -> Form:
        """The form of the loop."""
        return Form.read(self.text)

    def __call__(
        self, x: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        form = self.form
        values = self.arguments(x, state)
        try:
            found = self.run(*(values[name] for name in form.parameters))
        except (IRError, LoopError) as error:
            first = str(error).splitlines()[0]
            raise Unsupported(f"the body does not run on another number of rows: {first}") from error
        named = dict(zip(form.results, found, strict=True))
        y = {output: named[result] for output, result in form.lasts}
        for output, result, axis, part in form.joins:
            value = named[result]
            if not -value.dim() <= axis < value.dim():
                raise Unsupported(f"'{output}' has no axis {axis} to be joined along")
            axis %= value.dim()
            if not (form.blocks and axis == 0):
                if value.shape[axis] != part:
                    raise Unsupported(f"'{output}' does not have {part} element(s) along axis {axis}")
                value = value.squeeze(axis) if part == 1 else value.movedim(1, 0) if axis == 0 else value
            y[output] = value
        new = {parameter: named[result] for parameter, result in form.carried}
        for name in form.lone:
            if new[name].dim() != form.rank or any(size != 1 for size in new[name].shape[1:]):
                raise Unsupported(f"'{name}' does not stay one element")
            new[name] = new[name].reshape(-1)
        return y, state | new

    def arguments(self, x: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the body is given at a step, by parameter."""
        form = self.form
        values = dict(zip(form.shared, self.shared, strict=True)) | dict(state)
        for parameter, axis, part in form.cuts:
            value = x[parameter]
            if axis or not form.blocks:
                value = value.unsqueeze(axis) if part == 1 else value if axis else value.movedim(1, 0)
            values[parameter] = value
        if form.counter is not None:
            values[form.counter] = x[COUNTER]
        for name in (*form.lone, *([] if form.counter is None else [form.counter])):
            values[name] = values[name].reshape(-1, *[1] * (form.rank - 1))
        return values


def _text(
    loop: Loop, axes: Mapping[str, int], shared: tuple[str, ...],
    counter: str | None, lone: tuple[str, ...], rank: int, blocks: bool,
) -> str:  # fmt: skip
    carried = set(loop.carried.values())
    joins = [p for p in loop.outputs if isinstance(p, Concat)]
    lasts = [p for p in loop.outputs if not isinstance(p, Concat) and p.result not in carried]
    form = Form(
        parameters=tuple(loop.body.parameters),
        results=tuple(loop.body.results),
        cuts=tuple((p.parameter, axes[p.parameter], p.part_size or 1) for p in loop.slices),
        joins=tuple((p.output, p.result, p.axis, p.part_size or 1) for p in joins),
        lasts=tuple((p.output, p.result) for p in lasts),
        carried=tuple(loop.carried.items()),
        shared=shared,
        counter=counter,
        lone=lone,
        rank=rank,
        blocks=blocks,
    )
    return str(tuple(form))
