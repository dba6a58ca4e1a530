"""Who answers, keeps or watches the calls of `recurrent`, and of what is like it, in a block of code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import torch

Value = TypeVar("Value")


def during(variable: ContextVar[Value], value: Value) -> contextlib.AbstractContextManager[None]:
    """Let a variable have a value in a block of code."""
    return _During(variable, value)


def said(variable: ContextVar[Value | None]) -> Value | None:
    """What a variable says here; nothing where Dynamo follows, which cannot ask."""
    return None if torch.compiler.is_dynamo_compiling() else variable.get()


class _During(Generic[Value]):
    """A class, for a generator takes five times as long, and calls begin with several."""

    __slots__ = ("token", "value", "variable")

    def __init__(self, variable: ContextVar[Value], value: Value) -> None:
        self.variable, self.value = variable, value

    def __enter__(self) -> None:
        self.token = self.variable.set(self.value)

    def __exit__(self, *_: object) -> None:
        self.variable.reset(self.token)


class Instead:
    """Answers for recurrences in a block of code.

    Attributes:
        keeps: whether it keeps a record of each, so that one that is only tried must go unseen.
    """

    keeps = True

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        """What a call of `recurrent` gives."""
        raise NotImplementedError

    def loop(self, loop: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs of a loop that comes from no step, by its record and what it is fed."""
        raise NotImplementedError

    def alone(self, decide: Callable[[], str]) -> str:
        """How the next loop runs over values that are no batches, if they are none; `decide` finds out."""
        return ""


_instead: ContextVar[Instead | None] = ContextVar("stepnet_instead", default=None)


def replaced(instead: Instead | None) -> contextlib.AbstractContextManager[None]:
    """Let `instead` answer the calls of `recurrent` in here: what traces a module sees each as one thing."""
    return during(_instead, instead)


def instead() -> Instead | None:
    """What answers the calls of `recurrent` here, if anything does."""
    return _instead.get()


# What answers for other calls, each of which what traces a module sees as one thing:
# a function of sequences: its name, who has them, a tensor, a number;
SEQUENCES: ContextVar[Callable[..., Any] | None] = ContextVar("stepnet_sequences", default=None)
# what runs over what was packed here: that, its state, what runs it over padded rows; None: packed elsewhere;
PACKED: ContextVar[Callable[..., tuple[Any, Any] | None] | None] = ContextVar("stepnet_packed", default=None)
# a while loop: its condition, its body, its variables, `max_steps`;
WHILE_LOOPS: ContextVar[Callable[..., Any] | None] = ContextVar("stepnet_while_loops", default=None)
# a loop over slices: its record, what it is fed, what runs it. Gives its outputs by name.
ITERATORS: ContextVar[Callable[..., dict[str, Any]] | None] = ContextVar("stepnet_iterators", default=None)


def nobody_answers() -> bool:
    """Whether nobody answers here for recurrences, nor for other loops."""
    return _instead.get() is WHILE_LOOPS.get() is ITERATORS.get() is None


_noter: ContextVar[Callable[..., Any] | None] = ContextVar("stepnet_noter", default=None)


def noted_by(noter: Callable[..., Any] | None) -> contextlib.AbstractContextManager[None]:
    """Let `noter` see the runs of plans in here: the plan, where rows stand, what it was given (x, states and
    weights), what it gave, and the steps of that."""
    return during(_noter, noter)


def is_noted() -> bool:
    """Whether somebody sees the runs of plans here."""
    return _noter.get() is not None


def note_run(*run: Any) -> None:
    """Let what sees the runs of plans here see one; see `noted_by`."""
    noter = _noter.get()
    if noter is not None:
        noter(*run)


_keeper: ContextVar[Callable[..., Any] | None] = ContextVar("stepnet_keeper", default=None)


def kept_by(keeper: Callable[..., Any] | None) -> contextlib.AbstractContextManager[None]:
    """Let `keeper`, which keeps states between calls, answer the calls of `recurrent` in here, as they were
    made; not those that it makes itself, nor those of their steps."""
    return during(_keeper, keeper)


def is_kept() -> bool:
    """Whether somebody keeps the states of calls here."""
    return _keeper.get() is not None


def kept(step: Any, x: Any, state: Any, **how: Any) -> Any:
    """What the keeper answers a call with; calls that it makes itself run."""
    keeper = _keeper.get()
    assert keeper is not None
    with kept_by(None):
        return keeper(step, x, state, **how)


_watch: ContextVar[Callable[..., None] | None] = ContextVar("stepnet_watch", default=None)


def watched(watch: Callable[..., None] | None) -> contextlib.AbstractContextManager[None]:
    """Call `watch` with the record of each loop that runs in here and what it is fed, before it runs; not
    with those that its body runs. Of one that cannot run over rows, `watch` gets its name in its place,
    how often it runs, and why it cannot: `steps=`, `refusal=`."""
    return during(_watch, watch)


def watching() -> Callable[..., None] | None:
    """What watches the calls of `recurrent` here, if anything does."""
    return _watch.get()


def nobody_else() -> bool:
    """Whether nobody else answers, keeps or watches the calls of `recurrent` here."""
    return _instead.get() is _watch.get() is _keeper.get() is None


# How many steps a loop that only its condition ends may take here; None: any number.
_tried: ContextVar[int | None] = ContextVar("stepnet_tried", default=None)
_FEW = 10_000  # of a loop that is run to see what it does, not for its numbers


def tried() -> contextlib.AbstractContextManager[None]:
    """Run loops in here as they are tried on an example, to be saved or explained: one that does not end is
    an error."""
    return during(_tried, _FEW)


def most_steps() -> int | None:
    """After how many steps a loop that has not ended is an error here, if it says no number itself."""
    return said(_tried)
