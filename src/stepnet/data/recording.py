"""What is done to a TensorArray inside a frame, or to one on a tape, is recorded, not done: the hooks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

Recorder = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RECORDER: ContextVar[Recorder | None] = ContextVar("recorder of TensorArray calls", default=None)

Method = TypeVar("Method", bound=Callable[..., Any])


class InFrame:
    """A value inside a frame: whatever it meets, the frame records what is done."""

    __slots__ = ()


class StandIn:
    """What stands for a value that is not there yet, such as an item of a tape."""

    def stand_in_example(self) -> Any:
        """A value like the one to come; None where it is not known."""
        raise NotImplementedError

    def stand_in_shape(self, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """The shape of something computed from it, with None where the example's size says nothing."""
        raise NotImplementedError

    def stand_in_call(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call of a TensorArray's method."""
        raise NotImplementedError


class Interned:
    """A record that never changes and holds no tensor; equal ones are one object, so it stands for itself."""


def recordable(method: Method) -> Method:
    """Offer calls of a method to the active recorder, if any; where it gives NotImplemented, do the call.

    Without one, a call that meets a StandIn, or an array that a StandIn stands for, is recorded by that.
    """

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = RECORDER.get()
        if recorder is not None:
            recorded = recorder(method, args, kwargs)
            if recorded is not NotImplemented:
                return recorded
        for leaf in (args[0].deferred, *args[1:], *kwargs.values()):
            if isinstance(leaf, StandIn):
                return leaf.stand_in_call(method, args, kwargs)
        return method(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]
