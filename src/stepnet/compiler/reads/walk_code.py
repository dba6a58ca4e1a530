"""The walk over what a step reaches: functions, and the modules and globals that they name."""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import importlib.util
import logging
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .as_written import written_as
from .code_facts import AROUND, EFFECTS, PURE, REFLECTION, SETTINGS, TENSOR_STATE, Facts, facts
from .kinds import MISSING, Names
from .monkeypatches import CLASSES, DISTRIBUTIONS, KERNEL, OF_DISTRIBUTIONS, Patch
from .survey import Same, Survey, survey
from .trust import (
    BY_ITS_CLASS,
    CACHES,
    HEAP,
    OF_COPIES,
    acts,
    file_of,
    goes_by_its_class,
    goes_by_its_objects,
    is_checking,
    is_installed,
    is_module_of_python,
    is_of_python,
    is_trusted_builtin,
    is_trusted_class,
    is_trusted_module,
    only_checks,
    only_wraps,
    tells_settings,
    words,
)

END = "; end"  # of attributes, whose number is not in the key; no name of one
OF_FUNCTIONS = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__")
_CODE = (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)
_OF_TORCH = sorted({*dir(Tensor), *dir(torch.nn.Module), *dir(torch.Generator), *DISTRIBUTIONS})
_LOOKED_UP = frozenset({"globals", "eval", "exec"})  # which may find any global
_CONTAINERS = (dict, list, set, deque, bytearray, types.SimpleNamespace)
_KINDS = words("__class__ __code__ __defaults__ __kwdefaults__ __bases__")  # that code may set of objects
_OF_LOGGERS = frozenset(vars(logging.Logger("")))
_BUILTINS = dict(vars(builtins))


