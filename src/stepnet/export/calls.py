"""Calls that stand in a traced module as one node each: noted as they are run, found again by number.

A module is run once for real, and once more to be traced. A recorder answers for the calls of its kind in the
first run, a tracer in the second, one call after the other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.reach import reach
from stepnet.errors import IRError

Answer = Callable[..., Any] | None
_CALLS: dict[int, Any] = {}
_numbers = itertools.count()


def traced_op(shapes: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operator that stands in a trace for a call; `shapes` gives tensors like its results."""

    def run(*_: Any) -> Any:
        raise RuntimeError(f"a {shapes.__name__} of a traced module is written, not run")

    schema = torch.library.infer_schema(shapes, mutates_args=())
    op = torch.library.custom_op(f"stepnet::{shapes.__name__}", run, mutates_args=(), schema=schema)
    op.register_fake(shapes)
    return shapes


def call_of(number: int) -> Any:
    """The call that a node of a traced graph stands for."""
    return _CALLS[number]


@contextlib.contextmanager
def answered(hook: ContextVar[Answer], instead: Answer) -> Iterator[None]:
    """Let `instead` answer for the calls of one kind that are made in here."""
    token = hook.set(instead)
    try:
        yield
    finally:
        hook.reset(token)


class Recorder:
    """Answers for the calls of one kind by running them, and keeps what they were given."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def keep(self, call: Any) -> None:
        """Give a call its number."""
        number = next(_numbers)
        _CALLS[number] = call
        self.calls.append(number)

    def forget(self) -> None:
        """Let go of what was kept."""
        for number in self.calls:
            _CALLS.pop(number, None)


class Tracer:
    """Answers for the same calls by nodes of the traced graph. `what` says that there are more of them."""

    what: str

    def __init__(self, calls: Sequence[int]) -> None:
        self.waiting = list(calls)

    def next(self) -> tuple[int, Any]:
        """Number and record of the call at hand."""
        if not self.waiting:
            raise IRError(f"the module {self.what} when it is traced")
        number = self.waiting.pop(0)
        return number, _CALLS[number]


def places_of(
    read: Sequence[Tensor], code: Callable[..., Any], what: str, reader: str = "it", owner: str = "body"
) -> list[int]:
    """The place of each tensor that `code` reads among all that it reaches: a trace finds them there again.

    The other words are what a user calls that.

    Raises:
        IRError: one of them is not found from `code`.

    >>> import torch
    >>> a, b = torch.ones(1), torch.ones(1)
    >>> places_of([b], lambda x: x * a + b, "the step")
    [1]
    """
    place = {id(t): i for i, t in enumerate(reach(code, everything=True).tensors)}
    if any(id(t) not in place for t in read):
        raise IRError(
            f"{what} cannot be written: {reader} reads a tensor that was not found again",
            remedy=f"keep it in a closure, an attribute or a module that the {owner} refers to",
        )
    return [place[id(t)] for t in read]
