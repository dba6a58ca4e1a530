"""The walk over Python modules: those that a step's code names or imports, and what it names in them."""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from .kinds import MISSING, Names
from .monkeypatches import CLASSES, KERNEL, OF_DISTRIBUTIONS, Patch
from .survey import Same, Survey, is_put_there, survey
from .trust import HEAP, file_of, is_installed, is_module_of_python, is_trusted_class, is_trusted_module
from .walk_state import END, WalkState

_CONTAINERS = (dict, list, set, deque, bytearray, types.SimpleNamespace)


class ModuleWalk(WalkState):
    """The user's modules are gone through; of torch's, and its classes, a survey is made."""

    def _import(self, name: str, function: types.FunctionType) -> None:
        """A module imported inside a function, and the packages around it: `import a.b` gives a."""
        if name.startswith("."):
            package = function.__globals__.get("__package__")
            if not isinstance(package, str) or not package:
                self.opened(f"it imports {name}")
                return
            name = importlib.util.resolve_name(name, package)
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            whole = ".".join(parts[:count])
            module = sys.modules.get(whole)
            if module is None:
                self.opened(f"it imports {whole}")
                return
            self.key.append(whole)
            if whole not in self.imported:  # for names that come later a walk starts again
                self.imported.add(whole)
                self._space(module, frozenset(self.names))

    def _package(self, module: types.ModuleType) -> None:
        self._space(module, frozenset(self.names))

    def _space(
        self, module: types.ModuleType, names: Iterable[str], within: Iterable[str] | None = None
    ) -> None:
        """The attributes of a Python module that code names, and those `within` modules in it, if others."""
        within = names if within is None else within
        kind, space = type(module), vars(module)
        if self.prefixes or self.looked_up:
            names = {*names, *self.looked_up, *self.found_by_prefix(space)}
        trusted = is_trusted_module(module)
        if not trusted and (sets := self.sets.intersection(names)):  # a module of Python's, too
            self.holders.append(Names(space, tuple(sorted(sets))))
        if kind is not types.ModuleType and not trusted:
            self.opened(f"module {module.__name__}, which finds its attributes by itself")
        if trusted:
            self._trusted_space(module, frozenset((*names, *within)))
            return
        self.key.append(Same(module))
        own = self.everything and not is_installed(module.__name__, file_of(module))
        found = list(space) if own else sorted(names)
        before, of_python = self.in_python, is_module_of_python(module)
        self.in_python = of_python
        trail = self.trail
        self.hold(Names(space, tuple(found)))
        for name in found:
            held = space.get(name, MISSING)
            if held is not MISSING:
                self.key.append(name)
                self.trail = trail, None, name, held
                # what a step asks such a module for itself, it may change
                changes = issubclass(type(held), _CONTAINERS) and held is not sys.modules
                self.in_python = of_python and (before or not changes)
                self._global(held, within)
                self.in_python = of_python
            elif "__getattr__" in space:
                self.opened(f"module {module.__name__}, which finds its attributes by itself")
        self.in_python, self.trail = before, trail
        self.key.append(END)

    def _global(self, held: Any, names: Iterable[str]) -> None:
        if not isinstance(held, types.ModuleType):
            self.visit(held)
            return
        asked, names = self.asked.setdefault(id(held), []), frozenset(names)
        if any(names <= before for before in asked):
            self.key.append(Same(held))
        else:  # all of them, though some were asked for before: a module in it was not asked for these
            asked.append(names)
            self._space(held, names)

    # ---- of torch

    def _trusted_space(self, module: types.ModuleType, names: frozenset[str]) -> None:
        if module.__name__.startswith(OF_DISTRIBUTIONS):
            self.named(("distributions",))
        known = survey(module, names)
        if known.open is not None:
            self.opened(known.open)
        if sets := self.sets & names:
            self.holders += [Names(space, tuple(sorted(sets))) for space in known.spaces]
            classes = (same.value for _, same in known.held if isinstance(same.value, type))
            self.holders += [kind for kind in classes if kind.__flags__ & HEAP]
        self._surveyed(known, names)
        for _, same in known.held:
            if type(same.value) is types.FunctionType:
                self._attributes_of(same.value)

    def _surveyed(self, known: Survey, names: frozenset[str] | None) -> None:
        self.key.append(known)
        for space, name in known.others:
            item = space.get(name)
            if names is not None or self.everything or name in self.names or is_put_there(item):
                self.key.append(name)
                if isinstance(item, types.ModuleType):
                    self._global(item, names or ())
                else:
                    self._class_item(item)

    def _attributes_of(self, function: types.FunctionType) -> None:
        """Those that code names of a function of a library, whoever set them."""
        own = function.__dict__
        self.hold(own)
        if not self.names.isdisjoint(own):
            self._attributes(own)

    def _known_class(self, kind: type) -> None:
        """The classes of torch beneath one, in case somebody changed them."""
        if kind in self.known or self.everything:
            return
        self.known.add(kind)
        if _of_distributions(kind):  # whatever code calls it
            self.named(("distributions",))
        if self.sets and kind.__flags__ & HEAP and is_trusted_class(kind):
            self.holders.append(kind)
        if kind not in CLASSES:
            self._surveyed(survey(kind, None), None)

    def replaced(self, others: Sequence[Patch]) -> None:
        """What stands where torch had something else, but where nothing of the step comes by it."""
        for name, held, names, by in others:
            if by is not None and by.isdisjoint(self.names):
                continue
            self.key.append(name)
            self.named(names)
            if held is KERNEL:
                self.refused = self.refused or f"an operator of torch computes by another kernel: {name}"
            elif held is not MISSING:
                self._class_item(held)


@functools.lru_cache(maxsize=4096)
def _of_distributions(kind: type) -> bool:
    return any(str(base.__module__).startswith(OF_DISTRIBUTIONS) for base in kind.__mro__)
