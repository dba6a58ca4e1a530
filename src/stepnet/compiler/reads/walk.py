"""The walk over what a step reaches: how values of each kind become parts of a key. No code of the user's
runs: no truth value, no length, no comparison, no property."""

from __future__ import annotations

import array
import collections
import contextvars
import decimal
import enum
import functools
import inspect
import logging
import pathlib
import threading
import types
import weakref
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import SymBool, SymFloat, SymInt, Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import in_program
from stepnet.data.recording import Interned, ToldByContent
from stepnet.interrupts import let_through

from .as_written import written_as
from .code_facts import BY_IDENTITY, words
from .contents import SPARSE, content, entries
from .fixed_values import FIXED, told
from .kinds import (
    MISSING,
    PLAIN,
    hidden_attributes,
    led_to,
    more_than_attributes,
    passed_by,
    read_whole,
    shows_attributes,
    slot_values,
)
from .survey import Same, Seen
from .tensor_kinds import is_named_only
from .trust import (
    BY_VALUE,
    HEAP,
    is_checking_class,
    is_of_users,
    is_stateful,
    is_trusted_class,
    is_used_up,
    stays_as_it_was,
)
from .walk_state import END, LIMIT
from .walk_torch_modules import TorchModuleWalk

# Visits in each other, each a few calls of Python, which has a limit: what lies deeper is visited after them.
_DEEPEST = 30
_MOST_BYTES = 4096  # of an array whose numbers are part of the key
_OF_LOGGERS = frozenset(vars(logging.Logger("")))
_TELL_STATES = words("initial_seed get_state graphsafe_get_state clone_state")  # of torch.Generator
_TELL_CACHES = words("cache_info cache_clear")  # of functions of `functools.lru_cache`