@dataclass
class CodeWalk(abc.ABC):
    """What a walk has found so far, and how it goes on from code. Values are the matter of `Walk`."""

    names: set[str]  # that attributes are looked up by; grows
    told: set[str] = field(default_factory=set, init=False)  # those of them that this walk met
    prefixes: tuple[str, ...] = ()  # of names that code makes as it runs; grows
    everything: bool = False  # visit every attribute of what is met, named or not
    key: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    met_tensors: list[Tensor] = field(default_factory=list)  # with everything: as often as they are met
    seen: dict[int, int] = field(default_factory={id(held): -n for n, held in enumerate(CACHES)}.copy)
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

    @abc.abstractmethod
    def visit(self, value: Any) -> None:
        """Make a value part of the key."""

    @abc.abstractmethod
    def _attributes(self, own: dict[str, Any], all_of_them: bool = False) -> None: ...

    @abc.abstractmethod
    def _object(self, value: Any) -> None: ...

    @abc.abstractmethod
    def _unknown(self, value: Any) -> None: ...

    @abc.abstractmethod
    def _own_parts(self, value: Any) -> None: ...

    @abc.abstractmethod
    def _class(self, kind: type, makes: bool = False) -> None: ...

    @abc.abstractmethod
    def _class_item(self, item: Any) -> None: ...

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

    def _method(self, value: Any) -> None:
        self.visit(value.__func__)
        self.visit(value.__self__)

    def _partial(self, value: Any) -> None:
        self.visit(value.func)  # first: a key begins with the code of its step
        self.key.append("partial")
        self.visit(value.args)
        self.visit(value.keywords)
        self._own_parts(value)

    def _builtin(self, value: Any) -> None:
        self.key.append(Same(value))
        if value.__name__ in AROUND:
            self._around({value.__name__})
        if is_trusted_builtin(value):
            self._asks(value)
            return
        if acts(value):
            self.refused = self.refused or (
                f"{self.way_to(value, 'call')} {value.__module__}.{value.__name__}, once for each step"
            )
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (type, types.ModuleType)):
            self.key.append(value.__name__)
            self.visit(owner)
            if isinstance(owner, (list, dict, set, tuple, Tensor, str)):
                return
        self.opened(f"{getattr(value, '__qualname__', value.__name__)}, of which nothing is known")

    def _asks(self, function: Any) -> None:
        """Note a function of torch that tells of settings, or is one of torch.distributions."""
        if tells_settings(function):
            self.opened(f"{function.__module__}.{function.__name__}, which is not the step's own")
        if str(getattr(function, "__module__", None)).startswith(OF_DISTRIBUTIONS):
            self.named(("distributions",))

    def _around(self, names: AbstractSet[str]) -> None:
        """Refuse what asks for what there is around a call: a step is recorded and traced apart from that."""
        self.refused = self.refused or f"it asks for what is around a call, by {min(names)}"

    def _function(self, function: types.FunctionType) -> None:
        # What visits is in one function: a walk goes as deep as what it reads, and Python counts frames.
        if (written := written_as(function)) is not None:
            self.visit(written)
            return
        code = function.__code__
        if code.co_filename == logging.__file__ and function.__qualname__ in vars(logging):
            self._logs(function)
            return
        known = facts(code)
        before, self.in_python = self.in_python, is_of_python(code.co_filename)
        if not self.in_python and not known.trusted:
            self.sets |= known.sets
        trail, checks = self.trail, known.trusted and only_checks(code.co_filename)
        self.key.append(known)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # an empty cell: not assigned yet
                self.key.append("empty")
                self.hold(cell)  # the function may
                continue
            if checks and not isinstance(held, _CODE):
                continue
            self.hold(cell)
            if name == "__class__" and not known.reads_class and isinstance(held, type):
                if not is_trusted_class(held):
                    self._class(held)
            else:
                self.trail = trail, function, name, held
                self.visit(held)
        self.trail = trail
        if function.__defaults__:
            self.visit(function.__defaults__)
        if function.__kwdefaults__:
            self.visit(function.__kwdefaults__)
        if by_class := goes_by_its_class(function):
            self.named(BY_ITS_CLASS)
        if known.trusted or by_class or only_wraps(function):
            self._asks(function)
            self._attributes_of(function)
            self.in_python = before
            return  # the library's globals are its own
        if goes_by_its_objects(code.co_filename):
            self.named(OF_COPIES)
            self.opened(f"{function.__name__} asks objects how they are copied")
            self.in_python = before
            return
        self.hold(function.__dict__)  # an empty one, too: it may set attributes of its own
        if function.__dict__:
            self._attributes(function.__dict__)
        self.named(known.names)
        names = known.names
        if known.prefixes:
            self.prefixes = tuple({*self.prefixes, *known.prefixes})
            names = names.union(self.found_by_prefix(_OF_TORCH))
        for name in OF_FUNCTIONS:
            if name in self.names:
                self.key.append(name)
                self.visit(getattr(function, name))
        self._judge(function, known)
        if not self.everything:
            self._surveyed(survey(Tensor, names), names)
        for name in known.imports:
            self._import(name, function)
        space = function.__globals__
        for name in known.globals:
            held = space.get(name, MISSING)
            if held is MISSING:
                self._missing(name, function, known)
            else:
                self.key.append(name)
                self.trail = trail, function, name, held
                if isinstance(held, types.ModuleType):
                    asked = known.asked.get(name)
                    self._space(held, names if asked is None else asked, names)
                else:
                    self.visit(held)
        self.trail = trail
        if known.stores:
            self.hold(Names(space, known.stores))
        self.in_python = before

    def _attributes_of(self, function: types.FunctionType) -> None:
        """Those that code names of a function of a library, whoever set them."""
        own = function.__dict__
        self.hold(own)
        if not self.names.isdisjoint(own):
            self._attributes(own)

    def _judge(self, function: types.FunctionType, known: Facts) -> None:
        """Refuse a function by the names in its code, or note what a walk does not see of what it does."""
        if sets := SETTINGS.intersection(known.names) or SETTINGS.intersection(known.globals):
            self.refused = self.refused or f"it calls {min(sets)}, once for each step"
        if kinds := _KINDS.intersection(known.sets):
            self.refused = self.refused or f"it sets {min(kinds)}, once for each step"
        if known.around:
            self._around(known.around)
        if "backward" in known.names and function.__code__.co_name != "backward":  # of a Function
            self.refused = self.refused or (
                "it calls backward(), which adds to gradients of others; torch.autograd.grad(...) does not"
            )
        if not known.names.isdisjoint(REFLECTION):
            self.opened(f"{function.__name__} looks into the insides of objects")
        if not known.names.isdisjoint(TENSOR_STATE):
            self.opened(f"{function.__name__} may ask a tensor for more than its values")
        asks_builtins = known.imports or any(name not in function.__globals__ for name in known.globals)
        if asks_builtins and function.__builtins__ is not vars(builtins):
            self.opened(f"{function.__name__} has builtins of its own")

    def _logs(self, function: types.FunctionType) -> None:
        """A function of `logging`: which logger it asks is known of those that log."""
        self.key.append(Same(function))
        self.visit(logging.root)
        if not hasattr(logging.Logger, function.__name__):
            self.opened(f"it calls logging.{function.__name__}")

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

    def _missing(self, name: str, function: types.FunctionType, known: Facts) -> None:
        """A name that is no global: a builtin, or nothing."""
        pure = name in PURE or name in known.told or (name in known.checks and is_checking("typeguard"))
        if pure and vars(builtins).get(name) is _BUILTINS.get(name):
            return
        if name == "open":  # which imports call, too: it is not stopped when a step does
            self.refused = self.refused or "it calls open(), once for each step"
        if name in _LOOKED_UP:
            self.hold(function.__globals__)
            for held in list(function.__globals__.values()) if self.everything else ():
                if not isinstance(held, types.ModuleType):
                    self.visit(held)
        self.key.append(name)
        held = vars(builtins).get(name, MISSING)
        if isinstance(held, types.FunctionType) and name not in EFFECTS:  # somebody put it there
            self.visit(held)
        else:
            self.opened(f"{function.__name__} calls {name}()")

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
        if self.prefixes:
            names = {*names, *self.found_by_prefix(space)}
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

    def _surveyed(self, known: Survey, names: frozenset[str] | None) -> None:
        self.key.append(known)
        for space, name in known.others:
            if names is not None or self.everything or name in self.names:
                self.key.append(name)
                item = space.get(name)
                if isinstance(item, types.ModuleType):
                    self._global(item, names or ())
                else:
                    self._class_item(item)

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


@functools.lru_cache(maxsize=4096)
def _of_distributions(kind: type) -> bool:
    return any(str(base.__module__).startswith(OF_DISTRIBUTIONS) for base in kind.__mro__)
