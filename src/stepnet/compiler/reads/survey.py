"""What code may find in a module or class of torch: checked in a microsecond, as anybody may replace it."""

from __future__ import annotations

import abc
import functools
import operator
import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import _symbolic_trace

from .function_parts import LOOKED_AT, has_parts, parts
from .swapped import unswapped
from .trust import (
    BY_VALUE,
    HEAP,
    ambient,
    is_foreign,
    is_machinery,
    is_of_python,
    is_of_users,
    is_stateful,
    is_trusted_builtin,
    is_trusted_class,
    is_trusted_code,
    tells_settings_by_name,
    words,
)

_DESCRIPTORS = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
KEPT_BY_COPY = "__slotnames__"  # on a class, at the first copy of one of its objects
_KERNELS = sys.modules.get("torch._VF")
_CONSTANTS = frozenset({int, bool, str, type(None)}) | BY_VALUE


class Same:
    """Part of a key: this very object, held so that no other can take its place in memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Walked(Same):
    """A class of which the key tells what it holds, too."""


class Seen(int):
    """Part of a key: the object that was met at this number."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Seen and int(other) == int(self)

    __hash__ = int.__hash__


class Survey:
    """Those attributes of a trusted module or class that code names; with no names, those of all trusted
    classes beneath a class.

    `held` are functions, classes and constants, which the survey stands for in a key; equal ones are one
    object. `others` are to be visited. `functions`: those of both that are Python, whose parts are what they
    were, but for those that are looked at anyway. `open`: why they do not tell all.
    """

    __slots__ = (
        "__weakref__", "_groups", "_sizes", "absent", "functions", "held", "names", "open", "others", "owner",
    )  # fmt: skip

    def __init__(self, owner: Any, names: frozenset[str] | None) -> None:
        self.owner = owner
        self.names = names
        self.open: str | None = None
        self.others: list[tuple[Any, str]] = []
        self._groups: list[tuple[Any, list[str], list[Any]]] = []
        self._sizes: list[tuple[Any, int]] = []
        self.absent: list[tuple[dict[str, Any], frozenset[str]]] = []  # names that modules do not hold
        if isinstance(owner, types.ModuleType):
            self._module(owner, names or frozenset(), set())
        elif names is None:
            for klass in owner.__mro__:
                if klass is nn.Module:
                    self._class(klass, sorted(CALLS))
                elif klass.__flags__ & HEAP and is_trusted_class(klass):
                    self._sizes.append((klass.__dict__, _size(klass.__dict__)))
                    self._class(klass, [name for name in klass.__dict__ if name != KEPT_BY_COPY])
        else:
            for klass in owner.__mro__[:-1]:
                self._class(klass, sorted(names))
        self.held = tuple(
            (name, Same(value))
            for _, found, values in self._groups
            for name, value in zip(found, values, strict=True)
        )
        found = [same.value for _, same in self.held] + [space.get(name) for space, name in self.others]
        inner = (item for item in map(inside, found) if isinstance(item, types.FunctionType))
        self.functions = [(item, parts(item)) for item in inner if id(item) not in LOOKED_AT]

    def _module(self, module: types.ModuleType, names: frozenset[str], seen: set[int]) -> None:
        seen.add(id(module))
        space = vars(module)
        if module is _KERNELS:  # which finds functions of C
            self._groups.append((space, ["vf"], [space["vf"]]))
            names = frozenset(name for name in names if tells_settings_by_name(name))
            self.open = self.open or (f"{module.__name__}.{min(names)}" if names else None)
            return
        found: list[str] = []
        inner: list[types.ModuleType] = []
        known = names & space.keys() if type(module) is types.ModuleType else names
        self.absent.append((space, names - known))
        for name in sorted(known):
            value = space.get(name)
            if ambient(module, name) and not _only_asks_for_script(value, names):
                self.open = self.open or f"{module.__name__}.{name}, which is not the step's own"
            elif isinstance(value, types.ModuleType) and value.__name__.startswith(f"{module.__name__}."):
                found.append(name)
                inner.append(value)
            elif _is_fixed(value):
                found.append(name)
            else:
                self.others.append((space, name))
        self._groups.append((space, found, [_beneath(name, space[name]) for name in found]))
        for part in inner:
            if id(part) not in seen:
                self._module(part, names, seen)

    def _class(self, klass: type, names: list[str]) -> None:
        space = klass.__dict__
        self._groups.append((space, names, [_beneath(name, space.get(name)) for name in names]))
        self.others += [
            (space, name) for name in names if name in space and not _is_fixed(inside(space[name]))
        ]

    @property
    def spaces(self) -> list[Any]:
        """The dicts of modules and classes that it looked into."""
        return [space for space, *_ in (*self._groups, *self._sizes)]

    def holds(self) -> bool:
        """True while every attribute is the object that it was."""
        for space, size in self._sizes:
            if _size(space) != size:
                return False
        for function, before in self.functions:
            if not has_parts(function, before):
                return False
        return all(
            all(map(operator.is_, map(space.get, names), values))
            or all(map(operator.is_, map(_beneath, names, map(space.get, names)), values))
            for space, names, values in self._groups
        )


