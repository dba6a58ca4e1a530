"""The program that is recorded in a frame, and a memory of programs that were recorded before.

A training loop records the same frame again and again. So programs are kept as a tree: each operation leads
to the next, and where one is known, what it gives is known too, without trying it on shapes again.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.array import TensorArray, contents_of
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import gradients_set
from stepnet.data.recording import RECORDER, UNKNOWN, StandIn
from stepnet.data.tree import Spec, flatten, leaves, map_leaves, unflatten
from stepnet.errors import ArrayError, StepError, StepnetError
from stepnet.user_line import user_line
from stepnet.watchers import during

from .examples import (
    SYMBOLIC_SIZES,
    bare_leaf,
    does_not_fit,
    first_place,
    in_place,
    key_of,
    like_values_of,
    named,
    no_number,
    on_meta,
)
from .lines import line_in, lines_of, one_whole
from .meta import asks_for_data, for_shapes, without_data
from .modes import modes, under
from .recorded import Break, Call, Count, Guard, Op, Read, Write
from .symbolic import OPEN, Symbolic, SymbolicSize, called, kind_of_unknown, outside, symbolic
from .template import Ref, Shape, encode, places, ref, renamed, resolve

_CONCRETE = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"}
_SIZES = {"shape", "size", "__len__", "numel", "nelement"}
_NONE, _FIRST, _EVERY = range(3)  # of which steps an example tells the shape


@dataclass(eq=False)
class TrieNode:
    """A program recorded up to an operation: that operation, what it gives, and what may come next."""

    op: Op | None = None
    examples: tuple[Any, ...] = ()  # of the values that it gives
    spec: Spec | None = None  # how they are nested; None for one value
    told: tuple[bool, ...] = ()  # of each, whether Python gets it as it is, and each step checks it
    unknown: type[Symbolic] = Symbolic  # what stands for a value without example
    next: dict[Any, TrieNode] = field(default_factory=dict)
    found: Any = None  # at a program's end: what was found out about it


_roots: dict[Any, TrieNode] = {}
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
        self._shapes_true_of: dict[int, int] = {}  # by place
        self.around: Program | None = None  # of the frame around this one
        self.made: dict[int, TensorArray] = {}  # in the frame, by id
        self._modes = modes()
        self.with_gradient = False  # as Python has it: it does not know what torch does around a forward
        for variable in variables:
            self._note(variable)
        likes = tuple(key_of(v) for v in variables)
        key = (site, likes, torch.get_default_dtype(), self._modes)
        global _count
        if _count > _MOST:
            _roots.clear()
            _count = 0
        self.known: TrieNode | None = None
        if None not in likes:
            with contextlib.suppress(TypeError):  # a size that is left open does not hash
                self.known = _roots.setdefault(key, TrieNode())
        examples = self.known.examples if self.known is not None else ()
        if not examples:
            examples = tuple(self._bare(v) for v in variables)
            if self.known is not None:
                self.known.examples = examples
        self.variables = len(variables)
        self.parameters = tuple(self._value(example) for example in examples)

    def _note(self, value: Any) -> None:
        if isinstance(value, StandIn):
            self.stand_in = value
        elif isinstance(value, (Tensor, LoDTensor)) and value.device.type != "cpu":
            self.device = value.device

    def _value(self, example: Any, unknown: type[Symbolic] = Symbolic) -> Any:
        self.examples.append(example)
        return symbolic(self, ref(len(self.examples) - 1), example, unknown)

    def template(self, tree: Any) -> Any:
        """The template of arguments; tensors from outside become constants of the program.

        Raises:
            StepError: a symbolic value belongs to another frame, or to one that was left.
        """
        return encode(tree, self._ref)

    def _ref(self, value: Any) -> Ref | None:
        if isinstance(value, TensorArray):
            known = isinstance(value.deferred, Symbolic) or id(value) in self.made
            if not known or self._numbers.get(id(value)) in self._last:
                return ref(-1 - self._number(value))
            # As it is now: what is written to it later is not seen by what is recorded here.
            value = copy.copy(value) if value.deferred is None else value.deferred
        if isinstance(value, Symbolic) and value.program is self:
            if not self.open:
                raise outside(value)
            return value._ref
        if not isinstance(value, (Tensor, LoDTensor, StandIn, Symbolic, TensorArray, PackedSequence)):
            return None
        if isinstance(value, Symbolic) and not self._encloses(value.program):
            raise outside(value)
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = ref(len(self.examples))
            self.constants[place.place] = value
            self.examples.append(None)
            self._note(value)
            like = key_of(value)
            if like is None:
                self.known = None
            self._fresh.append(like)
        return place

    def _encloses(self, program: Any) -> bool:
        around = self.around
        while around is not None and around is not program:
            around = around.around
        return around is not None and program.open

    def made_inside(self, array: TensorArray) -> bool:
        """Whether an array was made in this frame or in one around it, so that each step has its own."""
        program: Program | None = self
        while program is not None:
            if id(array) in program.made:
                return True
            program = program.around
        return False

    def _next(self, make: Callable[[], TrieNode], *key: Any) -> TrieNode:
        """What comes next, as it is known from before, or as it is made."""
        global _count
        key = (*key, *self._fresh)
        self._fresh.clear()
        known = None
        if self.known is not None:
            try:
                known = self.known.next.get(key)
            except TypeError:  # an argument that does not hash
                self.known = None
        if known is None:
            known = make()
            if self.known is not None:
                self.known.next[key] = known
                _count += 1
        if self.known is not None:
            self.known = known
        if known.op is not None:
            self.ops.append(known.op)
        return known

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str = "",
        line: str = "",
    ) -> Any:
        """Record a call; gives symbolic values, and what is the same at every step as it is."""
        if self.with_gradient and not (torch.is_grad_enabled() or torch.is_inference_mode_enabled()):
            raise StepError(
                "the forward of an autograd Function is no part of a frame: it would lose its gradient",
                got=line or user_line().short,
                remedy="stepnet.map_fn(Function.apply, value): what it calls keeps its gradient",
            )
        function = under(function, self._modes)
        args_template = self.template(args)
        kwargs_template = self.template(kwargs) if kwargs else ()
        name = args[1] if function is getattr else name or getattr(function, "__name__", repr(function))
        fixed = name in _SIZES and self._fixed(args_template) and self._fixed(kwargs_template)

        def make() -> TrieNode:
            at = line or user_line().short
            given = (args, args_template), (kwargs, kwargs_template)
            known = self._new_call(function, *given, name, at, fixed)
            known.op = Call(
                function, args_template, kwargs_template, len(self.examples), len(known.examples),
                known.spec is not None, at,
            )  # fmt: skip
            return known

        known = self._next(make, Call, function, args_template, kwargs_template, fixed)
        assert isinstance(known.op, Call)
        line = known.op.line
        values = [self._value(example, known.unknown) for example in known.examples]
        for i, told in enumerate(known.told):
            if told:
                values[i] = known.examples[i]
                self.guard(ref(known.op.out + i), values[i], known.op.line)
        if known.spec is None:
            parts = getattr(function, "parts", 0) if known.examples[0] is None else 0
            if not parts:
                return values[0]
            return tuple(self.call(operator.getitem, (values[0], i), {}, line=line) for i in range(parts))
        return (
            unflatten(known.spec, values) if known.spec.kind is not tuple or not known.told else Shape(values)
        )

    @for_shapes
    def _new_call(
        self, function: Callable[..., Any], given_args: tuple[Any, Any], given_kwargs: tuple[Any, Any],
        name: str, line: str, fixed: bool,
    ) -> TrieNode:  # fmt: skip
        """What a call gives that was not met before, as far as its inputs without data tell."""
        (args, args_template), (kwargs, kwargs_template) = given_args, given_kwargs
        _check_call(function, name, kwargs, line)
        if name in ("__getitem__", "getitem"):  # without data, an index that is one integer is to be a number
            args = (args[0], map_leaves(self._as_long(args[1]), Symbolic, first_place))
        given = [
            v.example if isinstance(v, Symbolic) else None
            for v in leaves((args, kwargs), (Symbolic, TensorArray))
        ]
        unknown = TrieNode(None, (None,), unknown=kind_of_unknown(name, args, kwargs))
        like = getattr(function, "like", None)
        try:
            if like is not None:
                example = self._run_like(like, args_template, kwargs_template or {})
            else:
                example = self._run_bare(function, args, kwargs, given)
        except (_Unknown, NotImplementedError):
            return unknown
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError, StepnetError) as error:
            known = all(isinstance(v, (Tensor, int, float)) for v in given)
            known &= self._true_of((args_template, kwargs_template)) != _NONE
            met = [*given, *leaves((args, kwargs), Tensor)]
            if asks_for_data(error):
                return unknown
            if not known or any(isinstance(v, Tensor) and not v.numel() for v in met):
                return unknown  # what stands for it here says too little
            raise does_not_fit(name, error, given, line) from error
        leaves_of, nested = flatten(example)
        bare = tuple([bare_leaf(leaf) for leaf in leaves_of])
        spec = nested if nested.kind is not None else None
        if any(isinstance(leaf, torch.SymInt) for leaf in bare):  # of a module that is traced
            return TrieNode(None, bare, spec, (True,) * len(bare))
        if any(isinstance(leaf, (Tensor, LoDTensor, TensorArray)) or leaf is None for leaf in bare):
            return TrieNode(None, bare, spec)
        numbers = all(type(leaf) in (int, float, bool) for leaf in bare)
        of_numbers = like is not None or name in _SIZES or any(type(v) in (int, float, bool) for v in given)
        if not (numbers and of_numbers):
            return TrieNode(None, (example,), None, (True,))
        closed = name in ("shape", "size") and self.stand_in is not None
        closed &= self._true_of((args_template, kwargs_template)) == _EVERY
        dims = range(len(bare)) if len(bare) > 1 or name == "shape" else [*args[1:], *kwargs.values(), 0]
        return TrieNode(None, bare, spec, self._told(bare, dims, fixed, closed))

    def _as_long(self, index: Any) -> Any:
        """An index, with slices as long as their ends are apart, where that is known."""
        if isinstance(index, tuple):
            return tuple(map(self._as_long, index))
        if not (isinstance(index, slice) and isinstance(index.start, Symbolic)):
            return index
        lines = lines_of([op for op in self.ops if isinstance(op, Call)], self.wholes())
        start, stop = (line_in(lines, self.template(bound)) for bound in (index.start, index.stop))
        apart = None if start is None or stop is None else stop.plus(start, -1)
        if apart is None or not all(type(self.examples[place]) is int for place, _ in apart.terms):
            return index
        return slice(0, max(apart.at(dict(enumerate(self.examples))), 0), index.step)

    def wholes(self) -> list[int]:
        """The places of whole numbers that are there before a turn."""
        values = dict(enumerate(self.examples)) | self.constants
        before = {*range(self.variables), *self.constants}
        return [
            place for place, value in values.items()
            if one_whole(value) and (place in before or not isinstance(value, Tensor))
        ]  # fmt: skip

    def _run_bare(self, function: Callable[..., Any], args: Any, kwargs: Any, given: list[Any]) -> Any:
        """What a function gives for values without data."""
        sizes = any(type(v) in (int, float) for v in given)  # given to what makes tensors, perhaps
        where = torch.device("meta") if sizes else contextlib.nullcontext()
        with gradients_set(False), where, during(RECORDER, None):
            return named(function(*self._example_of(args), **on_meta(self._example_of(kwargs))))

    def _told(
        self, numbers: tuple[Any, ...], dims: Iterable[Any], fixed: bool, closed: bool
    ) -> tuple[bool, ...]:
        """Which of these sizes Python gets as they are: all, if they are fixed; of what comes from a tape,
        those but the first may be the same whatever the tape is played with (`closed`)."""
        return tuple(
            [
                fixed or (closed and d != 0 and not self.is_open(n))
                for d, n in zip(dims, numbers, strict=False)
            ]
        )

    def _run_like(self, like: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What stands for the result of a function of our own, which runs functions of the user."""
        values: Any = {-1 - number: TensorArray() for number in range(len(self.arrays))}
        for place, example in enumerate(self.examples):
            bare = self._bare(self.constants[place]) if place in self.constants else example
            values[place] = UNKNOWN if bare is None else bare
        with during(OPEN, None), during(RECORDER, None), gradients_set(False):
            return like(*resolve(args, values), **resolve(kwargs, values))

    def is_open(self, size: Any) -> bool:
        """Whether a size is one of those that are known only when a tape is played."""
        return self.stand_in is not None and self.stand_in.stand_in_shape((size,)) == (None,)

    def _fixed(self, template: Any) -> bool:
        """Whether what a template refers to can have but one shape: it follows from constants and from arrays
        that are one tensor. Guards check it."""
        return self.stand_in is None and self.around is None and self._true_of(template) == _EVERY

    def keeps_shape(self, value: Ref) -> bool:
        """Whether a value has the same shape at every step if the loop variables have."""
        return self._true_of(value) != _NONE

    def _true_of(self, template: Any) -> int:
        """Of which steps the examples of what a template refers to tell the shapes: of none, of the first, as
        those of loop variables do, or of every step."""
        return min(map(self._true_at, places(template)), default=_EVERY)

    def _true_at(self, place: int) -> int:
        if place < self.variables or place in self.constants:
            return _NONE if place < 0 else _FIRST if place < self.variables else _EVERY
        known = self._shapes_true_of.get(place)
        if known is None:
            op, known = self._maker(place), _NONE
            if isinstance(op, Read):
                array = self.arrays[op.array]
                tried = array.deferred.stand_in_example() if isinstance(array.deferred, StandIn) else array
                if (
                    not isinstance(array.deferred, Symbolic)
                    and tried is not None
                    and contents_of(tried).whole is not None
                ):
                    known = self._true_of(op.default)
            elif (
                isinstance(op, Call) and self.examples[place] is not None and not hasattr(op.function, "like")
            ):
                known = self._true_of((op.args, op.kwargs))
            self._shapes_true_of[place] = known
        return known

    def _maker(self, place: int) -> Op:
        """The operation that gives the value at a place."""
        for op in reversed(self.ops):
            if isinstance(op, (Call, Read, Count)):
                count = op.count if isinstance(op, Call) else 1
                if op.out <= place < op.out + count:
                    return op
        raise AssertionError("no operation gives this value")

    def guard(self, of: Ref, told: Any, line: str = "") -> None:
        """Record that Python was told a number, which each step must have again."""
        self._plain(Guard, line, of, told)

    def told_number(self, value: Symbolic) -> Any:
        """A symbolic number for Python: that of the first step, which every other step must have, too."""
        number, line = value.example, user_line().short
        if number is None:
            raise StepError(
                "Python needs one number for all steps of a frame, and here it has none yet",
                got=line,
                remedy=SYMBOLIC_SIZES,
            )
        if self.is_open(number):
            raise StepError(
                "Python needs a size that is known only when the tape is played",
                got=line,
                remedy="functions that need no number, such as torch.zeros_like(value)",
            )
        self.guard(self.template(value), number, line)
        return number

    def told_length(self, value: Symbolic) -> int:
        """`len` of a value, which can only be a number."""
        example = value.example
        if example is None:
            raise StepError(
                "this symbolic value's length is not known, so it cannot be taken apart",
                got=user_line().short,
                remedy="index it; value.shape[0] is its length as a symbolic number",
            )
        if isinstance(example, LoDTensor):
            size = self.call(called("__len__"), (value,), {}, "__len__")
        else:
            size = self.call(Tensor.size, (value, 0), {})
        return operator.index(size)

    def _example_of(self, tree: Any) -> Any:
        """The tree without data.

        Raises:
            _Unknown: a value's shape is not known.
        """

        def example(value: Any) -> Any:
            if isinstance(value, TensorArray):
                found = value.deferred.example if isinstance(value.deferred, Symbolic) else None
            else:
                found = value.example if isinstance(value, Symbolic) else self._bare(value)
            if found is None:
                raise _Unknown
            return found

        return map_leaves(tree, (Symbolic, Tensor, LoDTensor, StandIn, TensorArray), example)

    @for_shapes
    def _bare(self, value: Any) -> Any:
        """A value from outside without data; None where that says too little."""
        if isinstance(value, StandIn):
            value = value.stand_in_example()
        if isinstance(value, LoDTensor):
            return bare_leaf(value)
        if isinstance(value, Symbolic):  # of a frame around this one
            return value.example
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._meta:
            self._meta[id(value)] = value, without_data(value)  # held: an id must stay taken
        return self._meta[id(value)][1]

    def _number(self, array: TensorArray) -> int:
        number = self._numbers.get(id(array))
        if number is None:
            number = self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
            if array.deferred is not None:
                self._note(array.deferred)
                if isinstance(array.deferred, Symbolic):
                    self.known = None
            else:
                self._note(contents_of(array).like)
        return number

    def read(self, array: TensorArray, index: Any, default: Any = None, line: str = "") -> Symbolic:
        """Record `array.read(index, default)`."""
        number = self._number(array)
        example = self._last.get(number)
        if example is None and default is not None:
            example = default.example if isinstance(default, Symbolic) else default
        if example is None:
            example = like_values_of(array)
        if isinstance(example, StandIn):
            example = example.stand_in_example()
        index, default = self.template((index, default))
        known_example = isinstance(example, (Tensor, LoDTensor))
        like = key_of(example) if known_example else None
        if known_example and like is None:
            self.known = None

        def make() -> TrieNode:
            op = Read(number, index, default, len(self.examples), line or user_line().short)
            return TrieNode(op, (self._bare(example) if known_example else None,))

        known = self._next(make, Read, number, index, default, like, array.deferred is None)
        return self._value(known.examples[0])

    def last_written(self, number: int) -> Any:
        """What was written last to an array, without data; None where it is not known."""
        return self._bare(self._last.get(number))

    def written(self) -> list[int]:
        """The numbers of the arrays that are written in place, here or in a frame inside."""
        return sorted(self._last)

    def is_own(self, array: TensorArray) -> bool:
        """Whether an array is one of each step: made in this frame, or a value of its program."""
        deferred = array.deferred
        return id(array) in self.made or (isinstance(deferred, Symbolic) and deferred.program is self)

    def written_inside(self, array: TensorArray, value: Any) -> None:
        """A frame inside writes to an array of a frame around this one."""
        self._last[self._number(array)] = value

    def read_in_place(self) -> None:
        """Let operations that take an array of a frame around, which this one writes, take it as it is then,
        not as it was before the loop."""
        pairs = [(self.arrays[number].deferred, ref(-1 - number)) for number in self._last]
        changed = {
            at: new for at, value in self.constants.items() for deferred, new in pairs if value is deferred
        }
        if changed:
            self.ops = [
                replace(op, args=renamed(op.args, changed), kwargs=renamed(op.kwargs, changed))
                if isinstance(op, Call)
                else op
                for op in self.ops
            ]

    def size(self, array: TensorArray, line: str = "") -> Any:
        """Record `array.size()`."""
        number = self._number(array)
        example = None if array.deferred is not None else contents_of(array).size

        def make() -> TrieNode:
            return TrieNode(Count(number, len(self.examples), line or user_line().short), (example,))

        return self._value(self._next(make, Count, number, example).examples[0], SymbolicSize)

    def write(
        self, array: TensorArray, index: Any, value: Any, data_shared: bool = True, line: str = ""
    ) -> None:
        """Record `array.write(index, value, data_shared)`."""
        if not isinstance(value, (Symbolic, Tensor, LoDTensor, StandIn)):
            raise ArrayError(
                "TensorArray.write: the value is no tensor",
                got=f"{type(value).__name__} ({line or user_line().short})",
                expected="a Tensor or a LoDTensor",
            )
        number = self._number(array)
        self._last[number] = value.example if isinstance(value, Symbolic) else value
        index, value = self.template((index, value))
        self._plain(Write, line, number, index, value, data_shared)

    def break_if(self, condition: Symbolic, line: str = "") -> None:
        """Record the end of the loop."""
        self._plain(Break, line, self.template(condition))

    def _plain(self, kind: Callable[..., Op], line: str, *parts: Any) -> None:
        """Record an operation that gives nothing."""
        self._next(lambda: TrieNode(kind(*parts, line or user_line().short)), kind, *parts)

    def close(self, updates: dict[int, Any]) -> None:
        """The frame was left; `updates` has the template of each loop variable's next value."""
        self.open = False
        self.parameters = ()  # they refer to this program: what it holds is to go with the last reference
        self._next(TrieNode, "end", tuple(sorted(updates.items())))


class _Unknown(Exception):
    """A shape that is known only when the loop runs."""


def _check_call(function: Callable[..., Any], name: str, kwargs: dict[str, Any], line: str) -> None:
    """Refuse what needs numbers, and what writes to a value."""
    if name in _CONCRETE:
        raise no_number(name.strip("_"), line)
    if in_place(function, name) or kwargs.get("out") is not None:
        raise StepError(
            f"'{name}' would change a value in place, which a frame does not record",
            got=line,
            remedy=f"{name.strip('_')}, and go on with its result",
        )
