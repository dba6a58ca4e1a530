"""What models from files share, whatever the format: inputs by name, and how their loops ran."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from stepnet.data.convert import from_array
from stepnet.data.dtypes import dtype_name, typed_shape
from stepnet.data.lod import LoDTensor
from stepnet.data.outputs import Outputs
from stepnet.data.recording import Interned, LeftByRuns, ToldByContent
from stepnet.data.tensor_guards import alike
from stepnet.errors import Unsupported

from .file_errors import Misgiven

STATES = "stepnet.states"  # under which metadata lists the pairs of inputs and outputs that are states
_RAGGED = (
    "a model from a file takes no ragged sequences: x.to_padded() gives a tensor and the lengths; "
    "for streams, hand each output of `model.states` to the next call"
)


def beside(inputs: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Where inputs are on a GPU, what a model makes of numbers alone is made there."""
    for value in inputs:
        if isinstance(value, Tensor) and value.is_cuda:
            return value.device
    return contextlib.nullcontext()


def shorten(text: str, limit: int = 80) -> str:
    """Text of a file as a message can hold it."""
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(frozen=True)
class Socket:
    """An input or output of a model: -1 in `shape` is any size; None: of any rank. No dtype: no tensor, but
    a sequence or an optional value; `elements` is the element type of the tensors in it.

    >>> x = Socket("x", (-1, 3), torch.float32)
    >>> str(x), x.fits(torch.zeros(7, 3)), x.fits(torch.zeros(7, 4))
    ('x: float32[?, 3]', True, False)
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    elements: torch.dtype | None = None

    def __str__(self) -> str:
        shape = "..." if self.shape is None else ", ".join("?" if d < 0 else str(d) for d in self.shape)
        kind = self.dtype or self.elements
        many = "tensors of " if self.dtype is None and kind else ""
        return f"{self.name}: {many}{'any' if kind is None else dtype_name(kind)}[{shape}]"

    def fits(self, value: Tensor) -> bool:
        """Whether a tensor has its shape."""
        if self.shape is None:
            return True
        sizes = zip(value.shape, self.shape, strict=False)
        return value.dim() == len(self.shape) and all(d in (-1, n) for n, d in sizes)


@dataclass
class LoopReport(LeftByRuns):
    """How the loop of one layer ran last: `compiled`, or why not; of the `loops` of a model.

    >>> report = LoopReport("TensorIterator 7 'gru'")
    >>> report.declined("it has a condition")
    >>> report.ran, report.compiled, report.reason
    (True, False, 'it has a condition')
    """

    asked_by = frozenset({"ran", "compiled", "reason"})

    where: str
    ran: bool = False
    compiled: bool = False
    reason: str | None = None

    def declined(self, reason: str) -> None:
        """Note why the loop is not compiled."""
        self.ran, self.compiled, self.reason = True, False, reason

    def attempt(self, why_not: str | None, run: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """What `run` gives by a plan; None where it declines, or where there is a reason not to try it."""
        try:
            if why_not is not None:
                raise Unsupported(why_not)
            out = run()
        except Unsupported as refusal:
            self.declined(refusal.reason)
            return None
        self.by_plan()
        return out

    def by_plan(self) -> None:
        """Note that the loop ran by its plan."""
        self.ran, self.compiled, self.reason = True, True, None


class FileBody(Interned):
    """The body of a loop of a file, on any number of rows: a function of its arguments, and nothing else.

    Plans that are kept hold it, so that it does not hold the body with its weights.

    Args:
        body: what runs it.
        name: the name of its layer or node.
        content: a digest of all that it does; bodies of one digest have the same plans, in all processes.
    """

    def __init__(self, body: Any, name: str, content: str) -> None:
        self.__name__, self.content = name, content
        self.portable = content
        self._body = weakref.ref(body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileBody) and other.content == self.content

    def __hash__(self) -> int:
        return hash(self.content)

    def __deepcopy__(self, memo: dict[int, Any]) -> FileBody:
        return FileBody(copy.deepcopy(self._body(), memo), self.__name__, self.content)

    def __call__(self, *values: Any, **how: Any) -> tuple[Any, ...]:
        body = self._body()
        assert body is not None
        return body(*values, **how)


class FileModel(ToldByContent, nn.Module):
    """A model read from a file, called with its inputs by position or by name.

    Attributes:
        inputs: name, shape and dtype of each input, in the order of the file.
        outputs: the same of each output.
        defaults: the same of inputs that a call may leave out, and gives by name alone.
        states: the output that is the value after a call, by the input that is the value before it.
    """

    takes_sequences = True
    defaults: tuple[Socket, ...] = ()
    _begun: frozenset[str] = frozenset()  # inputs that the file begins, where a call leaves them out
    _own: frozenset[str] = frozenset()  # names of what the constructor puts into it

    def __init__(self, name: str, where: str, inputs: Sequence[Socket], outputs: Sequence[Socket]) -> None:
        super().__init__()
        self.name, self._where = name, where
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.states: dict[str, str] = {}
        self._aliases = {socket.name: socket.name for socket in inputs}  # names that inputs answer to
        # by how many inputs were given by position, and the names of the others: their order, and what they
        # looked like
        self._taken: dict[Any, tuple[list[int], Callable[..., bool]]] = {}

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Outputs: ...

    def _recipe(self) -> tuple[Any, ...]:
        """What `_anew` makes such a model from."""
        raise NotImplementedError

    @classmethod
    def _anew(cls, *recipe: Any) -> FileModel:
        """A model of the same graph."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        """Pickled, saved and copied as a recipe, the state of its modules, and what was added to it."""
        modules = {p: m for p, m in self.named_modules() if not p or p.split(".")[0] in self._own}
        states = {
            path: {name: value for name, value in vars(module).items() if name in _OF_MODULES}
            for path, module in modules.items()
        }
        added = {name: value for name, value in vars(self).items() if name not in _OF_MODULES | self._own}
        added |= {name: module for name, module in self._modules.items() if name not in self._own}
        return _anew, (type(self), self._recipe()), (states, added)

    def __setstate__(self, state: Any) -> None:
        states, added = state
        for path, values in states.items():
            vars(self.get_submodule(path)).update(values)
        for name, value in added.items():
            setattr(self, name, value)

    def extra_repr(self) -> str:
        return f"{self.name}: ({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"

    def _content_with(self, graph: str) -> str | None:
        """Its content, where that of its graph is `graph`."""
        added = vars(self).keys() - _OF_MODULES - self._own or self._modules.keys() - self._own
        parts = (type(part).__module__ for part in self.modules())
        if added or not all(name.startswith(("stepnet.", "torch.nn.modules.")) for name in parts):
            return None
        return repr((graph, self._where, self.inputs, self.outputs))

    def others(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some values by name that are of inputs which a call may leave out."""
        return {socket.name: values[socket.name] for socket in self.defaults if socket.name in values}

    @property
    def open_sizes(self) -> dict[str, list[int]]:
        """The dimensions of the inputs that take any size; of any rank: none."""
        return {s.name: [d for d, size in enumerate(s.shape or ()) if size < 0] for s in self.inputs}

    def checked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, in order.

        Raises:
            IRError: one is missing, unknown, or of another type or shape than the file declares.
        """
        if torch.compiler.is_compiling():
            return self._found(args, kwargs)
        given, form = (*args, *kwargs.values()), (len(args), *kwargs)
        taken = self._taken.get(form)
        if taken is not None and taken[1](*given):
            return [given[place] for place in taken[0]]
        found = self._found(args, kwargs)
        if any(type(value) is not Tensor for value in given):
            return found
        places = {id(value): place for place, value in enumerate(given)}
        if given and len(places) == len(given) == len(found):
            self._taken[form] = [places[id(value)] for value in found], alike(given)
        return found

    def ordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The inputs of a call in order, if some before named the same of them; nothing else is checked."""
        taken = self._taken.get((len(args), *kwargs))
        if taken is None:
            return None
        if not kwargs:
            return args
        given = (*args, *kwargs.values())
        return [given[place] for place in taken[0]]

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module: it may take inputs of another type then."""
        self._taken = {}
        return super()._apply(*args, **kwargs)

    def _found(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, in order, each held against what the file declares."""
        names = [socket.name for socket in self.inputs]
        where = f"{self._where}: the model"
        if len(args) > len(names):
            raise Misgiven(f"{where} has {len(names)} inputs", got=f"{len(args)} by position", expected=names)
        values: dict[str, Any] = dict(zip(names, args, strict=False))
        for key, value in kwargs.items():
            name = self._aliases.get(key)
            if name is None:
                known = [*names, *(socket.name for socket in self.defaults)]
                raise Misgiven(f"{where} has no input '{shorten(key)}'", got=key, expected=known)
            if name in values:
                raise Misgiven(
                    f"{where} is given input '{name}' twice", got="by place and by name", expected="once"
                )
            values[name] = value
        values = dict.fromkeys(self._begun) | values
        missing = [name for name in names if name not in values]
        if missing:
            raise Misgiven(f"{where} is not given input '{missing[0]}'", got=list(values), expected=names)
        return [self._checked(socket, values[socket.name]) for socket in self.inputs]

    def _checked(self, socket: Socket, value: Any) -> Any:
        if value is None and socket.name in self._begun:
            return None
        where = f"{self._where}: input '{socket.name}'"
        value = _as_tensor(where, socket, value)
        if socket.dtype is None:
            return self._checked_parts(where, socket, value)
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested:
            remedy = _RAGGED if isinstance(value, LoDTensor) else None
            what, got = f"{where} must be a tensor or an array", type(value).__name__
            raise Misgiven(what, got=got, expected=socket, remedy=remedy)
        if not self._is_of(socket.dtype, value) or not socket.fits(value):
            got = f"{dtype_name(value.dtype)}{list(value.shape)}"
            raise Misgiven(f"{where} does not fit", got=got, expected=socket)
        return value

    def _checked_parts(self, where: str, socket: Socket, value: Any) -> Any:
        """A sequence, or an optional value: its tensors are of the element type that the file declares."""
        listed = isinstance(value, (list, tuple))
        found = [_as_tensor(where, socket, part) for part in value] if listed else [value]
        for k, part in enumerate(found):
            at = f", at {k}" if listed else ""
            if listed and not isinstance(part, Tensor):
                what = f"{where} holds something else than tensors and arrays{at}"
                raise Misgiven(what, got=type(part).__name__, expected="a list of tensors or arrays")
            if isinstance(part, Tensor) and socket.elements and not self._is_of(socket.elements, part):
                what = f"{where} holds a tensor of another element type{at}"
                raise Misgiven(what, got=typed_shape(part), expected=socket)
        return found if listed else value

    def _is_of(self, declared: torch.dtype, value: Tensor) -> bool:
        fits = value.dtype == declared
        if not fits and value.is_floating_point() and declared.is_floating_point:
            return self._takes(value.dtype, declared)
        return fits

    def _takes(self, given: torch.dtype, declared: torch.dtype) -> bool:
        """Whether the model was taken to another floating type than its file declares (`model.double()`)."""
        raise NotImplementedError


def _as_tensor(where: str, socket: Socket, value: Any) -> Any:
    """An array as a tensor; what is none as it is."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    try:
        return from_array(value)
    except TypeError as problem:
        what = f"{where} is of a type that torch has none for"
        raise Misgiven(what, got=value.dtype, expected=socket) from problem


_OF_MODULES = {*vars(nn.Module()), "_compiled_call_impl"} - {"_modules"}


def _anew(kind: type[FileModel], recipe: tuple[Any, ...]) -> FileModel:
    return kind._anew(*recipe)
