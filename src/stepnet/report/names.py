"""The user's names of the tensors that a step reads, and the text of the lines it is written in."""

from __future__ import annotations

import functools
import itertools
import linecache
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from stepnet.compiler.reads.code_facts import names_in
from stepnet.front.step import TorchCell

_DEPTH = 4  # closures, containers and objects inside each other


def tensor_names(step: Any, wanted: Iterable[Tensor]) -> list[str]:
    """What the user calls each tensor that a step reads: a parameter's path, a variable; else 'tensor 1'.

    >>> mix = nn.Linear(2, 3)
    >>> tensor_names(lambda x, h: (mix(x), h), [mix.bias, mix.weight])
    ['mix.bias', 'mix.weight']
    """
    known: dict[int, str] = {}
    for name, tensor in _walk(step, "", _DEPTH, set()):
        known.setdefault(id(tensor), name)
    names: list[str] = []
    for tensor in wanted:
        name = known.get(id(tensor), f"tensor {len(names) + 1}")
        names.append(_unused(name, names))
    return names


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, or the name with a number if it is taken.

    >>> _unused("w", ["w", "w (2)"])
    'w (3)'
    """
    candidates = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def _walk(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    if depth < 0 or id(value) in seen:
        return
    seen.add(id(value))
    for name, part in _parts(value):
        yield from _walk(part, _join(path, name), depth - 1, seen)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and not name.startswith("[") else f"{path}{name}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The named attributes, items or variables of a value."""
    if isinstance(value, TorchCell):
        yield "", value.cell
    elif isinstance(value, nn.Module):
        yield from value.named_parameters(remove_duplicate=False)
        yield from value.named_buffers(remove_duplicate=False)
        yield from ((k, v) for k, v in vars(value).items() if not k.startswith("_"))
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from value.keywords.items()
        yield from ((f"[{i}]", item) for i, item in enumerate(value.args))
    elif isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"[{k!r}]", item) for k, item in value.items())
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        inner = [part for part in vars(value).values() if callable(part) and not isinstance(part, Tensor)]
        for name, part in vars(value).items():  # around one module or function its own names say enough
            yield ("" if len(inner) == 1 and part is inner[0] else name), part


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            part = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        # a function's own name says nothing of its variables
        yield ("" if isinstance(part, types.FunctionType) else name), part
    yield from (function.__kwdefaults__ or {}).items()
    count = len(function.__defaults__ or ())
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(arguments[len(arguments) - count :], function.__defaults__ or (), strict=True)
    for name in names_in(function.__code__):
        part = function.__globals__.get(name)
        if isinstance(part, types.FunctionType):
            yield "", part
        elif isinstance(part, (Tensor, nn.Module, list, tuple, dict)):
            yield name, part


class SourceLines:
    """The text of lines such as 'file.py:12', where one file of that name is known.

    Also reads cells of a notebook, which `linecache` knows by generated file names.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.paths: dict[str, str | None] = {}
        for path in files:
            name = path.rsplit("/", 1)[-1]
            self.paths[name] = None if name in self.paths else path  # two of one name: not known which

    def at(self, line: str | None) -> str | None:
        """The text of a line, None if it is not to be had."""
        name, _, number = (line or "").rpartition(":")
        path = self.paths.get(name)
        if path is None or not number.isdigit():
            return None
        return linecache.getline(path, int(number)).strip() or None
