"""What a step can reach: the tensors and the plain values it reads besides its arguments.

One walk over closures, globals that the code names, defaults, bound objects, modules and containers.
The walk is deterministic, so equal keys mean equal structure, and the i-th tensor of one walk is the
i-th of the next: weights are found again at every call, by place and not by identity.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepnet.data.recording import Interned

_SIMPLE = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, Enum)
_PLAIN = frozenset({int, bool, str, type(None)})
FOREIGN = ("torch", "numpy", "builtins", "typing", "collections", "math", "functools", "abc")
# A module's forward may call stepnet itself; what that reaches is the same for every step.
_PARTS = ("api", "engine", "backends", "compiler", "data", "front", "ir", "iterator", "run")
_PACKAGE = Path(__file__).parents[1]
_OURS = tuple(str(_PACKAGE / part) for part in _PARTS)
_LIBRARY = str(_PACKAGE) + os.sep
_TABLES = frozenset({"_parameters", "_buffers", "_modules"})
_MODULE_NOISE = frozenset(nn.Module().__dict__) - {"training", *_TABLES}
_LIMIT = 4000  # objects; a step that reaches more is not worth keying
_MOST_BYTES = 4096  # of an array whose numbers are part of the key


class Same:
    """Part of a key: this very object, held so that no other can take its place in memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass
class Reach:
    """`key` identifies structure and plain values; `tensors` are in the order of the walk."""

    key: tuple[Any, ...]
    tensors: list[Tensor]
    complete: bool

    @property
    def files(self) -> frozenset[str]:
        """The source files of the step's own functions; not those of the machinery around it."""
        files = (item.co_filename for item in self.key if isinstance(item, types.CodeType))
        return frozenset(name for name in files if not name.startswith(_OURS))


@dataclass
class _Walk:
    key: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)  # ids in `seen` must stay taken during the walk
    complete: bool = True

    def visit(self, value: Any) -> None:
        kind = type(value)
        add = self.key.append
        if kind in _PLAIN:
            add(value)
            add(kind)  # 1, 1.0 and True are equal but trace differently
            return
        seen = self.seen
        place = id(value)
        known = seen.get(place)
        if known is not None:
            add(("seen", known))
            return
        how = _how(kind)
        if how is None:
            add(value)
            add(kind)
            if kind is float and value != value:
                self.key[-2] = "nan"
            return
        if len(seen) >= _LIMIT:
            self.complete = False
            return
        seen[place] = len(seen)
        self.alive.append(value)
        how(self, value)

    def _tensor(self, value: Any) -> None:
        self.key.append(type(value))
        self.tensors.append(value)

    def _interned(self, value: Any) -> None:
        self.key.append(value)

    def _array(self, value: Any) -> None:  # numbers that a trace bakes in
        self.complete &= value.nbytes <= _MOST_BYTES
        content = value.tobytes() if value.nbytes <= _MOST_BYTES else id(value)
        self.key.append((value.dtype.str, value.shape, content))

    def _method(self, value: Any) -> None:
        self.visit(value.__func__)
        self.visit(value.__self__)

    def _partial(self, value: Any) -> None:
        self.visit(value.func)  # first: a key begins with the code of its step
        self.key.append("partial")
        self.visit(value.args)
        self.visit(value.keywords)

    def _sequence(self, value: Any) -> None:
        self.key.append((type(value), len(value)))
        for item in value:
            self.visit(item)

    def _mapping(self, value: Any) -> None:
        self.key.append((type(value), len(value)))
        for k, v in value.items():
            self.visit(k)
            self.visit(v)

    def _identity(self, value: Any) -> None:
        self.key.append(Same(value))

    def _object(self, value: Any) -> None:
        self.key.append(type(value))
        self._methods(type(value), "__call__")
        for name, item in getattr(value, "__dict__", {}).items():
            self.key.append(name)
            self.visit(item)
        for name in getattr(type(value), "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name):
                self.key.append(name)
                self.visit(getattr(value, name))

    def _module(self, module: nn.Module) -> None:
        kind = type(module)
        key, visit = self.key, self.visit
        key.append(kind)
        if self._own(kind):
            self._methods(kind, "forward")
        for name, item in module.__dict__.items():
            if name in _MODULE_NOISE:
                if item and "hook" in name and isinstance(item, dict):
                    visit(item)
            elif item or name not in _TABLES:
                key.append(name)
                visit(item)

    def _methods(self, kind: type, entry: str) -> None:
        """The code that calling an object may run, and the plain class attributes that code names."""
        functions, attributes = class_parts(kind, entry, getattr(kind, entry, None))
        for function in functions:
            self.visit(function)
        for name in attributes:
            self.key.append(name)
            self.visit(getattr(kind, name, None))

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.key.append(code)
        if not self._own(function) or code.co_filename.startswith(_OURS):
            return
        if function.__closure__ is None and code.co_filename.startswith(_LIBRARY):
            return  # the library's globals are its own
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents)
            except ValueError:  # an empty cell: not assigned yet
                self.key.append("empty")
        if function.__defaults__:
            self.visit(function.__defaults__)
        if function.__kwdefaults__:
            self.visit(function.__kwdefaults__)
        for name in names_in(function.__code__):
            if name in function.__globals__:
                self.key.append(name)
                self._global(function.__globals__[name], function.__code__)

    def _global(self, value: Any, code: types.CodeType) -> None:
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] not in FOREIGN:
                for name in names_in(code):
                    inner = getattr(value, name, None)
                    if isinstance(inner, (*_SIMPLE, Tensor, nn.Module, types.FunctionType)):
                        self.visit(inner)
            return
        self.visit(value)

    @staticmethod
    def _own(kind: Any) -> bool:
        return (getattr(kind, "__module__", None) or "builtins").split(".")[0] not in FOREIGN