@dataclass
class Walk(TorchModuleWalk):
    """The walk over values of all kinds."""

    def visit(self, value: Any) -> None:
        kind = type(value)
        if kind in PLAIN:
            self.key.append(value)
            self.key.append(kind)  # 1, 1.0 and True are equal but trace differently
            self._told_apart(value)
            return
        place = id(value)
        known = self.seen.get(place)
        by_python = self.in_python and not is_of_users(value)
        if known is not None and (by_python or place not in self.of_python):
            self.key.append(Seen(known))
            if self.everything and isinstance(value, Tensor):
                self.met_tensors.append(value)
            return
        if len(self.seen) >= LIMIT:
            self.complete = False
            return
        self.seen.setdefault(place, len(self.seen))
        around, self.in_python = self.in_python, by_python
        if by_python:
            self.met.append(value)
            self.of_python.add(place)
            self.hold(value)
        else:
            self.of_python.discard(place)  # what code of Python's came by before is the step's by now
            self.holders.append(value)
        if self.depth >= _DEEPEST:
            self.key.append(Seen(self.seen[place]))
            self.later.append((value, by_python, self.trail))
        else:
            self.depth += 1
            _how(kind)(self, value)
            self.depth -= 1
        self.in_python = around
        while self.later and not self.depth:
            now, self.depth = (self.in_python, self.trail), 1
            value, self.in_python, self.trail = self.later.popleft()
            _how(type(value))(self, value)
            (self.in_python, self.trail), self.depth = now, 0

    # ---- values

    def _by_value(self, value: Any) -> None:
        self.key.append((type(value), repr(value)))  # tells -0.0 from 0.0, and nan from nothing

    def _fixed(self, value: Any) -> None:
        """A value that never changes, unless code asks it for what lies elsewhere."""
        found = told(value, self.names)
        if found is not None:
            self.key.append((type(value), found))
        else:
            (self._object if isinstance(value, pathlib.PurePath) else self._unknown)(value)

    def _told_apart(self, value: Any) -> None:
        """Which equal numbers and texts are one object, where code asks by `is`."""
        if not self.names.isdisjoint(BY_IDENTITY):
            self.key.append(Seen(self.plain.setdefault(id(value), len(self.plain))))
            self.met.append(value)

    def _slice(self, value: Any) -> None:
        self.key.append(slice)
        self._items((value.start, value.stop, value.step))

    def _tensor(self, value: Any) -> None:
        kind = type(value)
        self.key.append(Tensor)
        if kind is Tensor and not value.requires_grad and value.layout in SPARSE and self._sparse(value):
            return
        self.tensors.append(value)
        if self.everything:
            self.met_tensors.append(value)
        plain = kind is Tensor or kind is nn.Parameter
        if not plain and is_named_only(kind):
            self._class(kind)
            plain = True
        if not plain:
            of_torch = is_trusted_class(kind) and kind.__mro__[1] is Tensor
            if isinstance(value, (UninitializedBuffer, UninitializedParameter)):
                self.refused = self.refused or "it has lazy parameters that its first run makes"
            elif not (of_torch and isinstance(value, (nn.Parameter, nn.Buffer))):
                self.refused = self.refused or (
                    f"it reads a {kind.__name__}, a tensor class with dispatch rules of its own"
                )
        if self.refused is None and value.layout is not torch.strided:
            self.refused = (
                f"it reads a tensor of layout {value.layout}; by its .to_dense() it would be compiled"
            )
        if self.refused is None and value.is_nested:
            self.refused = "it reads a nested tensor; by its .unbind() it would be compiled"
        if plain:  # others hold what torch runs them by
            more: dict[str, Any] = value.__dict__  # pyright: ignore[reportAssignmentType]
            self.hold(more)
            if self.everything or not self.names.isdisjoint(more):  # Dynamo leaves marks on tensors
                self._attributes(more)

    def _sparse(self, value: Tensor) -> bool:
        """A matrix of few numbers, which a trace bakes in, too; false where it is not known."""
        parts = entries(value)
        for part in parts or ():
            self._array(part.numpy())
        self.key += (value.layout, value.shape)
        return parts is not None

    def _array(self, value: Any) -> None:  # numbers that a trace bakes in
        if type(value).__flags__ & HEAP:  # a class made in Python may hold more
            self.opened(_a(type(value)))
        if isinstance(value, np.ndarray):
            value = np.ndarray.view(value, np.ndarray)
        if value.dtype.hasobject:
            self.opened("an array of objects")
            return
        numbers = content(value)
        self.complete &= numbers is not None
        dtype = value.dtype.str if value.dtype.names is None else repr(value.dtype)
        told = id(value) if numbers is None else numbers
        self.key.append((dtype, value.shape, value.strides, value.flags.num, told))

    def _ragged(self, value: LoDTensor) -> None:
        """A LoDTensor is its rows and the numbers of its offsets, which never change."""
        self.key.append(LoDTensor)
        if any(map(in_program, value.structure.levels)):
            self.opened("a LoDTensor of a program that torch.export writes")
            return
        for numbers in value.structure.numbers():
            self._array(numbers)
        self.visit(value.values)

    def _bytes(self, value: Any) -> None:
        content = memoryview(value)
        self.complete &= content.nbytes <= _MOST_BYTES
        self.key.append((type(value), content.format, bytes(content.cast("B")[: _MOST_BYTES + 1])))

    # ---- what stands for others

    def _of_thread(self, value: Any) -> None:  # what it holds for this one
        self.key.append(kind := type(value))
        if kind is not threading.local:
            self.opened(f"a {kind.__qualname__} of each thread")
            if kind.__init__ is not object.__init__:  # which the first look would call
                self._not_tried(value, "which its class makes anew for each thread")
                return
            self._class(kind)
        own = threading.local.__getattribute__(value, "__dict__")
        self.hold(own)
        self._attributes(own)

    def _context(self, value: Any) -> None:
        self.key.append(type(value))
        try:
            self.visit(value.get())  # what it is made with, too
        except LookupError:
            self.visit(MISSING)

    def _weak(self, value: Any) -> None:
        """What a weak reference leads to, or that it is gone. What objects of ours hold so is theirs."""
        found = value()
        ours = str(type(found).__module__).partition(".")[0] in ("torch", "stepnet")
        ours = ours and not isinstance(found, Tensor | torch.nn.Module)
        if type(value) is not weakref.ref or ours:
            self._unknown(value)
            return
        self.key.append(weakref.ref)
        self.visit(found)

    def _proxied(self, value: Any) -> None:
        """What a weak proxy stands for, as its methods are of that."""
        self.key.append(type(value))
        try:
            found = value.__init__.__self__
        except Exception as error:  # it is gone, or its class answers for itself
            let_through(error)
            self._not_tried(value, "and what it stands for cannot be seen")
        else:
            self.visit(found)

    def _own_parts(self, value: Any) -> None:
        """What a container has besides its items, of a class of the user's or as attributes."""
        kind = type(value)
        if not is_trusted_class(kind):
            self._class(kind)
            self._fields(value)
        elif kind.__flags__ & HEAP:  # of Python's own, as a Counter
            self._known_class(kind)
            self._fields(value)
        elif kind.__dictoffset__:
            self._fields(value)

    # ---- objects

    def _object(self, value: Any) -> None:
        kind = type(value)
        self.key.append(kind)
        if passed_by(value, self.names) and (value.replaced or not self.everything):
            if self.everything:  # to be put back; what it holds no run of the code reads or changes
                self.hold(value.__dict__)
            return
        self._known_class(kind)
        trusted = is_trusted_class(kind)
        if trusted and not shows_attributes(kind):
            self.hold(hidden_attributes(value))
            self.opened(_a(kind))
            return
        self._fields(value)  # first: its code may lead to more than a walk goes through
        if not trusted:
            self._class(kind)

    def _unbound(self, value: Any) -> None:
        """A static method that code calls as it is, where no class holds it."""
        self.key.append(type(value))
        self._class_item(value)
        self._attributes(value.__dict__)

    def _fields(self, value: Any) -> None:
        kind = type(value)
        if shows_attributes(kind):
            own = object.__getattribute__(value, "__dict__")
            self.hold(own)
            self._attributes(own, read_whole(kind))
        elif kind.__dictoffset__:
            what = f"{_a(kind)}, which does not show its attributes"
            self.opened(what)
            if kind.__module__ != "typing":  # a change of them, as it is tried, could not be undone
                self.refused = self.refused or f"it reads {what}"
        for _, name, held in slot_values(value):
            self.key.append(name)
            self.looks_up(name, held)
            if held is MISSING:
                self.key.append(END)
            else:
                self.visit(held)

    def _attributes(
        self, own: dict[str, Any], all_of_them: bool = False, but: Set[str] = frozenset()
    ) -> None:
        self.found_by_prefix(own)
        names = own.keys() if all_of_them or self.everything else self.names
        for name, item in list(own.items()):
            if name in names and name not in but:
                if self.held:
                    self.looks_up(name, item)
                kind = type(item)
                if kind in PLAIN:  # as `visit` has it
                    self.key += (name, item, kind)
                    self._told_apart(item)
                else:
                    self.key.append(name)
                    self.visit(item)
        self.key.append(END)

    def _logger(self, value: logging.Logger) -> None:
        """Whether it would log: what it logs to is another matter (see `logs_and_prints`)."""
        if type(value).__module__ != logging.__name__:
            self._object(value)
            return
        found: logging.Logger | None = value
        while found is not None:
            self.hold(vars(found))
            found = None if found.level else found.parent
        self.hold(vars(value.manager))
        self._attributes({name: held for name, held in vars(value).items() if name not in _OF_LOGGERS})
        self.key.append((logging.Logger, value.disabled, value.getEffectiveLevel(), value.manager.disable))

    def _member(self, value: enum.Enum) -> None:
        """What a member of an enum is besides its attributes, a number or a text, never changes."""
        self.key.append(Same(value))
        self._object(value)

    def _mode(self, value: Any) -> None:
        """Autocast or a mode of gradients, made once: beside how it is set it notes what was set where it is
        entered."""
        kind = type(value)
        if not is_trusted_class(kind):
            self._object(value)
            return
        self.key.append(kind)
        own = object.__getattribute__(value, "__dict__")
        self._attributes({k: v for k, v in own.items() if not k.startswith("prev")}, all_of_them=True)

    def _generator(self, value: torch.Generator) -> None:
        if value.device.type != "cpu" or value is torch.default_generator:
            self._stateful(value)
        self.key.append(torch.Generator)
        self.generators.append(value)
        if not self.names.isdisjoint(_TELL_STATES):
            self.opened("a torch.Generator, of which it reads the seed or the state")

    def _stateful(self, value: Any) -> None:
        self.key.append(type(value))
        if is_used_up(value):
            for items in value.__reduce__()[1]:  # one list, which may grow
                self.visit(items)
            return
        self._not_tried(value, "which no run leaves as it was: it would be used up on sample rows")

    def _not_tried(self, value: Any, why: str) -> None:
        self.refused = self.refused or f"{self.way_to(value, 'read')} a {type(value).__name__}, {why}"

    def _scripted(self, value: Any) -> None:
        if (written := written_as(value)) is not None:
            self.visit(written)
            return
        self.key.append(type(value))
        self.refused = self.refused or (
            "it calls what torch.jit compiled, which does other things at each of its first calls; "
            "the Python that it was made from would be compiled"
        )

    def _cached(self, value: Any) -> None:
        if not self.in_python and not self.names.isdisjoint(_TELL_CACHES):
            self.refused = self.refused or (
                "it asks a cache of functools for its counts, or clears it, and a run on sample rows fills it"
            )
        self.hold(value)
        self._unknown(value)

    def _unknown(self, value: Any) -> None:
        self.key.append(kind := type(value))
        self.opened(_a(kind))
        if not self.in_python and (found := led_to(value)):  # last: it may be much
            self.later.append((found, False, self.trail))
        if is_of_users(value):
            self._class(kind)
        if not (self.in_python or stays_as_it_was(kind)):
            self._not_tried(value, "which C keeps: it cannot be seen whether a run on sample rows changes it")
        self._fields(value)


