"""Symbolic values: what is done to them is recorded."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import InFrame
from stepnet.data.tree import leaves
from stepnet.errors import StepError
from stepnet.user_line import user_line

from .step import describe_leaf
from .template import Ref


class Recording(Protocol):
    """What records what is done to symbolic values: the program of a frame."""

    around: Any
    device: torch.device

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, name: str = "") -> Any: ...
    def told_number(self, value: Any) -> Any: ...
    def told_length(self, value: Any) -> int: ...
    def is_open(self, size: Any) -> bool: ...


# The program of the innermost frame that is being written here.
OPEN: ContextVar[Any] = ContextVar("stepnet_open_frame", default=None)


_OF_AUTOGRAD = {"requires_grad", "grad_fn", "grad", "is_leaf", "retains_grad", "_version"}


class Symbolic(InFrame):
    """A value inside a frame: it has no numbers yet, and what is done to it is recorded.

    Any torch function, method or operator takes it. A size that may change from step to step is a symbolic
    number; one that is the same at every step is an int.
    """

    __slots__ = ("_ref", "example", "program")
    __hash__ = object.__hash__

    def __init__(self, program: Recording, ref: Ref, example: Any) -> None:
        self.program, self._ref, self.example = program, ref, example

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        first = next(leaves((args, kwargs or {}), Symbolic))
        return at_home(first).call(func, args, kwargs or {})

    def record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return at_home(self).call(function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a symbolic value has no attribute '{name}'")
        if name == "device":
            return self.program.device
        if name in _OF_AUTOGRAD:
            raise StepError(
                f"the autograd state of a value in a frame is not known while the frame is written ({name})",
                got=user_line().short,
                remedy="leave it to autograd, or ask outside of the frame",
            )
        kinds = (LoDTensor,) if isinstance(self.example, LoDTensor) else (Tensor,)
        if self.example is None:
            kinds = (LoDTensor, Tensor) if name == "values" else (Tensor, LoDTensor)
        attribute = next((getattr(kind, name) for kind in kinds if hasattr(kind, name)), None)
        if attribute is None:
            raise AttributeError(f"a symbolic value has no attribute '{name}'")
        if not callable(attribute):
            return at_home(self).call(getattr, (self, name), {}, name)
        function = attribute if kinds == (Tensor,) else called(name)
        return lambda *args, **kwargs: at_home(self).call(function, (self, *args), kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise StepError(
            "a symbolic value is not changed in place",
            got=f"value[{key}] = ...",
            remedy="torch.where, index_copy or scatter make a new one",
        )

    def __len__(self) -> int:
        return at_home(self).told_length(self)

    def __iter__(self) -> Any:
        count, whole = len(self), cast(Any, self)
        sequences = isinstance(self.example, LoDTensor)
        return iter([whole[i] for i in range(count)] if sequences else self.unbind(0))

    def __repr__(self) -> str:
        kind = "?" if self.example is None else describe_leaf(self.example)
        return f"<symbolic {self._ref} {kind}>"


class SymbolicShape(Symbolic):
    """The sizes of a value of which nothing is known before the loop runs."""

    __slots__ = ()
    __hash__ = object.__hash__

    def numel(self) -> Any:
        """The number of elements."""
        return at_home(self).call(math.prod, (self,), {}, "numel")


class SymbolicNumber(Symbolic):
    """A number that follows from sizes: what is done to it is recorded, too.

    Where Python needs it as a number of its own (`range`, `if`, `len`, a dict's key), it is told that of the
    first step, and every step checks that it is the same.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(at_home(self).told_number(self))

    def __bool__(self) -> bool:
        return bool(at_home(self).told_number(self))

    def __int__(self) -> int:
        return int(at_home(self).told_number(self))

    def __float__(self) -> float:
        return float(at_home(self).told_number(self))

    def __len__(self) -> int:  # torch asks whatever it is given as an index
        raise TypeError("a number of a frame has no len()")

    def __round__(self, digits: int | None = None) -> Any:
        return round(at_home(self).told_number(self), digits)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a symbolic number has no attribute '{name}'")

    def __repr__(self) -> str:
        known = "?" if self.example is None else f"{self.example} at the first step"
        return f"<symbolic {self._ref}, {known}>"


class SymbolicSize(SymbolicNumber, torch.SymInt):
    """A symbolic integer: torch takes it wherever it takes a size."""

    __hash__ = SymbolicNumber.__hash__
    # It is no tensor to torch: the mode of the frame, `recorded_mode.Recorded`, sees the calls.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    def __index__(self) -> int:
        return int(at_home(self).told_number(self))

    @property
    def node(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What torch asks for where nothing records the call: outside of a frame."""
        raise outside(self)


def symbolic(program: Recording, ref: Ref, example: Any, unknown: type[Symbolic]) -> Any:
    """The symbolic value, number or array at a place of a program; `unknown` is one without example."""
    if example is None:
        return unknown(program, ref, None)
    if isinstance(example, TensorArray):
        array = TensorArray.__new__(TensorArray)
        array.deferred = Symbolic(program, ref, example)
        return array
    if type(example) is int:
        return SymbolicSize(program, ref, example)
    return (SymbolicNumber if type(example) in (bool, float) else Symbolic)(program, ref, example)


# Methods and properties that give an integer, and operators that make one of integers.
_INTEGERS = frozenset({"numel", "nelement", "__len__", "dim", "ndim"})
_OF_INTEGERS = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "pos", "abs", "lshift", "rshift"})


def kind_of_unknown(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> type[Symbolic]:
    """What stands for the result of a call of which nothing is known: torch takes sizes as sizes alone."""
    if name in _INTEGERS:
        return SymbolicSize
    if name in ("shape", "size"):
        one = name == "size" and (len(args) > 1 or kwargs or any(isinstance(a, TensorArray) for a in args))
        return SymbolicSize if one else SymbolicShape
    if any(isinstance(a, SymbolicShape) for a in args):
        if name == "getitem" and not isinstance(args[-1], slice):
            return SymbolicSize
        return SymbolicShape if name in ("getitem", "add", "mul") else Symbolic
    integers = name in _OF_INTEGERS and all(type(a) is int or isinstance(a, SymbolicSize) for a in args)
    return SymbolicSize if integers else Symbolic


def at_home(value: Symbolic) -> Recording:
    """The program that records what is done to a value: that of the innermost frame, inside the value's.

    Raises:
        StepError: the value's frame is not open here.
    """
    inner = around = OPEN.get()
    while around is not None and around is not value.program:
        around = around.around
    if around is None or inner is None:
        raise outside(value)
    return inner


def outside(value: Symbolic) -> StepError:
    """The error of a value that is used elsewhere than in its frame."""
    return StepError(
        "a symbolic value was used outside its frame",
        got=repr(value),
        remedy="make it before `with loop.frame()`, and write to it inside"
        if isinstance(value.example, TensorArray)
        else "write it to a TensorArray inside the frame and read it after, "
        "or take loop.results for the last loop variables",
    )


@functools.cache
def called(name: str) -> Callable[..., Any]:
    """A method by name, so that it is that of the value's own kind."""

    def method(value: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(value, name)(*args, **kwargs)

    method.__name__ = name
    return method


def _operator(name: str, swapped: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name if hasattr(operator, name) else f"{name}_")

    def call(self: Symbolic, *others: Any) -> Any:
        if isinstance(self, SymbolicNumber) and any(
            o is None or isinstance(o, (str, tuple, list)) for o in others
        ):
            if name not in ("eq", "ne"):
                return NotImplemented
            # the shapes of a tape's items have None there
            return (others[0] is None and self.program.is_open(self.example)) == (name == "eq")
        args = (*others, self) if swapped else (self, *others)
        return at_home(self).call(function, args, {}, name)

    call.__name__ = name
    return call


def _number(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def call(self: Symbolic) -> Any:
        return at_home(self).call(function, (self,), {}, name)

    call.__name__ = name
    return call


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
for _name in f"{_BINARY} eq ne lt le gt ge neg pos abs invert getitem".split():
    setattr(Symbolic, f"__{_name}__", _operator(_name))
for _name in _BINARY.split():
    setattr(Symbolic, f"__r{_name}__", _operator(_name, swapped=True))
for _name in ("__bool__", "__int__", "__float__", "__index__"):
    setattr(Symbolic, _name, _number(_name))
for _kind in (SymbolicNumber, SymbolicSize):  # torch.SymInt has operators of its own
    for _name in [n for n in vars(Symbolic) if n.startswith("__") and hasattr(operator, n)]:
        if _name != "__index__" and _name not in vars(_kind):
            setattr(_kind, _name, vars(Symbolic)[_name])
    for _name in _BINARY.split():
        setattr(_kind, f"__r{_name}__", vars(Symbolic)[f"__r{_name}__"])
