"""The walk over classes: those of what a step reaches, and those that its code names."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import sys
import types
from typing import Any

import torch.utils._pytree as pytree

from .code_facts import MAKES
from .kinds import UNREAD, registered
from .overrides import overridden
from .survey import Same, Walked
from .trust import OF_ENUMS, is_module_of_python, is_stateful, is_trusted_class
from .walk_code import CodeWalk
from .walk_state import END

_ITERATORS = frozenset({enumerate, filter, map, reversed, zip})
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_MADE_OF_FUNCTIONS = (staticmethod, classmethod, property, functools.cached_property)
_PLACE: Any = type(vars(collections.namedtuple("_", "a"))["a"])  # what reads a field of a NamedTuple
_OF_TYPES: Any = type.__dict__


class ClassWalk(CodeWalk):
    """Which attributes of a class may be found, by the names in code and by operators."""

    def _type(self, kind: type) -> None:
        """A class that code names: it may be called, and asked for its attributes."""
        self.key.append(Same(kind) if is_trusted_class(kind) else Walked(kind))
        self._known_class(kind)
        if isinstance(kind, abc.ABCMeta):
            self.key.append(registered(kind))
        if not is_trusted_class(kind):
            self._class(kind, makes=True)
        elif is_stateful(kind) and kind not in _ITERATORS:  # what these make is the step's own
            self.opened(f"{kind.__qualname__}, whose objects hold a state of their own")

    def _class(self, kind: type, makes: bool = False) -> None:
        """What code may find on a class: the attributes it names, and what operators call."""
        self.key.append(Walked(kind))
        self.named(overridden(kind, self.names))
        self._as_tree(kind)
        for klass in kind.__mro__:
            if is_trusted_class(klass) or (id(klass), makes) in self.classes:
                continue
            self.classes.add((id(klass), makes))
            module = sys.modules.get(klass.__module__) if type(klass.__module__) is str else None
            before, self.in_python = self.in_python, is_module_of_python(module)
            self.hold(klass)
            self.found_by_prefix(klass.__dict__)
            for name, item in list(klass.__dict__.items()):
                named = name in self.names
                if (name in UNREAD or (name in MAKES and not makes)) and not named:
                    continue
                if name in ("__getattr__", "__getattribute__"):
                    self.opened(f"{klass.__name__}.{name}, which finds attributes by itself")
                if self.held and not isinstance(item, _DESCRIPTORS):
                    self.looks_up(name, item)
                if named or (name[:2] == "__" == name[-2:]):
                    self.key.append(name)
                    self._class_item(item)
                    if name in self.sets and isinstance(item, property):
                        self.visit(item.fset)
                        self.visit(item.fdel)
                    if name == "__match_args__" and isinstance(item, tuple):
                        self.named([part for part in item if isinstance(part, str)])
            for name in ("__name__", "__qualname__"):
                if name in self.names:
                    self.key.append(_OF_TYPES[name].__get__(klass))
            self.key.append(END)
            self.in_python = before
        meta = type(kind)
        if not is_trusted_class(meta):
            self._class(meta)
        elif meta is enum.EnumMeta:
            self.named(OF_ENUMS)

    def _as_tree(self, kind: type) -> None:
        """How torch takes objects of a class apart, and puts them together, where that was registered."""
        for known, node in list(pytree.SUPPORTED_NODES.items()):
            if known is kind:  # no lookup, which may run code of its metaclass
                self.hold(pytree.SUPPORTED_NODES)
                self.visit(node.flatten_fn)
                self.visit(node.unflatten_fn)
                self.named(vars(kind).get("__dataclass_fields__", ()))

    def _class_item(self, item: Any) -> None:
        if isinstance(item, _MADE_OF_FUNCTIONS) and not is_trusted_class(type(item)):
            self.hold(item)  # what it gives is a matter of its class
            self._object(item)
        if isinstance(item, (staticmethod, classmethod)):
            if isinstance(item, classmethod):  # it may call what it is given
                self.named(MAKES)
            self.visit(item.__func__)
        elif isinstance(item, property):
            self.visit(item.fget)
        elif isinstance(item, functools.cached_property):
            self.hold(vars(item))
            self.visit(item.func)
        elif isinstance(item, types.DynamicClassAttribute) and is_trusted_class(type(item)):  # of enums
            self.hold(vars(item))
            self.visit(item.fget)
        elif isinstance(item, _PLACE):
            self.key.append(item.__reduce__()[1][0])
        elif not isinstance(item, _DESCRIPTORS):
            self.visit(item)
