"""What is done to a TensorArray inside a frame, or to one on a tape, is recorded, not done: the hooks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import CellType, FunctionType
from typing import Any, TypeVar

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from stepnet.data.in_graph import end_graph, not_followed
from stepnet.errors import StepError

Recorder = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_FINDS_DISPATCH = functools._compose_mro.__code__  # pyright: ignore[reportAttributeAccessIssue]
RECORDER: ContextVar[Recorder | None] = ContextVar("recorder of TensorArray calls", default=None)

Method = TypeVar("Method", bound=Callable[..., Any])


class _Undispatched(type):
    """Kinds of values that stand for tensors, and are none: functools.singledispatch would take them for any
    object, and choose another function than for the tensors to come."""

    @property
    def __mro__(cls) -> tuple[type, ...]:
        caller = sys._getframe(1)
        if caller.f_code is _FINDS_DISPATCH:
            raise StepError(
                "functools.singledispatch cannot choose by a value that is not there yet",
                got=f"a {cls.__name__}, which stands for one while a frame or a tape is written",
                remedy="call the function for tensors itself",
            )
        return type.__dict__["__mro__"].__get__(cls)


class InFrame(metaclass=_Undispatched):
    """A value inside a frame: whatever it meets, the frame records what is done."""

    __slots__ = ()

    def record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call that this value is part of."""
        raise NotImplementedError


class StandIn(metaclass=_Undispatched):
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


class InGrid:
    """What stands for a LoDTensor while a model is written: who writes it answers for recurrences over it."""

    @property
    def values(self) -> Tensor:
        """All rows, those of the padding among them."""
        raise NotImplementedError

    @property
    def lod_level(self) -> int:
        """How many levels of sequences."""
        raise NotImplementedError

    @property
    def sequences(self) -> int:
        """How many sequences of the last level."""
        raise NotImplementedError


# What those are told that give one to a function which needs its values.
AS_A_LAYER = "layers.apply(function, item): a function that calls this is a layer of the tape"


class Interned:
    """A record that never changes and holds no tensor; equal ones are one object, so it stands for itself.

    `portable` is what equal ones of all processes have in common, and others have not; None: it is not known.
    `held` is what it holds that does change, as functions and modules.
    """

    portable: str | None = None
    held: Sequence[Any] = ()


class ToldByContent:
    """A module that is told by its content and its tensors: its code need not be read."""

    @property
    def content(self) -> str | None:
        """All that it does but for the numbers in its tensors; None: it was changed, and its code tells."""
        raise NotImplementedError


class LeftByRuns:
    """What the runs of an object leave in it. A step that refers to the object reads this only where its code
    has one of the names `asked_by`. `replaced`: each run sets all attributes anew, reads none of them, and
    changes nothing that they held."""

    asked_by: frozenset[str] = frozenset()
    replaced: bool = False


def recordable(method: Method) -> Method:
    """Offer calls of a method to the active recorder, if any; where it gives NotImplemented, do the call.

    Without one, a call that meets a StandIn, or an array that a StandIn stands for, is recorded by that.
    """

    @not_followed
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            end_graph("stepnet: TensorArrays are no part of a graph")
        recorder = RECORDER.get()
        if recorder is not None:
            recorded = recorder(method, args, kwargs)
            if recorded is not NotImplemented:
                return recorded
        for leaf in (args[0].deferred, *args[1:], *kwargs.values()):
            if isinstance(leaf, StandIn):
                return leaf.stand_in_call(method, args, kwargs)
            if isinstance(leaf, InFrame):
                return leaf.record(method, args, kwargs)
        return method(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


UNKNOWN = object()  # what stands for a value without data where nothing is known of it


def recorded_in_frames(like: Callable[..., Any] | None = None, parts: int = 0) -> Callable[[Method], Method]:
    """Let a frame record a call of a function, where values inside the frame are among what it is given, or
    among what functions that it is given refer to.

    Args:
        like: what the function gives for values without data; None: the function itself tells.
        parts: of how many parts its result is, if it is a tuple of any.
    """

    def decorate(function: Method) -> Method:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_dynamo_compiling() and RECORDER.get() is not None:  # Dynamo reads no ContextVar
                for leaf in inside((args, kwargs)):
                    return leaf.record(call, args, kwargs)
            return function(*args, **kwargs)

        call.like = like or function  # pyright: ignore[reportAttributeAccessIssue]
        call.parts = parts  # pyright: ignore[reportAttributeAccessIssue]
        return call  # pyright: ignore[reportReturnType]

    return decorate


def inside(tree: Any) -> Iterator[InFrame]:
    """The values inside a frame in a nesting: also what stands for an array, and what functions refer to.

    >>> list(inside([1, lambda: 2]))
    []
    """
    for leaf in reached(tree):
        held = leaf if isinstance(leaf, InFrame) else leaf.deferred
        if isinstance(held, InFrame):
            yield held


def reached(tree: Any, seen: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The values inside a frame, and the TensorArrays, in a nesting and in what functions refer to."""
    if isinstance(tree, InFrame) or hasattr(type(tree), "deferred"):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from reached(part, seen)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from reached(part, seen)
    elif type(tree) is FunctionType and not any(tree is other for other in seen):
        for part in (*map(content, tree.__closure__ or ()), *(tree.__defaults__ or ())):
            yield from reached(part, (*seen, tree))


def content(cell: CellType) -> Any:
    """What a cell of a function holds; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
