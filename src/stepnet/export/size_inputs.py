"""Sizes that code refers to as numbers: a trace that leaves them open feeds them to the loop it runs in."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.survey import Same
from stepnet.compiler.reads.walk import Walk
from stepnet.data.recording import content
from stepnet.errors import IRError
from stepnet.front.recorded import Call
from stepnet.front.recorded_step import RecordedStep
from stepnet.front.template import Literal

from .open_sizes import settled

Path = tuple[int, ...]  # through the parts of what code refers to
Referred = dict[Path, tuple[Any, torch.dtype]]  # numbers, as they are for the example
_DEEPEST = 12
_OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)


def sizes_in(code: Any) -> Iterator[tuple[Path, Any]]:
    """The sizes that are left open among what code refers to, and numbers that follow from such, each with
    the way to it.

    >>> list(sizes_in(lambda x, n=3: x * n))
    []
    """
    return _leaves(code, (), {})


def _leaves(value: Any, path: Path, without: dict[int, Any]) -> Iterator[tuple[Path, Any]]:
    """`without`: parts that are known to hold none, by their id."""
    value = value.value if isinstance(value, Literal) else value
    if isinstance(value, _OPEN):
        yield path, value
        return
    if len(path) == _DEEPEST or id(value) in without:
        return
    without[id(value)] = value
    for i, part in enumerate(_parts(value)):
        for found in _leaves(part, (*path, i), without):
            without.pop(id(value), None)
            yield found


def with_sizes(value: Any, new: Mapping[Path, Any]) -> Any:
    """What code refers to, or code itself, with others at the ends of these ways.

    >>> doubled = with_sizes(lambda x, n=3: x * n, {(0, 0): torch.tensor(2)})
    >>> doubled(5)
    tensor(10)
    """
    if () in new:
        return new[()]
    if not new:
        return value
    parts = [
        with_sizes(part, {path[1:]: number for path, number in new.items() if path[0] == i})
        for i, part in enumerate(_parts(value))
    ]
    return _rebuilt(value, parts)


def as_tensors(code: Any, where: str, beside: Iterable[Any]) -> tuple[Referred, list[Tensor]]:
    """The open sizes that code refers to, and a tensor for each, as exact as what it computes with `beside`.

    Raises:
        IRError: it reads more of them, where no other can be put.
    """
    found = dict(sizes_in(code))
    exact = any(value.dtype == torch.float64 for value in beside)
    sizes = [_tensor(size, torch.float64 if exact else torch.get_default_dtype()) for size in found.values()]
    left = with_sizes(code, dict(zip(found, sizes, strict=True)))
    if any(isinstance(part, Same) and isinstance(part.value, _OPEN) for part in _key(left)):
        raise IRError(
            f"{where} cannot be written: it reads a size that is left open, and would keep the example's",
            remedy="torch.tensor(x.shape[0]) in its place; or a local variable that it refers to",
            got="a size in what it refers to",
            expected="sizes of what it is given",
        )
    hints = [(_hint(size), made.dtype) for size, made in zip(found.values(), sizes, strict=True)]
    return dict(zip(found, hints, strict=True)), sizes


def plain_values(code: Any) -> list[Any]:
    """The plain values that code reads, and maybe more: those of objects go by names alone."""
    return [part for part in _key(code) if _is_plain(part)]


def _is_plain(part: Any) -> bool:
    if isinstance(part, tuple):
        return all(isinstance(each, type) or _is_plain(each) for each in part)
    return isinstance(part, (int, str, bytes))


def _key(code: Any) -> list[Any]:
    walk = Walk(set(reach(code).names))
    walk.hooks = True  # those of all modules are the trace's own
    walk.visit(code)
    return walk.key


def examples(sizes: Referred) -> list[Tensor]:
    """The sizes that code refers to, as they are for the example."""
    return [torch.tensor(number, dtype=dtype) for number, dtype in sizes.values()]


def _hint(size: Any) -> Any:
    return size.node.hint if size.node.has_hint() else 1


def _tensor(size: Any, real: torch.dtype) -> Tensor:
    if isinstance(size, torch.SymBool):
        return torch.scalar_tensor(settled(size))
    dtype = torch.int64 if isinstance(size, torch.SymInt) else real
    return torch.scalar_tensor(cast(Any, size), dtype=dtype)


def _parts(value: Any) -> Sequence[Any]:
    kind = type(value)
    if kind is FunctionType:
        return [value.__defaults__, value.__kwdefaults__, *map(content, value.__closure__ or ())]
    if kind is functools.partial:
        return [value.func, value.args, value.keywords]
    if kind in (list, tuple, torch.Size) or _is_named(value):
        return value
    if kind is MethodType:
        return [value.__func__, value.__self__]
    if kind is slice:
        return [value.start, value.stop, value.step]
    if kind is dict:
        return list(value.values())
    if isinstance(value, RecordedStep):
        return value.step.calls
    if kind is Call:
        return [value.function, value.args, value.kwargs]
    return list(vars(value).values()) if _is_object(value) else []


def _rebuilt(value: Any, parts: list[Any]) -> Any:
    kind = type(value)
    if kind is FunctionType:
        defaults, by_name, *contents = parts
        cells = [
            cell if part is content(cell) else CellType(part)
            for cell, part in zip(value.__closure__ or (), contents, strict=True)
        ]
        twin = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, tuple(cells))
        twin.__kwdefaults__, twin.__qualname__ = by_name, value.__qualname__
        return twin
    if kind is functools.partial:
        return functools.partial(parts[0], *parts[1], **parts[2])
    if kind is slice:
        return slice(*parts)
    if kind is dict:
        return dict(zip(value, parts, strict=True))
    if isinstance(value, RecordedStep):
        return kind(replace(value.step, calls=tuple(parts)), value.constants)
    if kind is Call:
        return replace(value, function=parts[0], args=parts[1], kwargs=parts[2])
    if kind is MethodType:
        return MethodType(*parts)
    if _is_named(value):
        return kind(*parts)
    if _is_object(value):
        twin = copy.copy(value)
        vars(twin).update(zip(vars(value), parts, strict=True))
        return twin
    return tuple(parts) if kind is torch.Size else kind(parts)


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, FunctionType, Tensor))
