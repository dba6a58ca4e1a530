"""What must come true of each row for a plan to hold: that it was done with the loops inside the step.

A while loop inside a step, with a condition for each row, is so many steps of all rows, unrolled.

A step that asks its rows for one answer holds where those that run beside each other say the same.

A row that is done keeps its values. What it computes further, it computes from its first ones, on which the
body ran before, so that its gradient of zeros meets finite numbers. A plan gives one more result, whether
each row was done: a run in which one was not is no run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import Unsupported
from stepnet.watchers import during

MOST = 32  # steps that are unrolled in one body: each takes as long to compile as a step without a loop
# of results that are no port's; the second, where more steps would not help
_MOST_AGREED = 60  # answers of a row, bits of a number
ENDED, ENDED_AT_LIMIT = "all rows were done", "all checks hold"

Advance = Callable[[list[Any], int], list[Any]]


def too_long(line: str | None = None) -> Unsupported:
    """Why a step is not compiled in which recurrences take many steps."""
    return Unsupported(
        f"recurrences inside the step take more than {MOST} steps: each of them runs by a plan of its own",
        remedy="backend='naive' accepts that, without a warning",
        line=line,
    )


class TooFewSteps(Unsupported):
    """A row was not done after the steps that were unrolled."""


class InnerLoops:
    """The loops with a condition for each row that a body runs. `most`: how many steps of them to unroll;
    None to run them and count. `here`: tells the user's line being run."""

    def __init__(self, most: int | None, here: Callable[[], str | None] = lambda: None) -> None:
        self.most = most
        self._here = here
        self.longest = 0
        self.total = 0
        self.too_long: Unsupported | None = None  # if recurrences take more steps than are unrolled
        self._done: list[Tensor] = []
        self._agreed: list[Tensor] = []
        self._at_limit = True

    def unrolled(
        self, leaves: Sequence[Any], going: Tensor, advance: Advance, condition: Callable[..., Tensor],
        limit: int | None,
    ) -> list[Any]:  # fmt: skip
        """What the loop variables are after the loop.

        Args:
            leaves: the first ones.
            going: for each row, whether the condition holds of them.
            advance: the next loop variables from those of a step.
            condition: for each row, whether it holds of those after a step.
            limit: the most steps of the loop.

        Raises:
            Unsupported: a loop variable is not a row for each sequence, or there are too many steps.
        """
        assert self.most is not None
        steps = self.most if limit is None else min(self.most, limit)
        self.total += steps
        if not self.most or self.total > MOST:
            raise Unsupported(
                f"while loops inside the step, with a condition for each row, take more than {MOST} steps",
                remedy="fewer and larger steps, or a recurrence over rows in the place of the loop",
            )
        self._at_limit &= limit is not None and limit <= self.most
        first, now = list(leaves), list(leaves)
        for step in range(steps):
            seen = [chosen(going, a, b) for a, b in zip(now, first, strict=True)] if step else now
            new = advance(seen, step)
            now = [chosen(going, a, b) for a, b in zip(new, now, strict=True)]
            going = going & condition(now, step + 1)
        self._done.append(~going)
        return [leaf if is_row(leaf) else _OfAllRows() for leaf in now]

    def recurrence(self, steps: int) -> None:
        """Count a recurrence inside the step, of which each step is one of the body's calls."""
        self.total += steps
        if self.total > MOST and self.too_long is None:
            self.too_long = too_long(self._here())

    def must_hold(self, valid: Tensor) -> None:
        """Make a plan hold only where this is true of each row."""
        self._done.append(valid.flatten(1).all(1) if valid.dim() > 1 else valid)

    def must_agree(self, said: Tensor) -> None:
        """Make a plan hold only where all rows of a step say the same."""
        self._agreed.append(said)

    def beside(self, spec: Spec, leaves: list[Any]) -> tuple[Spec, list[Any]]:
        """The results of a body, by name, with whether all rows were done if that is asked; as a number that
        is to be the same of all rows of a step, if they must agree."""
        if not self._done and not self._agreed:
            return spec, leaves
        done = functools.reduce(torch.logical_and, self._done) if self._done else None
        if self._agreed:
            if not self._at_limit or len(self._agreed) > _MOST_AGREED:
                raise Unsupported("rows are asked for one answer beside a while_loop, or too often")
            bits = sum(said.to(torch.int64) * 2**at for at, said in enumerate(self._agreed, 1)) + 1
            done = bits if done is None else torch.where(done, bits, 0)
        results = unflatten(spec, leaves) | {ENDED_AT_LIMIT if self._at_limit else ENDED: done}
        leaves, spec = flatten(results)
        return spec, leaves


_inner: ContextVar[InnerLoops | None] = ContextVar("stepnet_inner_loops", default=None)


@contextlib.contextmanager
def inner_loops(most: int | None, here: Callable[[], str | None] = lambda: None) -> Iterator[InnerLoops]:
    """Unroll, or count, the steps of loops with a condition for each row in here. `here`: the user's line."""
    loops = InnerLoops(most, here)
    with during(_inner, loops):
        yield loops


def inner() -> InnerLoops | None:
    """What sees to the loops inside a step, if one is tried or traced here."""
    return _inner.get()


def is_guarded(y_spec: Spec | None) -> bool:
    """Whether the results of a plan hold only if all rows were done."""
    return y_spec is not None and not {ENDED, ENDED_AT_LIMIT}.isdisjoint(y_spec.keys)


def is_row(leaf: Any) -> bool:
    """Whether a loop variable has something for each row."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def chosen(going: Tensor, new: Any, old: Any) -> Any:
    """The new value of rows that go on, the old one of others; what all rows share goes on."""
    if not isinstance(new, (Tensor, int, float)):
        raise Unsupported(
            "a while_loop with a condition for each row carries an array or sequences in a step"
        )
    if not is_row(new):
        return new
    assert isinstance(new, Tensor)
    if new.shape[0] != going.shape[0]:
        raise Unsupported("a while_loop with a condition for each row carries a tensor of other rows")
    for _ in range(new.dim() - 1):
        going = going.unsqueeze(-1)
    return torch.where(going, new, old)


class _OfAllRows:
    """In the place of what all rows share after a loop: it would tell when the last of them was done."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise Unsupported(
            "a number that a while_loop carries for all rows follows from the row that takes longest",
            remedy="carry a count for each row",
        )
