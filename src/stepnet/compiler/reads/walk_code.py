"""The walk over code: functions, and the globals that they name."""

from __future__ import annotations

import builtins
import collections
import functools
import logging
import types
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from .as_written import written_as
from .code_facts import (
    AROUND,
    BITS,
    BY_IDENTITY,
    CALLS_BACKWARD,
    EFFECTS,
    PURE,
    REFLECTION,
    SETTINGS,
    TENSOR_STATE,
    Facts,
    facts,
)
from .kinds import MISSING, Names
from .monkeypatches import DISTRIBUTIONS, OF_DISTRIBUTIONS
from .survey import Same, inside, survey
from .trust import (
    BY_ITS_CLASS,
    OF_COPIES,
    acts,
    goes_by_its_class,
    goes_by_its_objects,
    is_checking,
    is_of_python,
    is_trusted_builtin,
    is_trusted_class,
    only_checks,
    only_wraps,
    tells_settings,
    words,
)
from .walk_modules import ModuleWalk

OF_FUNCTIONS = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__")
_CODE = (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)
_OF_TORCH = sorted({*dir(Tensor), *dir(torch.nn.Module), *dir(torch.Generator), *DISTRIBUTIONS})
_LOOKED_UP = frozenset({"globals", "eval", "exec"})  # which may find any global
_KINDS = words("__class__ __code__ __defaults__ __kwdefaults__ __bases__")  # that code may set of objects
_BUILTINS = dict(vars(builtins))
_PAIR = collections.namedtuple("_PAIR", "a b")
# Of methods that each class of named tuples has: they compute, and ask for two attributes.
_OF_TUPLES = frozenset({_PAIR._replace.__code__, _PAIR._asdict.__code__, _PAIR._make.__func__.__code__})  # pyright: ignore[reportFunctionMemberAccess]


def _may_call_backward(function: types.FunctionType, known: Facts) -> bool:
    """Whether code may call `torch.autograd.backward`, of which torch tells no mode."""
    if function.__code__.co_name == "backward":  # of a Function
        return False
    asked = any(names and "backward" in names for names in known.asked.values())
    of_autograd = "autograd" in known.names or "autograd" in known.globals
    return asked or "backward" in known.globals or (of_autograd and "backward" in known.names)


def _may_ask_tensors(function: types.FunctionType, known: Facts) -> bool:
    """Whether code may ask a tensor for what `TENSOR_STATE` names: it asks others than its `self`, or is no
    method, or one that somebody gave to tensors."""
    if not TENSOR_STATE.intersection(known.names) <= known.of_self:
        return True
    of_class = "." in function.__qualname__.rpartition("<locals>.")[2]
    return not of_class or any(inside(held) is function for held in vars(Tensor).values())


class CodeWalk(ModuleWalk):
    """How a walk goes on from what can be called."""

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
        if code in _OF_TUPLES:
            self.key.append(known)
            self.named(("_make", "_fields"))
            return
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
        if not BY_IDENTITY.isdisjoint(names):
            self._constants(code)
        if known.prefixes:
            self.prefixes = tuple({*self.prefixes, *known.prefixes})
            names = names.union(self.found_by_prefix(_OF_TORCH))
        if known.held:
            if not known.held <= self.held:
                self.held |= known.held
            names = names.union(self.looked_up)
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

    def _constants(self, code: types.CodeType) -> None:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._constants(constant)
            else:
                self.visit(constant)

    def _judge(self, function: types.FunctionType, known: Facts) -> None:
        """Refuse a function by the names in its code, or note what a walk does not see of what it does."""
        if sets := SETTINGS.intersection(known.names) or SETTINGS.intersection(known.globals):
            self.refused = self.refused or f"it calls {min(sets)}, once for each step"
        if kinds := _KINDS.intersection(known.sets):
            self.refused = self.refused or f"it sets {min(kinds)}, once for each step"
        if bits := BITS.intersection(known.names):
            self.refused = self.refused or f"it asks whether numbers are written out, by {min(bits)}"
        if known.around:
            self._around(known.around)
        if _may_call_backward(function, known):
            self.refused = self.refused or CALLS_BACKWARD
        if not known.names.isdisjoint(REFLECTION):
            self.opened(f"{function.__name__} looks into the insides of objects")
        if not known.names.isdisjoint(TENSOR_STATE) and _may_ask_tensors(function, known):
            self.opened(f"{function.__name__} may ask a tensor for more than its values")
        asks_builtins = known.imports or any(name not in function.__globals__ for name in known.globals)
        if asks_builtins and function.__builtins__ is not vars(builtins):
            self.opened(f"{function.__name__} has builtins of its own")

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
        if name in EFFECTS and held is _BUILTINS.get(name):
            return  # a step that comes by it is stopped as it is tried; another never does
        if isinstance(held, types.FunctionType) and name not in EFFECTS:  # somebody put it there
            self.visit(held)
        else:
            self.opened(f"{function.__name__} calls {name}()")

    def _logs(self, function: types.FunctionType) -> None:
        """A function of `logging`: which logger it asks is known of those that log."""
        self.key.append(Same(function))
        self.visit(logging.root)
        if not hasattr(logging.Logger, function.__name__):
            self.opened(f"it calls logging.{function.__name__}")
