"""The program that is recorded in a frame, and a memory of programs that were recorded before.

A training loop records the same frame again and again. So programs are kept as a tree: each operation leads
to the next, and where one is known, what it gives is known too, without trying it on shapes again.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import StandIn
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import StepError

from .step import describe_leaf
from .symbolic import Symbolic, flatten_call, replaced
from .template import Ref, encode, ref

_HERE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_CONCRETE = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"}
_SIZES = {"shape", "size", "__len__", "numel", "nelement"}


@dataclass(frozen=True)
class Call:
    """`values[out:] = leaves of function(*args, **kwargs)`, templates; `line` is where the user wrote it."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    out: int
    count: int
    line: str


@dataclass(frozen=True)
class Read:
    """`values[out] = arrays[array].read(index, default)`."""

    array: int
    index: Any
    default: Any
    out: int
    line: str


@dataclass(frozen=True)
class Write:
    """`arrays[array].write(index, value, data_shared)`."""

    array: int
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
_Op = TypeVar("_Op", bound=Op)


@dataclass(eq=False)
class Known:
    """A program recorded up to an operation: that operation, what it gives, and what may come next."""

    op: Op | None = None
    examples: tuple[Any, ...] = ()  # of the values that it gives
    spec: Spec | None = None  # how they are nested; None for one value
    plain: Any = None  # what it gives where it is no value of the program
    next: dict[Any, Known] = field(default_factory=dict)
    found: Any = None  # at a program's end: what was found out about it


_roots: dict[Any, Known] = {}
_MOST = 8192  # operations, before all are forgotten
_count = 0


