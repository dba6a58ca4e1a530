"""Types of what recurrences take and give, for callers whose code is type-checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypedDict, TypeVar, overload

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import Unpack

from stepnet.data.lod import LoDTensor
from stepnet.executors.base import Backend

Rows = TypeVar("Rows", LoDTensor, PackedSequence, Tensor)  # y is of the same kind as x
State = TypeVar("State")
BootState = TypeVar("BootState", covariant=True)


class Booting(Protocol[BootState]):
    """A step that knows its initial state, as the cells of `stepnet.cells` do."""

    # Not typed by the state: the call of an nn.Module is of any type, and would make the state that.
    def __call__(self, x: Any, state: Any, /) -> tuple[Any, Any]: ...

    def initial_state(self, n: int) -> BootState: ...


class Settings(TypedDict, total=False):
    """How `Recurrent` runs its step."""

    reverse: bool
    level: int
    axis: int
    backend: Backend | None
    checkpoint: int | bool | None
    detach_every: int | None


class How(Settings, total=False):
    """How `recurrent` runs a step."""

    resets: Any


class RecurrentFunction(Protocol):
    """The type of `recurrent`."""

    @overload
    def __call__(
        self, step: Booting[State], x: Rows, state: State | None = None,
        *, steps: None = None, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Rows, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: nn.LSTMCell, x: Rows, state: tuple[Tensor, Tensor] | None = None,
        *, steps: None = None, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Rows, tuple[Tensor, Tensor]]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: nn.GRUCell | nn.RNNCell, x: Rows, state: Tensor | None = None,
        *, steps: None = None, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Rows, Tensor]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Tensor, State], tuple[Tensor, State]], x: Rows, state: State,
        *, steps: None = None, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Rows, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: nn.Module, x: Any = None, state: Any = None,
        *, steps: Any = None, static: Any = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Any, Any]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Any, State], tuple[Any, State]], x: Any, state: State,
        *, steps: None = None, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Any, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Any, State], tuple[Any, State]], x: None = None, *, state: State,
        steps: Any, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Any, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Any, State], tuple[Any, State]], x: None, state: State,
        *, steps: Any, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Any, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Tensor, State, Any], tuple[Tensor, State]], x: Rows, state: State,
        *, steps: None = None, static: Any, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Rows, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Any, State, Any], tuple[Any, State]], x: Any, state: State,
        *, steps: Any = None, static: Any, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Any, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[..., tuple[Any, Any]], x: Any = None, state: Any = None,
        *, steps: Any = None, static: Any = None, scopes: Literal[True], **how: Unpack[How],
    ) -> tuple[Any, Any, list[Any]]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[..., tuple[Any, Any]], x: Any = None, state: Any = None,
        *, steps: Any = None, static: Any = None, scopes: bool, **how: Unpack[How],
    ) -> Any: ...  # fmt: skip


def typed(function: Callable[..., Any]) -> RecurrentFunction:
    """The function itself, with its type."""
    return function  # pyright: ignore[reportReturnType]
