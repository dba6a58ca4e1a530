"""`if torch.all(n == 0):` and the like, which ask rows for one answer: both ways, and a choice for each row.

The plain loop asks all rows of a step at once. Where each of them alone gives the same answer, it is that of
all, and a choice by the row's own answer is what the step does. A plan says of each row what it answered, and
holds only where rows of each step agree (`layout.Layout.agree`). A way that raises must not be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.rewritten.inner_loops import InnerLoops
from stepnet.compiler.trace.data_dependent import CLAIMED, OF_ROWS, Choices
from stepnet.compiler.trace.lengths import AsksLength
from stepnet.data.tree import Spec
from stepnet.errors import Unsupported
from stepnet.interrupts import let_through

_MOST = 6  # ways through a step, each of which is traced whole
_MOST_ASKED = 64  # times on one way: a while loop may ask until it is told otherwise

Iteration = tuple[Spec, list[Any], list[Any]]


def asks_of_all(answers: Sequence[Any]) -> bool:
    """Whether a step that was tried asks whether something holds of all rows, or of any."""
    return any(answer is claim for answer in answers for claim in CLAIMED)


class BothWays(Choices):
    """The answers of a trace of a step each way. `run`: all of them, as one."""

    def __init__(self) -> None:
        self._given: tuple[bool | None, ...] = ()
        # what each row says, and what most rows are taken to say: None of what torch.where chooses by
        self._asked: list[tuple[Tensor, bool | None]] = []
        self._left = 0

    def answer(self, values: Tensor, of_all: bool) -> Any:
        """Whether something holds of all rows, or else of any.

        Raises:
            Unsupported: it was asked very often.
        """
        at, says = len(self._asked), self._ask(values, of_all, of_all)
        if says is None:
            return OF_ROWS
        given = self._given[at] if at < len(self._given) else None
        return of_all if given is None else given

    def by_row(self, values: Tensor, of_all: bool) -> Tensor | None:
        """What each row says of it, which all must say alike: both values of a choice are there."""
        return self._ask(values, of_all, None)

    def _ask(self, values: Tensor, of_all: bool, expected: bool | None) -> Tensor | None:
        if len(self._asked) == _MOST_ASKED:
            raise Unsupported(f"the step asks its rows for one answer more than {_MOST_ASKED} times")
        if not values.dim() or type(values.shape[0]) is int:
            return None
        held = (values != 0).flatten(1) if values.dim() > 1 else (values != 0).unsqueeze(1)
        says = held.all(1) if of_all else held.any(1)
        self._asked.append((says, expected))
        return says

    def run(self, call: Callable[[], Iteration], loops: InnerLoops) -> Iteration:
        """What a step gives; `loops` is told what its rows must agree on.

        Raises:
            Unsupported: the ways give results of different kinds, or none can be traced.
        """
        self._left, self._loops = _MOST, loops
        return self._after((), None, call)

    def _after(
        self, given: tuple[bool | None, ...], here: Tensor | None, call: Callable[[], Iteration]
    ) -> Iteration:
        """What follows some answers, given by the rows of `here`, or by all."""
        self._left -= 1
        if self._left < 0:
            raise Unsupported(f"the step asks its rows for one answer in more than {_MOST} ways")
        self._given, self._asked = given, []
        result = call()
        asked = self._asked[len(given) :]
        # which rows go on as expected, which do not, and the answers up to there
        branches: list[tuple[Tensor, Tensor, tuple[bool | None, ...]]] = []
        for says, expected in asked:
            path = (*given, expected if expected is None else not expected)
            given = (*given, expected)
            if expected is None:
                self._loops.must_agree(says if here is None else here & says)
                continue
            taken = says if expected else ~says
            reached = taken if here is None else here & taken
            other = ~taken if here is None else here & ~taken
            self._loops.must_agree(reached)
            branches.append((taken, other, path))
            here = reached
        for taken, other, path in reversed(branches):
            try:
                second = self._after(path, other, call)
            except AsksLength:
                raise
            except Exception as error:  # whatever it is, the plain loop tells where a row comes this way
                let_through(error)
                self._loops.must_hold(~other)
            else:
                result = _chosen(taken, result, second)
        return result


def _chosen(taken: Tensor, first: Iteration, second: Iteration) -> Iteration:
    if first[0] != second[0]:
        raise Unsupported("the results are nested in another way where something does not hold for all rows")
    y, new = (
        [_one(taken, a, b) for a, b in zip(*both, strict=True)]
        for both in zip(first[1:], second[1:], strict=True)
    )
    return first[0], y, new


def _one(taken: Tensor, first: Any, second: Any) -> Any:
    if first is second:
        return first
    if not (isinstance(first, Tensor) and isinstance(second, Tensor) and first.dim()):
        raise Unsupported("a result is a number where something holds of all rows")
    if first.dtype != second.dtype or str(first.shape) != str(second.shape):
        raise Unsupported("a result has another type or shape where something does not hold for all rows")
    if first.requires_grad != second.requires_grad:
        raise Unsupported("a result carries a gradient only where something holds of all rows, or does not")
    if str(first.shape[0]) != str(taken.shape[0]):
        raise Unsupported("a result that is not one row for each sequence depends on what holds of all rows")
    return torch.where(taken.reshape(-1, *[1] * (first.dim() - 1)), first, second)
