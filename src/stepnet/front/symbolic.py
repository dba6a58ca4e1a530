"""Symbolic values, and the program that is recorded from what is done to them."""

from __future__ import annotations

import functools
import os
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import StepError

from .step import describe_leaf

_HERE = str(Path(__file__).parents[1])
_CONCRETE = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"}


class Ref(int):
    """The place of a value in a program."""

    @property
    def place(self) -> int:
        return int(self)

    def __repr__(self) -> str:
        return f"v{int(self)}"


@dataclass(frozen=True)
class Call:
    """`values[out:] = leaves of function(*args, **kwargs)`; `line` is where the user wrote it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: int
    count: int
    line: str


@dataclass(frozen=True)
class Read:
    """`values[out] = array.read(index, default)`."""

    array: TensorArray
    index: Any
    default: Any
    out: int
    line: str


@dataclass(frozen=True)
class Write:
    """`array.write(index, value, data_shared)`."""

    array: TensorArray
    index: Any
    value: Any
    data_shared: bool
    line: str


@dataclass(frozen=True)
class Break:
    """Leave the loop if the condition holds."""

    condition: Ref
    line: str


Op = Call | Read | Write | Break


class Symbolic:
    """A value inside a frame: it has no numbers yet, and what is done to it is recorded.

    Any torch function, method or operator takes it. Its `shape`, `dtype` and `device` are those that the
    first step will see.
    """

    __slots__ = ("_example", "_program", "_ref")
    __hash__ = object.__hash__

    def __init__(self, program: Program, ref: Ref, example: Any) -> None:
        self._program, self._ref, self._example = program, ref, example

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves = flatten_call((args, kwargs or {}))
        first = next(leaf for leaf in leaves if isinstance(leaf, Symbolic))
        return first._program.call(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(Tensor, name, None)
        if attribute is None or name.startswith("__"):
            raise AttributeError(f"a symbolic value has no attribute '{name}'")
        if callable(attribute):
            return lambda *args, **kwargs: self._program.call(attribute, (self, *args), kwargs)
        return self._program.call(getattr, (self, name), {}, name)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise StepError(
            "a symbolic value is not changed in place",
            got=f"value[{key}] = ...",
            remedy="torch.where, index_copy or scatter make a new one",
        )

    def __len__(self) -> int:
        if self._example is None:
            raise StepError(
                "this symbolic value's length is not known, so it cannot be taken apart",
                remedy="index it",
            )
        return len(self._example)

    def __iter__(self) -> Any:
        len(self)
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        kind = "?" if self._example is None else describe_leaf(self._example)
        return f"<symbolic {self._ref} {kind}>"


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def call(self: Symbolic, *others: Any) -> Any:
        return self._program.call(function, (self, *others), {}, name)

    call.__name__ = name
    return call


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_OTHER = "eq ne lt le gt ge neg pos abs invert getitem bool int float index"
for _name in [*_BINARY.split(), *_OTHER.split(), *(f"r{n}" for n in _BINARY.split())]:
    if hasattr(Tensor, f"__{_name}__"):
        setattr(Symbolic, f"__{_name}__", _operator(f"__{_name}__"))


class Program:
    """What was done in a frame, in order. It gives out symbolic values while it is open."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.examples: list[Any] = []  # of each value: a tensor without data, None where it is not known
        self.open = True
        self._written: dict[int, Any] = {}  # the example of what was last written to an array
        self._meta: dict[int, tuple[Tensor, Tensor]] = {}

    def parameter(self, value: Tensor) -> Symbolic:
        """A value that each step is given, like `value`."""
        return self._value(self._like(value))

    def _value(self, example: Any) -> Symbolic:
        self.examples.append(example)
        return Symbolic(self, Ref(len(self.examples) - 1), example)

    def refs(self, tree: Any) -> Any:
        """The tree with places for symbolic values.

        Raises:
            StepError: one belongs to another frame, or to one that was left.
        """
        return replaced(tree, Symbolic, self._ref_of)

    def _ref_of(self, value: Symbolic) -> Ref:
        if not self.open or value._program is not self:
            raise StepError(
                "a symbolic value was used outside its frame",
                got=repr(value),
                remedy="write it to a TensorArray inside the frame and read it after, "
                "or take loop.results for the last loop variables",
            )
        return value._ref

    def _example_of(self, tree: Any) -> Any:
        """The tree without data; raises `_Unknown` where a value's shape is not known."""

        def example(value: Any) -> Any:
            if isinstance(value, Symbolic):
                if value._example is None:
                    raise _Unknown
                return value._example
            return self._like(value)

        return replaced(tree, (Symbolic, Tensor), example)

    def _like(self, value: Any) -> Any:
        if isinstance(value, LoDTensor):
            raise _Unknown
        if id(value) not in self._meta:
            self._meta[id(value)] = value, value.detach().to("meta")  # held: an id must stay taken
        return self._meta[id(value)][1]

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str = ""
    ) -> Any:
        """Record a call; gives symbolic values, or what does not depend on the data as it is."""
        name = name or getattr(function, "__name__", repr(function))
        args_refs, kwargs_refs = self.refs(args), self.refs(kwargs)
        line = user_line()
        if name in _CONCRETE:
            raise StepError(
                f"Python needs the number in a symbolic value ({name.strip('_')}), and it has none yet",
                got=line,
                remedy="loop.break_if(condition) ends the loop, torch.where(condition, a, b) chooses",
            )
        if (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None:
            raise StepError(
                f"'{name}' would change a value in place, which a frame does not record",
                got=line,
                remedy=f"{name.rstrip('_')}, and go on with its result",
            )
        try:
            with torch.no_grad():
                example = _result_like(function, self._example_of(args), self._example_of(kwargs))
        except (_Unknown, NotImplementedError):
            example = None
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            given = [v._example for v in flatten_call((args, kwargs)) if isinstance(v, Symbolic)]
            raise StepError(
                f"in the frame, '{name}' fails: {str(error).splitlines()[0]}",
                got=f"{', '.join(describe_leaf(v) for v in given)} ({line})",
            ) from error
        leaves, spec = ([None], None) if example is None else flatten(example)
        if example is not None and not any(isinstance(leaf, Tensor) for leaf in leaves):
            return example
        values = [self._value(leaf) for leaf in leaves]
        self.ops.append(
            Call(function, args_refs, kwargs_refs, len(self.examples) - len(leaves), len(leaves), line)
        )
        return values[0] if spec is None else unflatten(spec, values)

    def read(self, array: TensorArray, index: Any, default: Any = None) -> Symbolic:
        """Record `array.read(index, default)`."""
        example = self._written.get(id(array))
        if example is None and default is not None:
            example = default._example if isinstance(default, Symbolic) else default
        if example is None:
            example = next(iter(array._values.values()), array._pattern)
        index, default = self.refs((index, default))
        if isinstance(example, LoDTensor):
            example = None
        value = self._value(None if example is None else example.detach().to("meta"))
        self.ops.append(Read(array, index, default, value._ref.place, user_line()))
        return value

    def write(self, array: TensorArray, index: Any, value: Any, data_shared: bool = True) -> None:
        """Record `array.write(index, value, data_shared)`."""
        self._written[id(array)] = value._example if isinstance(value, Symbolic) else value
        index, value = self.refs((index, value))
        self.ops.append(Write(array, index, value, data_shared, user_line()))

    def break_if(self, condition: Symbolic) -> None:
        """Record the end of the loop."""
        self.ops.append(Break(self.refs(condition), user_line()))


class _Unknown(Exception):
    """A shape that is known only when the loop runs."""


def named(result: Any) -> Any:
    """torch's named results (of `max`, `sort`) as namedtuples, which hold symbolic values too."""
    if isinstance(result, tuple) and hasattr(result, "n_fields"):
        kind: Any = type(result)
        return _named_kind(kind.__name__, kind.__match_args__)(*result)
    return result


@functools.cache
def _named_kind(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, fields)


def replaced(tree: Any, kind: Any, new: Callable[[Any], Any]) -> Any:
    """The tree of arguments with every value of `kind` replaced."""
    if isinstance(tree, kind):
        return new(tree)
    if type(tree) in (tuple, list):
        return type(tree)(replaced(item, kind, new) for item in tree)
    if type(tree) is dict:
        return {key: replaced(item, kind, new) for key, item in tree.items()}
    if type(tree) is slice:
        return slice(*(replaced(item, kind, new) for item in (tree.start, tree.stop, tree.step)))
    return tree


def flatten_call(tree: Any) -> list[Any]:
    """All leaves of a tree of arguments."""
    if type(tree) in (tuple, list):
        parts = tree
    elif type(tree) is dict:
        parts = tree.values()
    elif type(tree) is slice:
        parts = (tree.start, tree.stop, tree.step)
    else:
        return [tree]
    return [leaf for part in parts for leaf in flatten_call(part)]


def _result_like(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a call gives, without data. Remembered: a training loop records the same frame again and again."""
    key = (function, _shapes(args), _shapes(kwargs), torch.get_default_dtype())
    try:
        if key in _known:
            return _known[key]
    except TypeError:  # an argument that does not hash
        return named(function(*args, **kwargs))
    if len(_known) > 4096:
        _known.clear()
    _known[key] = named(function(*args, **kwargs))
    return _known[key]


_known: dict[Any, Any] = {}


def _shapes(tree: Any) -> Any:
    """Arguments without data, as a key."""
    kind = type(tree)
    if isinstance(tree, Tensor):
        return kind, tree.shape, tree.stride(), tree.dtype
    if kind in (tuple, list):
        return kind, tuple(_shapes(item) for item in tree)
    if kind is dict:
        return kind, tuple((key, _shapes(item)) for key, item in tree.items())
    if kind is slice:
        return kind, _shapes((tree.start, tree.stop, tree.step))
    return kind, tree


def user_line() -> str:
    """Where in the user's code we are: `loss.py:12`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_HERE, _TORCH)):
            return f"{name.rpartition(os.sep)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


_TORCH = str(Path(torch.__file__).parent)
