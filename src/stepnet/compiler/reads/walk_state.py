"""What a walk over what a step reaches has found so far, and how it goes on."""

from __future__ import annotations

import abc
import os
import types
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .code_facts import may_be_looked_up
from .kinds import PLAIN
from .trust import CACHES, is_installed

LIMIT = 4000  # objects; a step that reaches more is not worth keying
END = "; end"  # of attributes, whose number is not in the key; no name of one


@dataclass
class WalkState(abc.ABC):
    """What a walk has found so far. How it goes through values of each kind is the matter of the files
    `walk_*`, each of which needs the one before, and of `walk`, which has them all."""

    names: set[str]  # that attributes are looked up by; grows
    told: set[str] = field(default_factory=set, init=False)  # those of them that this walk met
    prefixes: tuple[str, ...] = ()  # of names that code makes as it runs; grows
    held: frozenset[str] = frozenset()  # attributes that hold names which code looks up; grows
    looked_up: frozenset[str] = frozenset()  # these names; grows
    everything: bool = False  # visit every attribute of what is met, named or not
    key: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    met_tensors: list[Tensor] = field(default_factory=list)  # with everything: as often as they are met
    seen: dict[int, int] = field(default_factory={id(held): -n for n, held in enumerate(CACHES)}.copy)
    plain: dict[int, int] = field(default_factory=dict[int, int])  # numbers and texts, by id, in order
    generators: list[torch.Generator] = field(default_factory=list)
    holders: list[Any] = field(default_factory=list)
    of_python: set[int] = field(default_factory=set)  # ids of what only code of Python's came by so far
    met: list[Any] = field(default_factory=list)  # what is held nowhere else: keeps ids in `seen` taken
    complete: bool = True
    open: str | None = None
    refused: str | None = None
    classes: set[tuple[int, bool]] = field(default_factory=set)
    known: set[type] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    asked: dict[int, list[frozenset[str]]] = field(default_factory=dict)  # of modules in modules, by id
    hooks: bool = False
    sets: set[str] = field(default_factory=set)  # attributes that the step's own code sets
    in_python: bool = False  # in code of Python's own: what that holds is no matter of the step's
    # Parametrized tensors that `parametrize.cached()` keeps once they are asked for: modules and names.
    uncached: list[tuple[Any, str]] = field(default_factory=list)
    depth: int = 0  # of visits in each other
    later: deque[tuple[Any, bool, Any]] = field(default_factory=deque[tuple[Any, bool, Any]])
    trail: Any = None  # the names on the way to what is visited: before it, whose, a name, what is held by it

    def hold(self, value: Any) -> None:
        """Note a container that a run of the step may change."""
        if not self.in_python or value is os.environ:
            self.holders.append(value)
        else:
            self.met.append(value)

    def named(self, names: Iterable[str]) -> None:
        """Look attributes up by these names, too, from now on."""
        self.names.update(names)
        self.told.update(names)

    def found_by_prefix(self, space: Iterable[Any]) -> list[str]:
        """Names in a space that code may make as it runs, which it looks up from now on."""
        if not self.prefixes:
            return []
        found = [name for name in list(space) if isinstance(name, str) and name.startswith(self.prefixes)]
        self.named(found)
        return found

    def looks_up(self, attribute: str, content: Any) -> None:
        """Look attributes up by the names that an attribute holds, where code does."""
        if attribute not in self.held or (type(content) in PLAIN and type(content) is not str):
            return
        texts = content if type(content) in (list, tuple) else [content]
        if all(type(text) is str and may_be_looked_up(text) for text in texts):
            if not self.looked_up.issuperset(texts):
                self.looked_up = self.looked_up.union(texts)
            self.named(texts)
        else:
            self.opened(f"what it looks up by the names in '{attribute}'")

    def opened(self, why: str) -> None:
        """Note what no walk sees the content of."""
        if self.open is None:
            self.open = why

    def way_to(self, value: Any, does: str) -> str:
        """How the step comes to read a value, or to call it, by names of its own."""
        trail, after = self.trail, list[tuple[str, Any]]()
        while trail is not None:
            trail, function, name, held = trail
            after.append((name, held))
            if function is None or is_installed(function.__module__ or "", function.__code__.co_filename):
                continue
            names, found = [], value
            while after and (not names or isinstance(found, types.ModuleType)):
                name, found = after.pop()
                names.append(name)
            return f"it {does}s" if found is value else f"by {'.'.join(names)} it may {does}"
        return f"it {does}s"

    @abc.abstractmethod
    def visit(self, value: Any) -> None:
        """Make a value part of the key."""

    @abc.abstractmethod
    def _attributes(
        self, own: dict[str, Any], all_of_them: bool = False, but: Set[str] = frozenset()
    ) -> None: ...

    @abc.abstractmethod
    def _object(self, value: Any) -> None: ...

    @abc.abstractmethod
    def _own_parts(self, value: Any) -> None: ...

    @abc.abstractmethod
    def _class(self, kind: type, makes: bool = False) -> None: ...

    @abc.abstractmethod
    def _class_item(self, item: Any) -> None: ...
