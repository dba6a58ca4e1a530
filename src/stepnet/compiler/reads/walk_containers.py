"""The walk over containers: what they hold, and what else tells them from others of it."""

from __future__ import annotations

import collections
import gc
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from .contents import at_once
from .kinds import PLAIN, passed_by
from .survey import Same
from .walk_classes import ClassWalk
from .walk_state import LIMIT

_FEW = 64  # items that are visited one by one, whatever they are
_FACTORY: Any = collections.defaultdict.__dict__["default_factory"]
_MAXLEN: Any = collections.deque.__dict__["maxlen"]


class ContainerWalk(ClassWalk):
    """Items are taken by what Python's own containers find them by, whatever classes of the user's do."""

    def _interned(self, value: Any) -> None:
        self.key.append(value)
        for item in value.held:
            self.visit(item)

    def _sequence(self, value: Any) -> None:
        kind = type(value)
        walk = next(each.__iter__ for each in (list, tuple, collections.deque) if issubclass(kind, each))
        items = list(walk(value))
        most = _MAXLEN.__get__(value) if issubclass(kind, collections.deque) else None
        self.key.append((kind, len(items), most))
        self._items(items)
        self._own_parts(value)

    def _set(self, value: Any) -> None:
        kind = type(value)
        items = list((set if issubclass(kind, set) else frozenset).__iter__(value))
        self.key.append((kind, len(items)))
        self._items(items)
        self._own_parts(value)

    def _items(self, items: Sequence[Any]) -> None:
        """What a container holds: many plain ones at once."""
        if len(items) <= _FEW:
            for item in items:
                self.visit(item)
            return
        told = at_once(items, PLAIN)
        if told is not None:
            self.key.append(told)
            return
        for item in items:
            if len(self.seen) >= LIMIT:
                self.complete = False
                return
            self.visit(item)

    def _dict(self, kind: type, value: dict[Any, Any]) -> None:
        self.key.append((kind, dict.__len__(value)))
        self._items(list(dict.keys(value)))
        self._items(list(dict.values(value)))

    def _mapping(self, value: Any) -> None:
        if value is sys.modules:
            way = self.way_to(value, "read")
            self.refused = self.refused or f"{way} sys.modules, which leads to everything"
            return
        if passed_by(value, self.names) and not self.everything:
            self.key.append(type(value))
            return
        self._dict(type(value), value)
        if isinstance(value, collections.defaultdict):
            self.visit(_FACTORY.__get__(value))
        if isinstance(value, collections.OrderedDict):  # it has an order of its own
            self._items(list(collections.OrderedDict.__iter__(value)))
        self._own_parts(value)

    def _proxy(self, value: Any) -> None:
        [behind] = gc.get_referents(value)
        if type(behind) in (dict, collections.OrderedDict):
            self._dict(type(value), behind)
        else:
            self.opened("a mapping proxy of a mapping of its own kind")

    def _signature(self, value: inspect.Signature) -> None:
        """What decorators bind arguments by, which never changes."""
        parts = value.parameters if type(value) is inspect.Signature else {}
        if not parts.keys() or any(type(each) is not inspect.Parameter for each in parts.values()):
            self._object(value)
            return
        self.key += (type(value), Same(inspect.Signature._bind))  # pyright: ignore[reportAttributeAccessIssue]
        for name, each in parts.items():
            self.key += (name, int(each.kind))
            self._items((each.default, each.annotation))
        self.visit(value.return_annotation)
