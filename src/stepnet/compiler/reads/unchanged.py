"""Whether a step still reads what it read, told by a few words of memory in place of one more walk.

Where CPython's objects keep what a walk looked at is known: the changes of a dict are counted in one word
(`dict_changes.py`), a cell and a list hold addresses. As long as each such word is what it was, the walk
would be, too. Words are in the order of the walk: one is only read while those before it say that what it is
part of is alive.

What is noted keeps no object of the user's alive: addresses of what may die are held by weak references,
which are words themselves. A step that reads anything of another kind is walked at every call.
"""

from __future__ import annotations

import abc
import builtins
import functools
import gc
import pathlib
import types
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _torch_module

from stepnet.data.lod import LoDTensor

from .code_facts import facts
from .dict_changes import changes_at, counts_changes
from .fixed_values import FIXED
from .function_parts import words_of_parts
from .functions_set import places_of_functions
from .kinds import MISSING, PLAIN, Names, has_slots, passed_by, shows_attributes
from .monkeypatches import DISTRIBUTIONS, places
from .object_words import (
    place_of,
    places_of_a_function,
    places_of_a_partial,
    places_of_an_ordered_dict,
    word,
)
from .reach import Reach
from .survey import Survey
from .trust import BY_VALUE, is_checking_class, is_trusted_class
from .walk import has_attributes
from .walk_code import OF_FUNCTIONS
from .walk_torch_modules import HOOKS, MODULE_HOOKS

_CELL = _REFERENCE = _SIZE = 16  # bytes from the start of an object to what it holds: of CPython 3.10 to 3.13
_TYPE, _ITEMS = 8, 24
_MANAGED = 1 << 4  # of a class's flags: the dict of an object stands before it
_FIXED = frozenset({*PLAIN, *BY_VALUE, *FIXED, slice})  # never change
# Modules are looked into by name, methods and functions of C are what they are of.
_NEVER_CHANGE = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, types.ModuleType)
_MOST = 1500  # words, but for those of torch itself


class Words(NamedTuple):
    """`checks`: three numbers each: 0, an address and the word that stands there; or the addresses of a dict,
    of a name, and of what it holds by that name, 0 for nothing. `tensors` are the addresses of those of the
    walk; `kept` keeps addresses taken."""

    checks: array[int]
    tensors: array[int]
    kept: Sequence[Any]


def words(reach: Reach, key: Sequence[Any] = (), root: weakref.ref[Any] | None = None) -> Words | None:
    """What is to stay as it is for a walk to find what it found; None if that cannot be told so.

    Args:
        reach: what the walk found.
        key: that of what is around what it began at.
        root: what must be alive before anything is looked at.
    """
    at = _offsets()
    told = reach.complete and reach.open is None and reach.refused is None and not reach.generators
    if at is None or not told or reach.in_python or not reach.names.isdisjoint(OF_FUNCTIONS):
        return None
    writer = _Writer(at, reach.names)
    try:
        if root is not None:
            writer.word(id(root) + _REFERENCE)
            writer.kept.append(root)
        writer.dict(vars(builtins))
        kinds = {part for part in {*reach.key, *key} if isinstance(part, type)}
        of_kinds = places_of_functions(kinds, not DISTRIBUTIONS.isdisjoint(reach.names))
        for place in (*places(), *of_kinds):
            writer.word(place)
        of_torch = len(writer.checks)
        writer.dict(vars(_torch_module))
        for name in MODULE_HOOKS:
            if isinstance(hooks := vars(_torch_module)[name], dict):
                writer.dict(hooks)
        for part in {*reach.key, *key}:
            if type(part) is Survey:
                for space in part.spaces:
                    writer.dict(_behind(space))
                for place in words_of_parts(function for function, _ in part.functions):
                    writer.word(place)
                writer.kept.append(part)
        for held in reach.holders:
            writer.held(held)
        if len(writer.checks) > of_torch + 3 * _MOST:
            return None
        return Words(writer.checks, array("q", map(id, reach.tensors)), writer.kept)
    except _Untold:
        return None


