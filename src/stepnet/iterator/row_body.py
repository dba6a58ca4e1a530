"""A loop whose body is made for a whole batch, written anew as a sweep over rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from stepnet.errors import IRError, LoopError, StepError, Unsupported
from stepnet.front.step import describe_leaves, next_state
from stepnet.ir.loop import Concat, Iteration, Loop
from stepnet.ir.sweep import over_rows

from .leading_axes import Leads

COUNTER = "iteration"
Run = Callable[..., Sequence[Tensor]]


class RowLayout(NamedTuple):
    """How the values of a loop lie in rows.

    Attributes:
        axes: the axis, from 0, that each sliced parameter is cut along.
        rows: the invariants that have a row for each element of the batch; the others are shared.
        lone: carried parameters of one element for all rows; each row has its own here.
        rank: the dimensions that the body sees in those and in the number of the iteration, so that they go
            along with rows.
        blocks: what is cut along axis 0 holds the batch in that axis.
        time: the axis of time of the tables of rows.
        reverse: whether it goes from the last step to the first.
        leads: where axes of one element stand before the batch.
    """

    axes: tuple[int, ...]
    rows: tuple[str, ...]
    lone: tuple[str, ...]
    rank: int
    blocks: bool
    time: int
    reverse: bool
    leads: Leads


class RowBody:
    """A body on rows: what is cut comes as [rows, ...], and each row of the batch has what is carried.

        before: body(x[B, 1, ...], h[B, ...], n[])  -> y[B, 1, ...], h[B, ...]
        after:  body(x[B, ...],    h[B, ...], n[B]) -> y[B, ...],    h[B, ...]

    Args:
        loop: the loop as it was; its ports have a part_size.
        run: its body, on any number of rows.
        layout: how its values lie in rows.
    """

    def __init__(self, loop: Loop, run: Run, layout: RowLayout) -> None:
        self.loop, self.run, self.layout = loop, run, layout
        self.name = loop.body.name
        number = [port.parameter for port in loop.inputs if isinstance(port, Iteration)]
        self.counter = number[0] if number else None
        slices = [port.parameter for port in loop.slices]
        parts = [port.part_size or 1 for port in loop.slices]
        self.cuts = list(zip(slices, layout.axes, parts, strict=True))
        self.x = [*slices, COUNTER] if number or not slices else slices
        self.states = [*loop.carried, *layout.rows]
        self.shared = [port.parameter for port in loop.invariants if port.parameter not in layout.rows]
        carried = {*loop.carried.values()}
        self.joined = [p for p in loop.outputs if isinstance(p, Concat) or p.result not in carried]
        self.parameters = (*map(x_name, self.x), *map(state_name, self.states), *self.shared)
        self.results = (*(y_name(p.output) for p in self.joined), *map(new_name, self.states))
        self._form = str((layout, self.parameters, self.results, loop.body.parameters, loop.body.results,
                          loop.slices, self.joined, loop.carried, self.counter))  # fmt: skip

    def around(self, run: Run) -> RowBody:
        """The same around another way to run the body."""
        twin = copy.copy(self)
        twin.run = run
        return twin

    @property
    def form(self) -> Any:
        """What tells it from other bodies of the same function."""
        return getattr(self.run, "form", None), self._form

    @property
    def function(self) -> Any:
        """What the body calls."""
        return getattr(self.run, "function", self.run)

    def fresh(self) -> RowBody:
        """The body: it remembers nothing."""
        return self

    def sweep(self) -> Loop:
        """The loop over rows."""
        joined = len(self.joined)
        return over_rows(
            self, tuple(map(x_name, self.x)), tuple(map(state_name, self.states)), self.results[joined:],
            self.results[:joined], tuple(self.shared), axis=self.layout.time, reverse=self.layout.reverse,
        )  # fmt: skip

    def __call__(self, *values: Tensor) -> tuple[Any, ...]:
        given = dict(zip((*self.x, *self.states, *self.shared), values, strict=True))
        old = [given[name] for name in self.states]
        arguments = self.arguments(given)
        try:
            results = self.run(*(arguments[name] for name in self.loop.body.parameters))
        except (IRError, LoopError) as error:
            first = str(error).splitlines()[0]
            raise Unsupported(f"the body does not run on another number of rows: {first}") from error
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            raise StepError(
                f"step '{self.name}' failed: {str(error).splitlines()[0]}",
                got=describe_leaves(arguments, arguments.values()),
                remedy="it is called with all sequences that have this step, a row each",
            ) from error
        named = dict(zip(self.loop.body.results, results, strict=True))
        y = [self._row(port, named[port.result]) for port in self.joined]
        new = [self._carried(name, named[self.loop.carried[name]]) for name in self.loop.carried]
        return *y, *next_state(self.name, self.states, old, [*new, *old[len(new) :]])

    def arguments(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the body is given at a step, by its parameters."""
        layout = self.layout
        values = dict(rows)
        for parameter, axis, part in self.cuts:
            value = rows[parameter]
            if axis or not layout.blocks:
                value = value.unsqueeze(axis) if part == 1 else value if axis else value.movedim(1, 0)
            values[parameter] = value.unsqueeze(0) if layout.leads.cut else value
        values |= {name: rows[name].unsqueeze(0) for name in layout.leads.states}
        if self.counter is not None:
            values[self.counter] = rows[COUNTER]
        for name in (*layout.lone, *([] if self.counter is None else [self.counter])):
            values[name] = values[name].reshape(-1, *[1] * (layout.rank - 1))
        return values

    def _row(self, port: Any, value: Any) -> Tensor:
        """A result of the body as the rows of an output."""
        if not isinstance(value, Tensor):
            raise StepError(
                f"step '{self.name}' returned '{port.output}' that is no tensor",
                got=type(value).__name__,
                remedy="torch.as_tensor(value)",
            )
        led = port.output in self.layout.leads.rows
        if not isinstance(port, Concat):
            return value.squeeze(0) if led else value
        axis, part = port.axis, port.part_size or 1
        if not -value.dim() <= axis < value.dim():
            raise Unsupported(f"'{port.output}' has no axis {axis} to be joined along")
        axis %= value.dim()
        if self.layout.blocks and axis == 0:
            return value
        if value.shape[axis] != part:
            raise Unsupported(f"'{port.output}' does not have {part} element(s) along axis {axis}")
        value = value.squeeze(axis) if part == 1 else value.movedim(1, 0) if axis == 0 else value
        return value.squeeze(0) if led else value

    def _carried(self, name: str, value: Any) -> Any:
        if name in self.layout.leads.states:
            return value.squeeze(0)
        if name not in self.layout.lone:
            return value
        if value.dim() != self.layout.rank or any(size != 1 for size in value.shape[1:]):
            raise Unsupported(f"'{name}' does not stay one element")
        return value.reshape(-1)


def x_name(parameter: str) -> str:
    """What the sweep calls a parameter that is cut into steps."""
    return f"x[{parameter!r}]"


def state_name(parameter: str) -> str:
    """What the sweep calls a parameter that is carried."""
    return f"state[{parameter!r}]"


def new_name(parameter: str) -> str:
    """What the sweep calls the next value of a parameter that is carried, and the last one."""
    return f"new_state[{parameter!r}]"


def y_name(output: str) -> str:
    """What the sweep calls an output that is joined, or the last of a result that is not carried."""
    return f"y[{output!r}]"
