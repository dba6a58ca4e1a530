"""A Loop that its body ends, by blocks of steps in generated C.

    while go: go, h = body(n, h)     ->     16 steps of:  new = body(n, h);  h = new if go else h;  ...

The steps of a block that come after the end change nothing, and pick what the last one before it did. The
next call begins with a block as long as the loop was; a loop of a few steps is not worth a plan, and the
first call of a kind tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stepnet.data.bounded_cache import Bounded
from stepnet.data.dtypes import typed_shape
from stepnet.errors import StepnetError, Unsupported
from stepnet.executors.setting import check_backend
from stepnet.repeat import while_joined
from stepnet.watchers import during

from .endless import Endless
from .model import LoopReport
from .scan_loop import ScanLoop, StepGraph
from .specialized_graph import ERRORS, plainly_fed

BOTH: ContextVar[bool] = ContextVar("whether both branches run", default=False)
_LEAST, _MOST = 16, 4096  # steps of a loop that is worth a plan; and of a block
_MOST_KINDS = 64  # of calls that are remembered


def both_ways() -> AbstractContextManager[None]:
    """In here both graphs of a branch run, and its condition says which results are taken."""
    return during(BOTH, True)


def both_run(which: Tensor) -> bool:
    """Whether both graphs of a branch run: its condition is one of rows, or the number in it is left open by
    what traces."""
    return BOTH.get() or (isinstance(which, FakeTensor) and which.constant is None)


def chosen(which: Tensor, a: Any, b: Any) -> Tensor:
    """What a branch gives of which both graphs run, from what these give."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
        shown = ", ".join(typed_shape(x) if isinstance(x, Tensor) else type(x).__name__ for x in (a, b))
        raise Unsupported(f"a branch gives other shapes or types than the other one: {shown}")
    return torch.where(which, a, b)