def tells() -> bool:
    """Whether this Python is one whose words are known: 64-bit CPython 3.10 to 3.13, but for 3.13.0."""
    return _offsets() is not None


class _Untold(Exception):
    """It is of a kind that no words tell."""


class _Writer:
    """Writes down the words that tell of each object that a walk met."""

    def __init__(self, at: _Offsets, names: Set[str]) -> None:
        self.at, self.names = at, names
        self.checks: array[int] = array("q")
        self.kept: list[Any] = []
        self._dicts = set[int]()

    def word(self, address: int) -> None:
        self.checks.extend((0, address, word(address)))

    def link(self, address: int, value: Any) -> None:
        """A word that is the address of a value."""
        if word(address) != id(value):
            raise _Untold
        self.word(address)
        self._stays(value)

    def _stays(self, value: Any) -> None:
        """See that no other value comes to stand where this one does, unless what it holds is told, too."""
        if type(value) in (dict, list, tuple) or isinstance(value, Tensor):
            return  # tensors have no weak reference of ours: torch swaps none that has one
        of_type = (
            type(value) is types.MethodWrapperType and type(value.__self__) is types.WrapperDescriptorType
        )
        if type(value) in _FIXED or of_type or _is_weak(value):  # the second holds a class of C alone
            self.kept.append(value)
            return
        try:
            reference = weakref.ref(value)
        except TypeError:
            raise _Untold from None
        self.kept.append(reference)
        self.checks.extend((0, id(reference) + _REFERENCE, id(value)))

    def lookup(self, space: dict[str, Any], name: str) -> None:
        """What the dict of a module, which others may fill with other names, holds by a name."""
        if type(space) is not dict:
            raise _Untold
        value = space.get(name, MISSING)
        self.kept.append(name)
        if value is MISSING:
            self.checks.extend((id(space), id(name), 0))
        else:
            self.checks.extend((id(space), id(name), id(value)))
            self._stays(value)

    def dict(self, held: Mapping[Any, Any]) -> None:
        """A dict, whole."""
        if id(held) not in self._dicts:
            self._dicts.add(id(held))
            self.word(id(held) + _TYPE)
            self.word(changes_at(held))

    def held(self, value: Any) -> None:
        """What was visited, or is looked up in."""
        kind = type(value)
        if kind is Names:
            for name in value.names:
                self.lookup(value.space, name)
        elif kind is dict:
            self.dict(value)
        elif kind is OrderedDict:
            self._ordered(value)
        elif kind is types.CellType:
            if value == types.CellType():
                raise _Untold
            self.link(id(value) + _CELL, value.cell_contents)
        elif kind is list or kind is tuple:
            self._items(value)
        elif kind is types.FunctionType:
            self._function(value)
        elif kind is functools.partial:
            self._partial(value)
        elif issubclass(kind, pathlib.PurePath):
            self._class(kind)
        elif kind in _NEVER_CHANGE or kind in _FIXED or is_checking_class(kind):
            return
        elif kind is LoDTensor or passed_by(value, self.names):  # the first never changes
            self.word(id(value) + _TYPE)
        elif issubclass(kind, type):
            self._class(value)
        elif _is_weak(value):
            self.word(id(value) + _REFERENCE)
        else:
            self._object(value)

    def _ordered(self, value: OrderedDict[Any, Any]) -> None:
        self.dict(value)
        order, attributes = self.at.ordered
        self.word(id(value) + order)
        self.link(id(value) + attributes, value.__dict__)
        self.dict(value.__dict__)

    def _items(self, value: Any) -> None:
        if len(value) > _MOST:
            raise _Untold
        self.word(id(value) + _TYPE)
        self.word(id(value) + _SIZE)
        at = id(value) + _ITEMS
        if type(value) is list:
            self.word(at)
            at = word(at)
        for n, item in enumerate(value):
            self.link(at + 8 * n, item)

    def _function(self, function: types.FunctionType) -> None:
        known = facts(function.__code__)
        if known.imports or any(cell == types.CellType() for cell in function.__closure__ or ()):
            raise _Untold
        self.word(id(function) + _TYPE)
        parts = function.__code__, function.__defaults__, function.__kwdefaults__, function.__dict__
        for offset, part in zip(self.at.function, parts, strict=True):
            if part is None:
                self.word(id(function) + offset)
            else:
                self.link(id(function) + offset, part)
        self.dict(function.__dict__)
        for name in () if known.trusted else known.globals:
            self.lookup(function.__globals__, name)

    def _partial(self, value: functools.partial[Any]) -> None:
        self.word(id(value) + _TYPE)
        parts = value.func, value.args, value.keywords, value.__dict__  # which `__setstate__` sets
        for offset, part in zip(self.at.partial, parts, strict=True):
            self.link(id(value) + offset, part)
        self.dict(value.keywords)
        self.dict(value.__dict__)

    def _class(self, kind: type) -> None:
        if isinstance(kind, abc.ABCMeta) or (type(kind) is not type and not is_trusted_class(type(kind))):
            raise _Untold
        self.link(id(kind) + self.at.mro, kind.__mro__)
        self._items(kind.__mro__)  # a later one may come to stand where this one does
        for klass in kind.__mro__:
            if not is_trusted_class(klass):
                self.dict(_behind(klass.__dict__))

    def _object(self, value: Any) -> None:
        kind = type(value)
        self.word(id(value) + _TYPE)
        known = issubclass(kind, Tensor | nn.Module)
        if issubclass(kind, Tensor) and value.layout is not torch.strided:  # its numbers count
            raise _Untold
        if not (known or has_attributes(kind)) or has_slots(kind) or not shows_attributes(kind):
            raise _Untold
        if not is_trusted_class(kind):
            self._class(kind)
        own = object.__getattribute__(value, "__dict__")
        if type(own) is not dict:
            raise _Untold
        before = kind.__flags__ & _MANAGED or kind.__dictoffset__ < 0
        self.link(id(value) + (self.at.managed if before else kind.__dictoffset__), own)
        self.dict(own)
        if issubclass(kind, nn.Module):
            for name in HOOKS:
                if isinstance(own.get(name), dict):
                    self.word(changes_at(own[name]))


