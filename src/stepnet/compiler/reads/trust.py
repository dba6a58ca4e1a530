"""Code and objects whose meaning is fixed: torch's, Python's own, and stepnet's. All other code is read."""

from __future__ import annotations

import copy
import copyreg
import ctypes
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import linecache
import mmap
import operator
import os
import queue
import random
import re
import reprlib
import struct
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch


def words(text: str) -> frozenset[str]:
    """The words of a text.

    >>> sorted(words("b a"))
    ['a', 'b']
    """
    return frozenset(text.split())


_PACKAGE = Path(__file__).parents[2]
_LIBRARY = str(_PACKAGE) + os.sep
# A module's forward may call stepnet itself; what that reaches is the same for every step.
_PARTS = words(
    "api compiler data engine executors front graph ir iterator loops nested repeat resets windows"
)
_MACHINERY = tuple(str(_PACKAGE / part) for part in _PARTS)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = frozenset(("site-packages", "dist-packages"))
# Of the standard library, those that hold no state which a step could read.
_FOLDERS = words(
    """torch stepnet builtins typing abc _abc enum collections functools _functools types math cmath operator
    _operator numbers dataclasses contextlib"""
)
# Installed packages whose functions give what follows from their arguments, whatever they keep beside it.
COMPUTING = ("einops", "attr", "attrs", "torchdiffeq")
# And those that hold arguments against what is said of their types: of what they read nothing is computed.
_CHECKING = words("beartype jaxtyping typeguard")
_LIBRARIES = _CHECKING.union(COMPUTING)
FOREIGN = ("torch", "numpy", "builtins", "typing", "collections", "math", "functools", "abc")
_PURE_MODULES = words("""builtins math cmath _operator operator functools _functools torch""")

# Modules of Python whose functions do what objects say of themselves, whatever else they lead to.
_BY_ITS_OBJECTS = frozenset(getattr(module, "__file__", None) for module in (copy, copyreg, re, weakref))
OF_COPIES = words(
    """__copy__ __deepcopy__ __replace__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__
    __getnewargs_ex__ __new__ __init__"""
)

# Functions that read the fields of an object, and make another one by what its class says; "wrapper" is what
# stands around each __repr__ that dataclasses write.
_OF_FIELDS = words("replace _replace fields is_dataclass _is_dataclass_instance wrapper evolve assoc has")
BY_ITS_CLASS = words(
    """__init__ __new__ __post_init__ __replace__ __attrs_pre_init__ __attrs_post_init__ __attrs_init__"""
)

# What the functions of enums read of their classes, and call of them.
OF_ENUMS = words(
    """name value _name_ _value_ _missing_ _member_map_ _member_names_ _value2member_map_ _unhashable_values_
    _unhashable_values_map_ _hashable_values_ _member_type_ _value_repr_ _use_args_ _new_member_"""
)

BY_VALUE = frozenset(
    {
        float, complex, bytes, type(Ellipsis), type(NotImplemented), range, datetime.timedelta,
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
    }
)  # fmt: skip

# Attributes of torch and its modules that tell of settings or hold a state, or lead to such.
_AMBIENT_WORDS = ("get_", "is_", "are_", "set_", "_get_", "_is_", "_set_", "manual_")
_NOT_AMBIENT = words(
    """is_tensor is_floating_point is_complex is_nonzero is_same_size is_storage is_conj is_neg is_inference
    is_signed is_distributed set_grad_enabled is_grad_enabled get_default_dtype"""
)  # what the key of a call holds, or what follows from arguments
_AMBIENT = words(
    """backends random cuda mps xpu accelerator cpu distributed overrides _C compiler jit KinetoStepTracker
    config seed initial_seed default_generator Generator hub multiprocessing _dynamo _inductor ops library
    compile load from_file autograd_profiler"""
)
AMBIENT_NAMES = _AMBIENT.union(_AMBIENT_WORDS)

HEAP = 1 << 9  # of a class's flags: it is made in Python, and may be changed
_STATEFUL: tuple[type, ...] = (
    types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType,
    random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator,
    io.IOBase, torch.Generator, queue.SimpleQueue, mmap.mmap, ctypes.c_int.__mro__[-2],
)  # fmt: skip