def written_loop(
    step: Callable[..., Sequence[Tensor]], going: Tensor, state: Sequence[Tensor], joined: int,
    ends: Callable[[Tensor, Tensor], Tensor], steps: torch.SymInt | None,
    endless: Endless | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Such a loop by its condition, for what writes the model: what is carried at last, and what is joined.

    Args:
        step: is given the step's number, whether it goes on, and what is carried; gives whether it goes on,
            what is carried, and what is joined.
        going: whether it goes on at first.
        state: what is carried at first.
        joined: how many results are joined.
        ends: of a step's number and whether the body goes on, whether the loop does.
        steps: how many there are, where that is an open size.
        endless: whether it ends, where only its condition ends it.
    """

    def goes_on(number: Tensor, goes: Tensor, *_: Tensor) -> Tensor:
        if endless is not None:
            endless.check(number, goes)
        return ends(number, goes)

    def turn(number: Tensor, goes: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        again, *new = step(number, goes, *values)
        return number + 1, again.reshape(()), *new

    variables = (torch.zeros((), dtype=torch.int64), going.reshape(()), *state)
    out = while_joined(goes_on, turn, variables, joined)[2:]
    for rows in out[len(state) :] if steps is not None else ():
        torch._check(rows.shape[0] == steps)  # that many, and no number that nothing else has
    return out


class OwnEnd:
    """The body of such a Loop as a step of rows, of which there is one: the whole batch.

    Its states are whether the loop goes on, the number of the step, what is carried, and of some of these
    what the last step that counts was given. Steps after the end are given that again, so that what picks
    by whole numbers finds it.

    Args:
        body: what runs a step: from the number of the step, whether the loop goes on, and what is carried,
            whether it goes on, what is carried then, and what is joined.
        held: which of the number and what is carried are given again.
    """

    def __init__(self, body: StepGraph, held: Sequence[int]) -> None:
        self.body, self.held = body, tuple(held)
        self.captured = body.captured

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures."""
        return f"own end {self.held} {self.body.content}"

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The new states, and what is joined."""

        def one(going: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
            carried, last = states[: -len(self.held)], states[-len(self.held) :]
            given = list(carried)
            for k, value in zip(self.held, last, strict=True):
                given[k] = torch.where(going, carried[k], value)
            again, *results = self.body.run((given[0], going, *given[1:]), around)
            if again.numel() != 1 or again.dtype is not torch.bool:
                raise Unsupported("the condition of its body is no truth value")
            new = (carried[0] + 1, *results[: len(carried) - 1])
            for old, value in zip(carried, new, strict=True):
                if (old.shape, old.dtype) != (value.shape, value.dtype):
                    raise Unsupported("a state changes its shape or its type")
            kept = (torch.where(going, value, old) for value, old in zip(new, carried, strict=True))
            held = (given[k] for k in self.held)
            return going & again.reshape(()), *kept, *held, *results[len(carried) - 1 :]

        with both_ways():
            return torch.func.vmap(one)(*arguments)


class Begun(NamedTuple):
    """A Loop after some blocks: how many steps, whether it goes on, its states, and the tables of what is
    joined, each in parts."""

    steps: int
    going: bool
    state: Sequence[Tensor]
    tables: Sequence[list[Tensor]]


class OwnEndLoop:
    """Runs such a Loop as far as blocks go.

    Args:
        reports: how it ran last.
        name: of its step.
        body: see `OwnEnd`.
        joined: how many results are joined.
        reason: why it is not compiled, if that is known.
    """

    def __init__(
        self, reports: LoopReport, name: str, body: StepGraph, joined: int, reason: str | None
    ) -> None:
        self.reports, self.joined, self.reason = reports, joined, reason
        self.name, self.body, self.captured = name, body, body.captured
        self._scans: dict[tuple[int, ...], ScanLoop] = {}  # by what is held
        # Steps of the last call of a kind; None: blocks do not run it.
        self._last = Bounded[Any, int | None](_MOST_KINDS)

    def begin(
        self, most: int | None, state: Sequence[Any], around: Mapping[Any, Any],
        seen: Callable[[int, Sequence[Any]], None],
    ) -> tuple[Begun, Callable[[int], None] | None]:  # fmt: skip
        """What blocks of steps come to, no step where they do not pay or do not run the loop; and what is to
        be told how many steps the loop had in the end.

        Args:
            most: how many steps; None: any number.
            state: what is carried.
            around: what the body captures.
            seen: is told the number of steps and the states after each block that goes on, of any number.
        """
        begun = Begun(0, True, state, [[] for _ in range(self.joined)])
        fed = (*state, *(around[value] for value in self.captured))
        if not plainly_fed(fed):
            return begun, None
        why_not = self.reason
        if why_not is None and torch.is_grad_enabled() and any(value.requires_grad for value in fed):
            why_not = "it has to give gradients, and its body ends it"
        if why_not is not None:
            self.reports.declined(why_not)
            return begun, None
        kind = check_backend(None), torch.is_autocast_enabled("cpu"), *((v.shape, v.dtype) for v in state)
        size = rounded(self._last.get(kind, 0))
        if size is None:
            return begun, None
        if not size:
            self.reports.declined(
                f"its body computes the condition to go on, and no call before had {_LEAST} steps"
            )
        while size and begun.going and (most is None or begun.steps < most):
            steps = size if most is None else min(size, most - begun.steps)
            try:
                further = self._block(steps, begun, fed[len(state) :])
            except (StepnetError, *ERRORS) as problem:  # of a step after the end, which is none of the loop's
                self.reports.declined(f"a block of its steps fails: {problem}".splitlines()[0])
                further = None
            if further is None:
                self._last[kind] = None
                return begun, None
            begun, size = further, min(2 * size, _MOST)
            if begun.going and most is None:
                seen(begun.steps, begun.state)
        return begun, partial(self._note, kind)

    def _note(self, kind: Any, steps: int) -> None:
        self._last[kind] = steps

    def _block(self, steps: int, begun: Begun, captured: Sequence[Tensor]) -> Begun | None:
        """The loop after so many steps more, at most; None: they are not compiled."""
        number = torch.full((1,), begun.steps, dtype=torch.int64)
        carried = (number, *(value.unsqueeze(0) for value in begun.state))
        held = tuple(k for k, value in enumerate(carried) if not value.is_floating_point())
        if held not in self._scans:
            states = 1 + len(carried) + len(held)
            joined = [(0, 0)] * self.joined
            own = OwnEnd(self.body, held)
            self._scans[held] = ScanLoop(own, self.name, states, [], joined, self.reports, self.reason)
        scan = self._scans[held]
        states = (torch.ones(1, dtype=torch.bool), *carried, *(carried[k] for k in held))
        feeds = dict(zip(scan.body.parameters, (*states, *captured), strict=True))
        out = scan.compiled(feeds, steps=steps)
        if out is None:
            return None
        going, number, *values = (out[name] for name in scan.body.results)
        done, count = int(number), len(begun.state)
        for table, rows in zip(begun.tables, values[count + len(held) :], strict=True):
            table.append(rows[: done - begun.steps, 0])
        return Begun(done, bool(going), [value.squeeze(0) for value in values[:count]], begun.tables)


def rounded(steps: int | None) -> int | None:
    """The steps of a first block, where the loop had so many last time: some more; none of a short loop.

    >>> rounded(15), rounded(16), rounded(100), rounded(1000)
    (0, 32, 112, 1024)
    """
    if steps is None or steps < _LEAST:
        return steps and 0
    unit = max(_LEAST, 1 << (steps.bit_length() - 4))
    return min((steps // unit + 1) * unit, _MOST)