class Program:
    """What was done in a frame, in order. It gives out symbolic values while it is open.

    Attributes:
        variables: how many loop variables there are; their places come first.
        parameters: these, as symbolic values, while the program is open.
        ops: the operations; they refer to values by their place.
        examples: of each value, a tensor without data; None where it is not known, and for a constant.
        constants: the tensors from outside the frame, by the place of their value.
        arrays: the TensorArrays, by their number.
        known: this program in the memory; None if it holds what cannot be remembered.
    """

    def __init__(self, variables: list[Any], site: Any = None) -> None:
        self.ops: list[Op] = []
        self.examples: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.arrays: list[TensorArray] = []
        self.open = True
        self.stand_in: StandIn | None = None
        self.device = torch.device("cpu")  # of the values: that of a counter says little
        self._places: dict[int, Ref] = {}  # of constants, by id
        self._fresh: list[Any] = []  # what constants are like that came in with the operation at hand
        self._numbers: dict[int, int] = {}  # of arrays, by id
        self._last: dict[int, Any] = {}  # the example of what was last written to an array
        self._meta: dict[int, tuple[Any, Tensor]] = {}
        for variable in variables:
            self._note(variable)
        likes = tuple(_like(v) for v in variables)
        key = (site, likes, torch.get_default_dtype())
        global _count
        if _count > _MOST:
            _roots.clear()
            _count = 0
        self.known: Known | None = _roots.setdefault(key, Known())
        if not self.known.examples:
            self.known.examples = tuple(self._bare(v) for v in variables)
        self.variables = len(variables)
        self.parameters = tuple(self._value(example) for example in self.known.examples)
        if None in likes:
            self.known = None

    def _note(self, value: Any) -> None:
        if isinstance(value, StandIn):
            self.stand_in = value
        elif isinstance(value, (Tensor, LoDTensor)) and value.device.type != "cpu":
            self.device = value.device

    def _value(self, example: Any) -> Symbolic:
        self.examples.append(example)
        return Symbolic(self, ref(len(self.examples) - 1), example)

    def template(self, tree: Any) -> Any:
        """The template of arguments; tensors from outside become constants of the program.

        Raises:
            StepError: a symbolic value belongs to another frame, or to one that was left.
        """
        return encode(tree, self._ref)

    def _ref(self, value: Any) -> Ref | None:
        if type(value) is Symbolic:
            if not self.open or value._program is not self:
                raise StepError(
                    "a symbolic value was used outside its frame",
                    got=repr(value),
                    remedy="write it to a TensorArray inside the frame and read it after, "
                    "or take loop.results for the last loop variables",
                )
            return value._ref
        if not isinstance(value, (Tensor, LoDTensor, StandIn)):
            return None
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = ref(len(self.examples))
            self.constants[place.place] = value
            self.examples.append(None)
            self._note(value)
            like = _like(value)
            if like is None:
                self.known = None
            self._fresh.append(like)
        return place

    def _find(self, *key: Any) -> tuple[Any, Known | None]:
        """The key of an operation, and what is known of it."""
        key = (*key, *self._fresh)
        self._fresh.clear()
        if self.known is None:
            return key, None
        try:
            return key, self.known.next.get(key)
        except TypeError:  # an argument that does not hash
            self.known = None
            return key, None

    def _remember(self, key: Any, known: Known) -> Known:
        global _count
        if self.known is not None:
            self.known.next[key] = known
            self.known = known
            _count += 1
        return known

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str = "",
        line: str = "",
    ) -> Any:
        """Record a call; gives symbolic values, or what does not depend on the data as it is."""
        args_template = self.template(args)
        kwargs_template = self.template(kwargs) if kwargs else ()
        key, known = self._find(Call, function, args_template, kwargs_template)
        if known is None:
            name = name or getattr(function, "__name__", repr(function))
            known = self._new_call(function, args, kwargs, name, line or user_line())
            if known.op is not None:
                templates = {"args": args_template, "kwargs": kwargs_template}
                known.op = Call(function, **templates, out=len(self.examples), count=len(known.examples),
                                line=line or user_line())  # fmt: skip
            known = self._remember(key, known)
        elif self.known is not None:
            self.known = known
        if known.op is None:
            return known.plain
        self.ops.append(known.op)
        if known.spec is None:
            return self._value(known.examples[0])
        return unflatten(known.spec, [self._value(example) for example in known.examples])

    def _new_call(
        self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], name: str, line: str
    ) -> Known:
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
        if name == "__getitem__":  # without data, an index that is one integer has to be a number
            args = (args[0], replaced(args[1], Symbolic, _first_place))
        try:
            with torch.no_grad():
                example = named(function(*self._example_of(args), **self._example_of(kwargs)))
        except (_Unknown, NotImplementedError):
            example = None
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            given = [v._example for v in flatten_call((args, kwargs)) if isinstance(v, Symbolic)]
            raise StepError(
                f"in the frame, '{name}' fails: {str(error).splitlines()[0]}",
                got=f"{', '.join(describe_leaf(v) for v in given)} ({line})",
            ) from error
        if example is None:
            return Known(_UNMADE, (None,))
        leaves, spec = flatten(example)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            return Known(plain=self._size(name, example, line))
        return Known(_UNMADE, tuple(leaves), spec if spec.kind is not None else None)

    def _size(self, name: str, size: Any, line: str) -> Any:
        """A size that Python asks for; of what comes from a tape, some of it is not known yet."""
        if self.stand_in is None or name not in _SIZES:
            return size
        if isinstance(size, tuple):
            return self.stand_in.stand_in_shape(size)
        return self._checked_size(size, line)

    def _checked_size(self, size: int, line: str) -> int:
        if self.stand_in is not None and self.stand_in.stand_in_shape((size,)) == (None,):
            raise StepError(
                "Python needs a size that is known only when the tape is played",
                got=line,
                remedy="functions that need no number, such as torch.zeros_like(value)",
            )
        return size

    def known_size(self, value: Symbolic, axis: int) -> int:
        """The size of a value along an axis, for Python."""
        return self._checked_size(value._example.shape[axis], user_line())

    def _example_of(self, tree: Any) -> Any:
        """The tree without data; raises `_Unknown` where a value's shape is not known."""

        def example(value: Any) -> Any:
            found = value._example if isinstance(value, Symbolic) else self._bare(value)
            if found is None:
                raise _Unknown
            return found

        return replaced(tree, (Symbolic, Tensor, LoDTensor, StandIn), example)

    def _bare(self, value: Any) -> Any:
        """A value from outside without data; None where that says too little."""
        if isinstance(value, StandIn):
            value = value.stand_in_example()
        if isinstance(value, LoDTensor):
            return None
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._meta:
            self._meta[id(value)] = value, value.detach().to("meta")  # held: an id must stay taken
        return self._meta[id(value)][1]

    def _number(self, array: TensorArray) -> int:
        number = self._numbers.get(id(array))
        if number is None:
            number = self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
            if array.deferred is not None:
                self._note(array.deferred)
            else:
                self._note(next(iter(array._written.values()), array._whole))
        return number

    def read(self, array: TensorArray, index: Any, default: Any = None, line: str = "") -> Symbolic:
        """Record `array.read(index, default)`."""
        number = self._number(array)
        example = self._last.get(number)
        if example is None and default is not None:
            example = default._example if isinstance(default, Symbolic) else default
        if example is None:
            example = like_values_of(array)
        if isinstance(example, StandIn):
            example = example.stand_in_example()
        index, default = self.template((index, default))
        known_example = isinstance(example, Tensor)
        like = _like(example) if known_example else None
        key, known = self._find(Read, number, index, default, like, array.deferred is None)
        if known is None:
            op = Read(number, index, default, len(self.examples), line or user_line())
            known = self._remember(key, Known(op, (self._bare(example) if known_example else None,)))
        elif self.known is not None:
            self.known = known
        assert known.op is not None
        self.ops.append(known.op)
        return self._value(known.examples[0])

    def write(
        self, array: TensorArray, index: Any, value: Any, data_shared: bool = True, line: str = ""
    ) -> None:
        """Record `array.write(index, value, data_shared)`."""
        number = self._number(array)
        self._last[number] = value._example if isinstance(value, Symbolic) else value
        index, value = self.template((index, value))
        self._plain(Write, lambda: line or user_line(), number, index, value, data_shared)

    def break_if(self, condition: Symbolic, line: str = "") -> None:
        """Record the end of the loop."""
        self._plain(Break, lambda: line or user_line(), self.template(condition))

    def _plain(self, kind: Callable[..., _Op], line: Callable[[], str], *parts: Any) -> None:
        """Record an operation that gives nothing."""
        key, known = self._find(kind, *parts)
        if known is None:
            known = self._remember(key, Known(kind(*parts, line())))
        elif self.known is not None:
            self.known = known
        assert known.op is not None
        self.ops.append(known.op)

    def close(self, updates: dict[int, Any]) -> None:
        """The frame was left; `updates` has the template of each loop variable's next value."""
        self.open = False
        self.parameters = ()  # they refer to this program: what it holds is to go with the last reference
        key, known = self._find("end", tuple(sorted(updates.items())))
        if known is None:
            self._remember(key, Known())
        elif self.known is not None:
            self.known = known