# Made by C; what they hold does not change, or is read and undone, or no number follows from it.
_AS_THEY_WERE: tuple[Any, ...] = (
    re.Pattern, operator.itemgetter, operator.attrgetter, operator.methodcaller, struct.Struct,
    types.GenericAlias, types.UnionType, memoryview, decimal.Decimal,
    datetime.date, datetime.datetime, datetime.time, datetime.timezone,
    weakref.ref, decimal.Context, dataclasses.Field,
    type(functools.lru_cache(words)), type(functools.cmp_to_key(lambda a, b: 0)),
)  # fmt: skip
_OF_CALLS = "pybind11_detail_function_record"  # what a function of a library of C++ is bound to
_HOLD_NO_NUMBERS = words("typing builtins types _json _thread")  # modules of Python of such objects

_OF_PYTHON: tuple[tuple[Any, str], ...] = (
    (re, "_cache"), (re, "_cache2"), (linecache, "cache"), (threading, "_active"), (threading, "_limbo"),
    (weakref.finalize, "_registry"),
)  # fmt: skip
# What Python keeps beside its work, and fills whoever works; no result follows from it.
CACHES = tuple([getattr(owner, name) for owner, name in _OF_PYTHON if hasattr(owner, name)])


def is_machinery(file: str) -> bool:
    """True for the files of stepnet that run steps; cells and layers are steps themselves."""
    return file.startswith(_MACHINERY)


def is_trusted_code(file: str) -> bool:
    """True for code of torch and stepnet, and of libraries that are known as well."""
    return file.startswith((_TORCH, _LIBRARY)) or _library_of(file) is not None


@functools.lru_cache(maxsize=4096)
def _library_of(file: str) -> str | None:
    """The known library that a file is of, where it was installed: a copy elsewhere may be anything."""
    name = _installed_in(file)
    return name if name in _LIBRARIES else None


def _installed_in(file: str) -> str | None:
    before, _, path = file.rpartition(f"-packages{os.sep}")
    return path.partition(os.sep)[0] if f"{os.path.basename(before)}-packages" in _PACKAGES else None


def is_of_arrays(file: str) -> bool:
    """True for the code of numpy and scipy, which takes the numbers of tensors from them: that is seen."""
    return _installed_in(file) in ("numpy", "scipy")


def is_foreign(item: Any) -> bool:
    """True for functions that are neither torch's, Python's nor numpy's, nor made as these were imported."""
    file = item.__code__.co_filename if isinstance(item, types.FunctionType) else _MADE
    known = file.startswith(_MADE) or file.endswith("typing_extensions.py")  # which tells what is deprecated
    return not (known or is_trusted_code(file) or is_of_python(file) or is_of_arrays(file))


_MADE = "<"  # begins the file of code that is made at run time


def only_checks(file: str) -> bool:
    """True for code that holds the arguments of a function against what is said of their types."""
    return _library_of(file) in _CHECKING


def is_checking(name: str) -> bool:
    """True for the name of a module that such code is of."""
    return name in _CHECKING and _is_library(name)


def is_checking_class(kind: type) -> bool:
    """True for classes of what such code keeps."""
    name = kind.__module__ if isinstance(kind.__module__, str) else ""
    return name.partition(".")[0] in _CHECKING and is_trusted_class(kind)


def _is_library(name: str) -> bool:
    """True for the name of a module of such a library."""
    root = name.partition(".")[0]
    file = file_of(sys.modules[root]) if root in _LIBRARIES and root in sys.modules else None
    return file is not None and _library_of(file) == root


def is_trusted_module(module: types.ModuleType) -> bool:
    """True for torch and its modules, math and the like; found by name, so that no copy passes for one."""
    name = module.__name__
    known = name.partition(".")[0] in _FOLDERS or _is_library(name)
    return known and sys.modules.get(name) is module


