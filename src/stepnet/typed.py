"""Types of what recurrences take and give, for callers whose code is type-checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import TypeVar as _TypeVar  # with a default
from typing_extensions import Unpack

from stepnet.data.lod import LoDTensor
from stepnet.executors.base import Backend
from stepnet.front.scope import Scope

Rows = TypeVar("Rows", LoDTensor, PackedSequence, Tensor)  # y is of the same kind as x
State = TypeVar("State")
OfStep = TypeVar("OfStep")  # the state of a step that a module is made of
Output = _TypeVar("Output", default=Tensor)  # what a step gives; Scope, if the steps are looked into
BootState = TypeVar("BootState", covariant=True)


class Booting(Protocol[BootState]):
    """A step that knows its initial state, as the cells of `stepnet.cells` do."""

    # Not typed by the state: the call of an nn.Module is of any type, and would make the state that.
    def __call__(self, x: Any, state: Any, /) -> tuple[Any, Any]: ...

    def initial_state(self, n: int) -> BootState: ...


class NamedMarks(Protocol):
    """`stepnet.Resets`."""

    @property
    def marks(self) -> Any: ...

    @property
    def state(self) -> Any: ...


Marks: TypeAlias = (
    Tensor | LoDTensor | PackedSequence | NDArray[np.bool_] | list[Any] | tuple[Any, ...] | NamedMarks | None
)
EachSteps: TypeAlias = list[int] | tuple[int, ...] | Tensor  # steps for each sequence


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

    resets: Marks


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
        self,
        step: Callable[[LoDTensor, State], tuple[Tensor | LoDTensor, State]], x: LoDTensor, state: State,
        *, steps: None = None, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[LoDTensor, State]: ...  # fmt: skip

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
        self, step: Callable[[None, State], tuple[Tensor, State]], x: None = None, state: State | None = None,
        *, steps: int, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[Tensor, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[None, State], tuple[Tensor, State]], x: None = None, state: State | None = None,
        *, steps: EachSteps, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
    ) -> tuple[LoDTensor, State]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Any, State], tuple[Any, State]], x: None = None, state: State | None = None,
        *, steps: int | EachSteps, static: None = None, scopes: Literal[False] = False, **how: Unpack[How],
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
        self, step: Booting[State], x: Rows, state: State | None = None,
        *, steps: None = None, static: None = None, scopes: Literal[True], **how: Unpack[How],
    ) -> tuple[Rows, State, list[Scope]]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[[Tensor, State], tuple[Tensor, State]], x: Rows, state: State,
        *, steps: None = None, static: None = None, scopes: Literal[True], **how: Unpack[How],
    ) -> tuple[Rows, State, list[Scope]]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[..., tuple[Any, Any]], x: Any = None, state: Any = None,
        *, steps: Any = None, static: Any = None, scopes: Literal[True], **how: Unpack[How],
    ) -> tuple[Any, Any, list[Scope]]: ...  # fmt: skip

    @overload
    def __call__(
        self, step: Callable[..., tuple[Any, Any]], x: Any = None, state: Any = None,
        *, steps: Any = None, static: Any = None, scopes: bool, **how: Unpack[How],
    ) -> Any: ...  # fmt: skip


class ModuleCall(Generic[State, Output]):
    """The type of the call of a `Recurrent`."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: ModuleCall[State, Tensor], x: Rows, state: State | None = None, resets: Marks = None,
            *, steps: None = None, static: Any = None,
        ) -> tuple[Rows, State]: ...  # fmt: skip

        @overload
        def __call__(
            self: ModuleCall[State, Tensor], x: None = None, state: State | None = None, resets: Marks = None,
            *, steps: int, static: Any = None,
        ) -> tuple[Tensor, State]: ...  # fmt: skip

        @overload
        def __call__(
            self: ModuleCall[State, Tensor], x: None = None, state: State | None = None, resets: Marks = None,
            *, steps: EachSteps, static: Any = None,
        ) -> tuple[LoDTensor, State]: ...  # fmt: skip

        @overload
        def __call__(
            self: ModuleCall[State, Scope], x: Any = None, state: State | None = None, resets: Marks = None,
            *, steps: Any = None, static: Any = None,
        ) -> tuple[Any, State, list[Scope]]: ...  # fmt: skip

        @overload
        def __call__(
            self, x: Any = None, state: State | None = None, resets: Marks = None,
            *, steps: Any = None, static: Any = None,
        ) -> tuple[Any, State]: ...  # fmt: skip

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def typed(function: Callable[..., Any]) -> RecurrentFunction:
    """The function itself, with its type."""
    return function  # pyright: ignore[reportReturnType]