class _Offsets(NamedTuple):
    """Where CPython keeps what, in bytes from the start of an object."""

    function: tuple[int, ...]  # its code, defaults, keyword defaults, attributes
    partial: tuple[int, ...]  # its function, arguments, keyword arguments, attributes
    mro: int
    managed: int
    ordered: tuple[int, int]  # of an OrderedDict: what counts the changes of its order, its attributes


def _is_weak(value: Any) -> bool:
    """Whether a value is a weak reference that may be kept: it calls nothing as what it leads to goes."""
    return type(value) is weakref.ref and value.__callback__ is None


def _behind(space: Any) -> dict[str, Any]:
    """The dict of a module, or that of a class."""
    return space if type(space) is dict else gc.get_referents(space)[0]


@functools.cache
def _offsets() -> _Offsets | None:
    """What is known of this Python, looked up in objects made for it; None where it is another one."""
    if not counts_changes():
        return None

    class Plain:
        """Its objects have attributes, and nothing else."""

        new: Any

    one = Plain()
    attributes = vars(one)
    function, partial = places_of_a_function(), places_of_a_partial()
    mro = place_of(Plain.__mro__, Plain, range(16, 600, 8))
    managed = place_of(attributes, one, range(-32, 0, 8)) if Plain.__flags__ & _MANAGED else 0
    cell, items, pair, reference = types.CellType(one), [one, one], (one, one), weakref.ref(one)
    count = changes_at(attributes)
    before = word(count)
    one.new = one  # which no watcher is told of in CPython 3.13.0
    as_known = (
        word(id(cell) + _CELL) == word(id(reference) + _REFERENCE) == id(one)
        and word(word(id(items) + _ITEMS)) == word(id(pair) + _ITEMS) == id(one)
        and word(id(items) + _SIZE) == len(items)
        and word(id(one) + _TYPE) == id(Plain)
        and word(count) != before
    )
    ordered = places_of_an_ordered_dict()
    if not as_known or function is None or partial is None or ordered is None:
        return None
    if mro is None or managed is None:
        return None
    return _Offsets(function, partial, mro, managed, ordered)