@functools.lru_cache(maxsize=4096)
def is_of_python(file: str | None, name: str = "") -> bool:
    """True for code and modules of the standard library: what they hold is their own, whoever calls them."""
    if file is None:
        return name in sys.builtin_module_names
    return file.startswith("<frozen ") or (
        file.startswith(_PYTHON) and _PACKAGES.isdisjoint(Path(file.removeprefix(_PYTHON)).parts)
    )


def goes_by_its_objects(file: str) -> bool:
    """True for the code of Python's that copies objects, by methods of theirs that it finds by name, and for
    what that code stands on."""
    return file in _BY_ITS_OBJECTS


def goes_by_its_class(function: types.FunctionType) -> bool:
    """True for functions of dataclasses, attrs and enums whose results follow from their arguments and from
    what the classes of these say."""
    code = function.__code__
    if code.co_filename == enum.__file__:
        return not function.__qualname__.startswith("Flag.")  # which make members
    of_fields = code.co_filename in (dataclasses.__file__, reprlib.__file__)  # of Python 3.13: the wrapper
    known = of_fields or _library_of(code.co_filename) == "attr"
    return known and code.co_name in _OF_FIELDS


def only_wraps(function: types.FunctionType) -> bool:
    """True for what makes a function look like another one: what it copies is read by who names it."""
    return function in _WRAP


_WRAP = functools.update_wrapper, functools.wraps


def is_module_of_python(module: Any) -> bool:
    """True for the modules of the standard library."""
    if not isinstance(module, types.ModuleType):
        return False
    name = vars(module).get("__name__")
    return is_of_python(file_of(module), name if isinstance(name, str) else "")


def file_of(module: types.ModuleType) -> str | None:
    """The file that a module says it is from."""
    file = vars(module).get("__file__")  # not by getattr, which a module may answer itself
    return file if isinstance(file, str) else None


def is_of_users(value: Any) -> bool:
    """True for objects of classes that are not Python's, and for methods of theirs and partial functions of
    users' functions: whoever holds them, they are a matter of the step's."""
    while isinstance(value, (types.MethodType, functools.partial)):
        value = value.__self__ if isinstance(value, types.MethodType) else value.func
    if type(value) is types.FunctionType:
        return not is_of_python(value.__code__.co_filename)
    return _is_of_users(type(value))


@functools.lru_cache(maxsize=4096)
def _is_of_users(kind: type) -> bool:
    name = kind.__module__ if isinstance(kind.__module__, str) else ""
    return bool(kind.__flags__ & HEAP) and name.partition(".")[0] not in sys.stdlib_module_names


@functools.lru_cache(maxsize=4096)
def is_installed(name: str, file: str | None) -> bool:
    """True for modules of Python itself and of installed packages: what of them nobody names is their own."""
    return name.partition(".")[0] in sys.stdlib_module_names or (
        file is not None and not _PACKAGES.isdisjoint(Path(file).parts)
    )


@functools.lru_cache(maxsize=4096)
def is_trusted_class(kind: type) -> bool:
    """True for classes of torch, stepnet, Python itself and known libraries; not of what calls itself so."""
    name = kind.__module__ if isinstance(kind.__module__, str) else ""
    root = name.partition(".")[0]
    if root not in _FOLDERS and not _is_library(name):
        return False
    if root in ("torch", "stepnet"):
        return True
    if not kind.__flags__ & HEAP:  # not of the heap: made by C
        return True
    found: Any = sys.modules.get(name)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def is_trusted_builtin(value: Any) -> bool:
    """True for functions written in C whose results follow from their arguments."""
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        if isinstance(value, types.BuiltinFunctionType):
            name = value.__module__ or (owner.__name__ if owner is not None else "")
            return name.partition(".")[0] in _PURE_MODULES and value.__name__ not in _IMPURE
        kind = getattr(value, "__objclass__", None)  # a method as its class holds it
        return isinstance(kind, type) and is_trusted_class(kind)
    if isinstance(owner, type):
        return is_trusted_class(owner)
    if isinstance(owner, types.WrapperDescriptorType):  # object.__setattr__.__get__, as attrs has it
        return is_trusted_builtin(owner)
    if type(owner).__module__ == "pybind11_builtins":  # how pybind11 keeps a function: no object of its own
        return value.__module__ in _OPERATORS
    return type(owner).__module__.partition(".")[0] == "torch" and not isinstance(owner, _STATEFUL)