def _a(kind: type) -> str:
    """An object of a class, whose own name may be whole, where C made it."""
    return f"a {kind.__module__}.{kind.__qualname__.removeprefix(f'{kind.__module__}.')}"


@functools.lru_cache(maxsize=4096)
def _how(kind: type) -> Callable[[Walk, Any], None]:
    """What visits values of a type."""
    if kind in BY_VALUE:
        return Walk._by_value
    if kind in FIXED or kind is decimal.Decimal or issubclass(kind, np.dtype):
        return Walk._fixed
    if kind is torch.Generator:
        return Walk._generator
    if any(kind is each for each in weakref.ProxyTypes):  # classes may not be compared
        return Walk._proxied
    if is_stateful(kind):
        return Walk._stateful
    if is_checking_class(kind):
        return lambda walk, value: walk.key.append(kind)
    for kinds, how in _HOW:
        if issubclass(kind, kinds):
            return how
    return Walk._unknown if any(map(more_than_attributes, kind.__mro__)) else Walk._object


def has_attributes(kind: type) -> bool:
    """Whether objects of a class are visited as such: what they hold are attributes."""
    return _how(kind) in (Walk._object, Walk._member)


_HOW: tuple[tuple[Any, Callable[[Walk, Any], None]], ...] = (
    (Interned, Walk._interned),
    (Tensor, Walk._tensor),
    (LoDTensor, Walk._ragged),
    # of a trace, which is behind them
    ((SymInt, SymFloat, SymBool), lambda walk, value: walk.key.append(Same(value))),
    ((np.ndarray, np.generic), Walk._array),
    ((torch.jit.ScriptFunction, torch.jit.ScriptModule), Walk._scripted),
    (logging.Logger, Walk._logger),
    (inspect.Signature, Walk._signature),
    (ToldByContent, Walk._told_by_content),
    (nn.Module, Walk._module),
    (types.FunctionType, Walk._function),
    (types.MethodType, Walk._method),
    (types.ModuleType, Walk._package),
    (functools.partial, Walk._partial),
    ((staticmethod, classmethod), Walk._unbound),
    (type(functools.lru_cache(words)), Walk._cached),
    (slice, Walk._slice),
    ((list, tuple, collections.deque), Walk._sequence),
    (dict, Walk._mapping),
    ((set, frozenset), Walk._set),
    ((array.array, bytearray), Walk._bytes),
    (types.MappingProxyType, Walk._proxy),
    (weakref.ref, Walk._weak),
    (enum.Enum, Walk._member),
    (contextvars.ContextVar, Walk._context),
    (threading.local, Walk._of_thread),
    ((torch.autocast, torch.no_grad, torch.enable_grad, torch.set_grad_enabled), Walk._mode),
    (type, Walk._type),
    (
        (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
         types.MethodWrapperType, types.ClassMethodDescriptorType, type(np.save)),
        Walk._builtin,
    ),
)  # fmt: skip
