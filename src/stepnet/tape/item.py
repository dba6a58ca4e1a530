"""TapeItem: what a layer function gives back, an index into the tape it was recorded on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import InFrame, StandIn
from stepnet.data.tree import leaves
from stepnet.errors import TapeError

from .arrays import Method, record_array_call
from .creation import UNKNOWN, Creation, describe, is_rows, open_shape

# What may be asked of a TensorArray that is an item's value.
_RECORDED_OF_ARRAYS = frozenset({"read", "size", "stack", "concat", "pack"})
# Properties of a tensor that are values to compute with, so they are recorded like functions.
_RECORDED_PROPERTIES = frozenset({"T", "mT", "real", "imag", "values"})


def _operator(function: Callable[..., Any], swapped: bool = False) -> Callable[..., TapeItem]:
    name = function.__name__.strip("_")

    def call(self: TapeItem, *other: Any) -> TapeItem:
        if any(isinstance(value, InFrame) for value in other):
            return NotImplemented  # the value inside a frame records it there
        return self.tape.record(name, function, (*other, self) if swapped else (self, *other))

    return call


def _both_ways(function: Callable[..., Any]) -> tuple[Callable[..., TapeItem], Callable[..., TapeItem]]:
    return _operator(function), _operator(function, swapped=True)


class TapeItem(StandIn):
    """The place of a layer on a tape, before it has any value.

    Torch functions, tensor methods and operators on items are recorded on the tape as further layers. What
    needs a value (`if item:`, `float(item)`, `len(item)`) is an error.

    `shape` has None for the rows, and for sizes that follow from them; it, `dtype` and `lod_level` are None
    where they are not known.

    >>> from stepnet.tape import Tape
    >>> from stepnet.layers import Dense, data
    >>> with Tape() as tape:
    ...     img = data("img", Dense(784))
    ...     low = torch.relu(img - 0.5)
    >>> low
    TapeItem(2, 'relu_0', float32 [*, 784])
    >>> low.shape
    (None, 784)
    """

    def __init__(self, tape: Any, index: int, creation: Creation) -> None:
        self.tape = tape
        self.index = index
        self.creation = creation

    @property
    def name(self) -> str:
        """The name of the layer, which no other layer of the tape has."""
        return self.creation.name

    @property
    def kind(self) -> str:
        """What kind of layer it is: `data`, `fc`, `relu`."""
        return self.creation.kind

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape, None in the place of rows."""
        known = self._tensor()
        return None if known is None else open_shape(known, self.tape.larger(self))

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype."""
        known = self._tensor()
        return None if known is None else known.dtype

    @property
    def lod_level(self) -> int | None:
        """How many levels of sequences; 0 for a plain tensor."""
        known = self._tensor()
        return None if known is None else known.lod_level if isinstance(known, LoDTensor) else 0

    def _tensor(self) -> Tensor | LoDTensor | None:
        example = self.creation.example
        return example if isinstance(example, (Tensor, LoDTensor)) else None

    def __repr__(self) -> str:
        value = describe(self.creation.example, self.tape.larger(self))
        return f"TapeItem({self.index}, {self.name!r}{value and f', {value}'})"

    # In frames of while loops, and with TensorArrays

    def stand_in_example(self) -> Any:
        """The result for a small batch; None where it is not known."""
        example = self.creation.example
        return None if example is UNKNOWN else example

    def stand_in_shape(self, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """None for the sizes that are those of small batches."""
        return tuple(None if is_rows(size) else size for size in shape)

    def stand_in_call(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call of a TensorArray's method on the tape."""
        return record_array_call(self.tape.record, method, args, kwargs)

    def to_ir(self) -> Any:
        """The topology that ends here as OpenVINO IR, without what it does not need; see `Topology.to_ir`.

        Source: `to_proto` of the TapeItem of Paddle's topology design.
        """
        return self.tape.topology(self, prune=True).to_ir()

    # Functions, methods and operators

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, InFrame) for kind in types):
            return NotImplemented
        first: TapeItem = next(leaves((args, kwargs or {}), TapeItem))
        name = getattr(func, "__name__", "function").strip("_")
        return first.tape.record(name, func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _RECORDED_OF_ARRAYS and isinstance(self.creation.example, TensorArray):
            return lambda *args, **kwargs: self.tape.record(name, Method(name), (self, *args), kwargs)
        if name.startswith("_") or not (hasattr(Tensor, name) or name == "values"):
            raise AttributeError(f"a TapeItem has no attribute '{name}', and neither has its value")
        if name in _RECORDED_PROPERTIES:
            return self.tape.record(name, _Property(name), (self,))
        if name.endswith("_"):
            self._refuse(f".{name}() writes in place", remedy=f"use .{name.rstrip('_')}(), which is recorded")
        if not callable(getattr(Tensor, name)):
            self._refuse(f".{name} needs a value")

        def method(*args: Any, **kwargs: Any) -> Any:
            inside = next((v for v in leaves((args, kwargs), InFrame)), None)
            if inside is not None:
                return inside.record(getattr(Tensor, name), (self, *args), kwargs)
            return self.tape.record(name, Method(name), (self, *args), kwargs)

        return method

    def __getitem__(self, key: Any) -> Any:
        inside = next((v for v in leaves(key, InFrame)), None)
        if inside is not None:
            return inside.record(Tensor.__getitem__, (self, key), {})
        return self.tape.record("getitem", operator.getitem, (self, key))

    def __iter__(self) -> Iterator[TapeItem]:
        example = self.creation.example
        if not isinstance(example, (tuple, list)):
            self._refuse("iterating needs a value", remedy="torch.unbind(item) is recorded")
        return iter([self[i] for i in range(len(example))])

    def __hash__(self) -> int:
        return id(self)

    def _refuse(self, why: str, remedy: str | None = None) -> NoReturn:
        raise TapeError(
            f"{self.creation.place}: {why}",
            got="an item of a tape, which has no value until the tape is played",
            remedy=remedy or "compute with torch functions, which are recorded; play with tape.topology(...)",
        )

    def __bool__(self) -> bool:
        self._refuse("its truth needs a value")

    def __len__(self) -> int:
        example = self.creation.example
        if not isinstance(example, (tuple, list)):
            self._refuse("its length needs a value")
        return len(example)

    def __float__(self) -> float:
        self._refuse("a number needs a value")

    def __int__(self) -> int:
        self._refuse("a number needs a value")

    __index__ = __int__

    # Operators

    __add__, __radd__ = _both_ways(operator.add)
    __sub__, __rsub__ = _both_ways(operator.sub)
    __mul__, __rmul__ = _both_ways(operator.mul)
    __truediv__, __rtruediv__ = _both_ways(operator.truediv)
    __floordiv__, __rfloordiv__ = _both_ways(operator.floordiv)
    __mod__, __rmod__ = _both_ways(operator.mod)
    __pow__, __rpow__ = _both_ways(operator.pow)
    __matmul__, __rmatmul__ = _both_ways(operator.matmul)
    __and__, __rand__ = _both_ways(operator.and_)
    __or__, __ror__ = _both_ways(operator.or_)
    __xor__, __rxor__ = _both_ways(operator.xor)
    __lt__ = _operator(operator.lt)
    __le__ = _operator(operator.le)
    __gt__ = _operator(operator.gt)
    __ge__ = _operator(operator.ge)
    __neg__ = _operator(operator.neg)
    __invert__ = _operator(operator.invert)
    __abs__ = _operator(operator.abs)
    __eq__ = _operator(operator.eq)  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    __ne__ = _operator(operator.ne)  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


class _Property(Method):
    def __call__(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(value, self.name)