def _size(space: Any) -> int:
    return len(space) - (KEPT_BY_COPY in space)


def _only_asks_for_script(value: Any, names: frozenset[str]) -> bool:
    """Whether code with these names asks torch.jit only whether it is compiled by it, which it is not."""
    return value is torch.jit and names & vars(value).keys() <= {"is_scripting"}


def _beneath(name: str, value: Any) -> Any:
    """What is beneath what stepnet, or torch.fx anew for each trace, puts in its place while it traces."""
    value = unswapped(value)
    traces = type(value) is types.FunctionType and value.__code__.co_filename == _symbolic_trace.__file__
    return _BENEATH.get(name, value) if traces else value


_BENEATH = {
    "__call__": _symbolic_trace._orig_module_call,
    "__getattr__": _symbolic_trace._orig_module_getattr,
}


def inside(item: Any) -> Any:
    """The function in a property, a static or a class method."""
    if isinstance(item, property):
        return item.fget
    return getattr(item, "__func__", item) if isinstance(item, (staticmethod, classmethod)) else item


def _is_fixed(value: Any) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        return is_trusted_code(value.__code__.co_filename) and not _has_set_parts(value)
    if kind is types.BuiltinFunctionType:
        return is_trusted_builtin(value)
    if isinstance(value, type):
        return is_trusted_class(value) and not is_stateful(value) and not isinstance(value, abc.ABCMeta)
    return kind in _CONSTANTS or issubclass(kind, _DESCRIPTORS)


def is_put_there(item: Any) -> bool:
    """Whether what a class of torch holds is a function of somebody else's, or one with parts that are."""
    inner = inside(item)
    return isinstance(inner, types.FunctionType) and (is_foreign(inner) or _has_set_parts(inner))


def _has_set_parts(function: types.FunctionType) -> bool:
    """Whether parts of a function of torch are something that somebody set, or may change."""
    held, file = parts(function), function.__code__.co_filename
    if is_of_python(file):  # around another one, it may keep a set of its own
        held = [part for part in held if type(part) is types.FunctionType]
    return not is_machinery(file) and any(map(_may_be_set, held))


def _may_be_set(part: Any) -> bool:
    if type(part) is tuple:
        return any(map(_may_be_set, part))
    if type(part) is types.FunctionType:
        return is_foreign(part)
    own = isinstance(part, (list, set, torch.Tensor))
    return own or (is_of_users(part) and not is_trusted_class(type(part)))


CALLS = words("__call__ _call_impl _wrapped_call_impl __getattr__ __setattr__ forward train eval")
# Classes of the user's are among the owners: none is held for longer than its survey is of use.
_EQUAL: weakref.WeakValueDictionary[Any, Survey] = weakref.WeakValueDictionary()


@functools.lru_cache(maxsize=4096)
def _made(owner: Any, names: frozenset[str] | None) -> tuple[Survey, Sequence[tuple[Any, frozenset[str]]]]:
    """The survey, which may be one for other names, and those that it does not hold."""
    found = Survey(owner, names)
    others = tuple(name for _, name in found.others)
    set_parts = tuple(Same(part) for _, held in found.functions for part in held)
    form = owner, found.held, set_parts, others, found.open, names is None
    return _EQUAL.setdefault(form, found), found.absent


def survey(owner: Any, names: frozenset[str] | None) -> Survey:
    """The survey of a module or class for code that mentions these names.

    >>> import math
    >>> [name for name, _ in survey(math, frozenset({"pi", "sin", "x"})).held]
    ['pi', 'sin']
    """
    found, absent = _made(owner, names)
    if not (found.holds() and all(space.keys().isdisjoint(not_there) for space, not_there in absent)):
        _made.cache_clear()  # somebody put something else there
        found, _ = _made(owner, names)
    return found