@functools.lru_cache(maxsize=512)
def class_parts(kind: type, entry: str, first: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Methods reachable from `entry` by name, and the names of plain class attributes they mention.

    `first` is the entry itself, so that replacing it is noticed.
    """
    functions: dict[str, Any] = {}
    attributes: dict[str, None] = {}
    todo = [entry]
    while todo:
        name = todo.pop()
        found = inspect.getattr_static(kind, name, None)
        if isinstance(found, property):
            found = found.fget
        found = getattr(found, "__func__", found)
        if isinstance(found, types.FunctionType) and name not in functions:
            functions[name] = found
            todo += names_in(found.__code__)
        elif isinstance(found, _SIMPLE) and found is not None and name not in ("training",):
            attributes[name] = None
    return tuple(functions.values()), tuple(attributes)


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Every global or attribute name that a code object and those inside it mention."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(names_in(constant)))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _how(kind: type) -> Callable[[_Walk, Any], None] | None:
    """What visits values of a type; None: a value is its own key."""
    for kinds, how in (
        (_SIMPLE, None),
        (Interned, _Walk._interned),
        (Tensor, _Walk._tensor),
        ((np.ndarray, np.generic), _Walk._array),
        (nn.Module, _Walk._module),
        (types.FunctionType, _Walk._function),
        (types.MethodType, _Walk._method),
        (functools.partial, _Walk._partial),
        ((list, tuple), _Walk._sequence),
        (dict, _Walk._mapping),
    ):
        if issubclass(kind, kinds):
            return how
    return _Walk._identity if issubclass(kind, type) or not _Walk._own(kind) else _Walk._object


def reach(step: Callable[..., Any]) -> Reach:
    """Walk from a step.

    >>> w = torch.ones(2)
    >>> reach(lambda x, s: (x * w, s)).tensors[0] is w
    True
    """
    walk = _Walk()
    walk.visit(step)
    return Reach(tuple(walk.key), walk.tensors, walk.complete)
