"""What a step reads, as a digest that another process finds again for the same step, or None.

Plans are kept on disk under it. Two steps of one digest have the same code, structure and plain values, and
classes with the same in them; what cannot be told so surely (an object of a foreign library) has no digest.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from stepnet.data.recording import Interned
from stepnet.data.tree import Spec

from .code_facts import Facts
from .survey import Same, Survey, Walked
from .trust import COMPUTING, FOREIGN, is_trusted_class

_PACKAGE = Path(__file__).parents[2]
_PLAIN = (int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device)
_AS_TEXT = frozenset({int, bool, str, type(None)})
_CODE = (
    "co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags",
    "co_argcount", "co_kwonlyargcount", "co_filename", "co_firstlineno", "co_linetable",
)  # fmt: skip


class _Unknown(Exception):
    """A value that another process could not recognise."""


def digest(*parts: Any) -> str | None:
    """A digest of plain values, code, types and structures of them, and of the versions of all that compiles.

    >>> digest(1, "a", (2.0,)) == digest(1, "a", (2.0,)) != digest(1, "a", (2,))
    True
    >>> digest(object()) is None
    True
    """
    found = hashlib.sha256(_versions().encode())
    try:
        _feed(found.update, {}, parts)
    except _Unknown:
        return None
    return found.hexdigest()[:40]


def _feed(put: Callable[[bytes], None], classes: dict[type, int], value: Any) -> None:
    if isinstance(value, Enum):
        put(f"{_name(type(value))}.{value.name};".encode())
    elif isinstance(value, _PLAIN):
        put(f"{type(value).__name__} {value!r};".encode())
    elif type(value) is tuple and _AS_TEXT.issuperset(map(type, value)):  # many at once
        put(f"{value!r};".encode())
    elif isinstance(value, (tuple, list)):
        put(f"{type(value).__name__} {len(value)}(".encode())
        for item in value:
            _feed(put, classes, item)
    elif isinstance(value, frozenset):  # a constant of code, `x in {1, 2}`
        put(f"set {sorted(map(repr, value))};".encode())
    elif isinstance(value, Facts):
        _feed(put, classes, value.code)
    elif isinstance(value, Survey):
        owner = value.owner
        _feed(put, classes, owner.__name__)
        if isinstance(owner, type) and value.names is None:  # as torch has it, but for these
            own = f"{owner.__qualname__}."
            held = [(name, held) for name, held in value.held if not _as_written(own, name, held.value)]
        else:
            held = value.held
        _feed(put, classes, [(name, _described(held.value)) for name, held in held])
    elif isinstance(value, types.CodeType):
        _feed(put, classes, tuple(getattr(value, name) for name in _CODE))
    elif isinstance(value, Spec):
        _feed(put, classes, (value.kind, value.keys, value.children))
    elif isinstance(value, type):
        put(f"type {_name(value)};".encode())
    elif isinstance(value, Interned) and value.portable is not None:
        put(f"{_name(type(value))} {value.portable};".encode())
    elif isinstance(value, Walked):
        kind = value.value  # of two of one name, which it is
        put(f"class {[*map(_class_name, kind.__mro__)]} {classes.setdefault(kind, len(classes))};".encode())
    elif isinstance(value, Same) and isinstance(value.value, Enum):
        put(f"member {_name(type(value.value))}.{value.value._name_};".encode())
    elif isinstance(value, Same):
        put(f"object {_foreign_name(value.value)};".encode())
    else:
        raise _Unknown


def _as_written(prefix: str, name: str, value: Any) -> bool:
    """Whether a class's attribute is a function under its own name, or no function."""
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if isinstance(inner, types.FunctionType):
        return inner.__qualname__ == prefix + name
    return not isinstance(value, _PLAIN)


def _described(value: Any) -> Any:
    """A function, class or constant of torch or math as plain values."""
    if isinstance(value, types.FunctionType):
        return "function", value.__code__
    if isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
        return type(value).__name__, value.__name__
    if isinstance(value, (property, staticmethod, classmethod)):
        return type(value).__name__, _described(value.fget if isinstance(value, property) else value.__func__)
    return type(value).__name__ if hasattr(value, "__objclass__") else value


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_name(kind: type) -> str:
    """The name of a class that is walked, or of one beneath it.

    Raises:
        _Unknown: what it holds is told neither by the walk nor by its name.
    """
    if type(kind.__module__) is not str:
        raise _Unknown
    if is_trusted_class(kind):
        found: Any = sys.modules.get(kind.__module__)
        for part in kind.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not kind:
            raise _Unknown
    return f"{_name(type(kind))} {_name(kind)}"


def _foreign_name(value: Any) -> str:
    """The name under which a foreign library's module, function or class is found.

    Raises:
        _Unknown: it is none.
    """
    if isinstance(value, types.ModuleType):
        name, found = value.__name__, sys.modules.get(value.__name__)
    else:
        module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(path, str):
            raise _Unknown
        name, found = f"{module}.{path}", sys.modules.get(module)
        for part in path.split("."):
            found = getattr(found, part, None)
    if found is not value or name.split(".")[0] not in FOREIGN:
        raise _Unknown
    return name


@functools.cache
def _versions() -> str:
    """Python, torch, the libraries whose code is not read, and every file of this package: a change in any of
    them makes other plans."""
    files = []
    for folder, _, names in os.walk(_PACKAGE):
        for name in names:
            if name.endswith((".py", ".h")):
                known = os.stat(os.path.join(folder, name))
                files.append((os.path.relpath(folder, _PACKAGE), name, known.st_size, known.st_mtime_ns))
    return repr((*map(_version, ("stepnet", *COMPUTING)), sys.version, torch.__version__, sorted(files)))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # not there, or run from a folder of sources
        return ""