def like_values_of(array: TensorArray) -> Any:
    """A value like those in an array, None if it holds none."""
    if array.deferred is not None:
        array = array.deferred.stand_in_example()
        if array is None:
            return None
    if array._whole is not None:
        return array._whole[0]
    return next(iter(array._values.values()), array._pattern)


def _first_place(index: Symbolic) -> Any:
    example = index._example
    single = isinstance(example, Tensor) and not example.dim()
    return 0 if single and not example.dtype.is_floating_point and example.dtype != torch.bool else index


class _Unknown(Exception):
    """A shape that is known only when the loop runs."""


_UNMADE = Break(ref(0), "")


def _like(value: Any) -> Any:
    """What decides on the shape and dtype of results, hashable; None: nothing known does."""
    if isinstance(value, StandIn):
        like = _like(value.stand_in_example())
        return None if like is None else (StandIn, like)
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return (int, value) if type(value) is int else None


def named(result: Any) -> Any:
    """torch's named results (of `max`, `sort`) as namedtuples, which hold symbolic values too."""
    if isinstance(result, tuple) and hasattr(result, "n_fields"):
        kind: Any = type(result)
        return _named_kind(kind.__name__, kind.__match_args__)(*result)
    return result


@functools.cache
def _named_kind(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, fields)


def user_line() -> str:
    """Where in the user's code we are: `loss.py:12`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_HERE, _TORCH)):
            return f"{name.rpartition(os.sep)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