_OPERATORS = {"torch._ops.aten", "torch._ops.prims"}


def acts(value: Any) -> bool:
    """True for functions of the operating system that do more than tell, those that set what holds for the
    whole process or end it, and numpy's that write files."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    if module in ("posix", "nt"):
        return name not in _TELL
    if module == "numpy":
        return name.startswith("save")
    return module in _OF_PROCESS and name.startswith(_SETS)


_OF_PROCESS = words("sys atexit gc _signal faulthandler resource _locale _warnings decimal _decimal")
_SETS = tuple(
    words("set exit add register unregister enable disable freeze unfreeze alarm _filters getcontext")
)


# putenv and unsetenv are what `os.environ` calls, which is put back
_TELL = words(
    """getpid getppid cpu_count getcwd fspath stat lstat listdir scandir access _path_normpath
    get_terminal_size putenv unsetenv"""
)
_IMPURE = words(
    """getattr hasattr setattr delattr globals locals vars dir eval exec compile open input print
    __import__ id next iter memoryview breakpoint __build_class__"""
)


def ambient(module: types.ModuleType, name: str) -> bool:
    """True for what a module of torch tells of settings, or of a state of its own."""
    root, *parts = module.__name__.split(".")
    if root != "torch" or name == "is_scripting":  # false of whatever Python runs
        return False
    if type(module) is not types.ModuleType or not _AMBIENT.isdisjoint(parts):  # a setting may be a property
        return True
    return tells_settings_by_name(name) and name not in _NOT_AMBIENT


def tells_settings(value: Any) -> bool:
    """True for functions of torch that tell the same, by whatever name code comes by them."""
    name, module = value.__name__, getattr(value, "__module__", None)
    module = module if type(module) is str else ""  # anybody may set it
    if type(value) is types.FunctionType:
        return _function_tells_settings(name, value.__qualname__, module)
    if name in _NOT_AMBIENT or value.__qualname__ != name:
        return False
    of_kernels = module.startswith("torch._C") and tells_settings_by_name(name)
    return getattr(value, "__self__", None) is torch._C or of_kernels


@functools.lru_cache(maxsize=4096)
def _function_tells_settings(name: str, qualname: str, module: str) -> bool:
    if name in _NOT_AMBIENT or qualname != name or name == "is_scripting":
        return False
    root, _, rest = module.partition(".")
    return root == "torch" and (rest.partition(".")[0] in _AMBIENT or tells_settings_by_name(name))


def tells_settings_by_name(name: str) -> bool:
    """True for names of functions of torch that tell of settings."""
    return name in _AMBIENT or name.startswith(_AMBIENT_WORDS)


@functools.lru_cache(maxsize=4096)
def is_stateful(kind: type) -> bool:
    """True for objects that are used up by being read: iterators, files, generators of random numbers."""
    if issubclass(kind, _STATEFUL):
        return True
    made_by_c = not kind.__flags__ & HEAP or kind.__module__ == "itertools"  # it holds more than attributes
    return made_by_c and hasattr(kind, "__next__")


def is_used_up(iterator: Any) -> bool:
    """True for an iterator over a list or a tuple that has nothing left: it gives nothing unless the list
    grows.

    >>> at_its_end = iter([1])
    >>> is_used_up(at_its_end), next(at_its_end), is_used_up(at_its_end)
    (False, 1, True)
    """
    return type(iterator) in _OVER_SEQUENCES and not operator.length_hint(iterator)


_OVER_SEQUENCES = frozenset({type(iter([])), type(iter(()))})


@functools.lru_cache(maxsize=4096)
def stays_as_it_was(kind: type) -> bool:
    """True for kinds of objects made by C that use leaves as they were, as far as is known."""
    root = kind.__module__.partition(".")[0]
    trusted = root == "numpy" or (is_trusted_class(kind) and root not in sys.stdlib_module_names)
    return trusted or kind in _AS_THEY_WERE or root in _HOLD_NO_NUMBERS or kind.__name__.startswith(_OF_CALLS)
