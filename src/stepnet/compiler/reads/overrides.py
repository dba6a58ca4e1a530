"""Methods that a class of the user's has in the place of those of torch, stepnet or Python beneath it: code
that is not read calls them by their names."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from torch import nn

from .code_facts import MAKES, facts
from .function_parts import with_inner
from .kinds import UNREAD
from .trust import is_trusted_class


class _Calls(NamedTuple):
    """`always`: the names that the methods of some classes mention which torch or Python calls itself;
    `by_name`: those of the others, each with those of what it calls."""

    always: frozenset[str]
    by_name: dict[str, frozenset[str]]


def overridden(kind: type, names: Set[str]) -> set[str]:
    """What of a class of the user's the code of its bases calls, where code mentions these names.

    >>> held = {"__module__": "mine", "_conv_forward": print, "reset_parameters": print}
    >>> overridden(type("Layer", (nn.Conv1d,), held), {"forward"})
    {'_conv_forward'}
    """
    bases, others = _parted(kind.__mro__)
    if not bases:
        return set()
    own = {name for klass in others for name in vars(klass)} - _APART
    if not issubclass(kind, nn.Module):  # functions of libraries ask them, too
        return own & _held_by(bases)
    calls = _calls(bases)
    called = set(calls.always & own)
    for name in calls.by_name.keys() & names:
        called |= calls.by_name[name] & own
    return called


_APART = UNREAD | MAKES


@functools.lru_cache(maxsize=4096)
def _parted(mro: tuple[type, ...]) -> tuple[tuple[type, ...], tuple[type, ...]]:
    """The classes of libraries among those beneath a class, and the user's."""
    of_libraries = [klass is object or is_trusted_class(klass) for klass in mro]
    parted = zip(mro, of_libraries, strict=True)
    bases = tuple([klass for klass, known in parted if known and klass is not object])
    return bases, tuple([klass for klass, known in zip(mro, of_libraries, strict=True) if not known])


@functools.lru_cache(maxsize=4096)
def _held_by(bases: tuple[type, ...]) -> frozenset[str]:
    return frozenset().union(*map(vars, bases))


@functools.lru_cache(maxsize=4096)
def _calls(bases: tuple[type, ...]) -> _Calls:
    mentioned: dict[str, set[str]] = {}
    for klass in bases:
        for name in vars(klass).keys() - _APART:
            for function in _functions(vars(klass)[name]):
                mentioned.setdefault(name, set()).update(facts(function.__code__).names)
    by_name = {name: frozenset(_closed(name, mentioned)) for name in mentioned}
    itself = [name for name in mentioned if name[:2] == "__" == name[-2:]]
    return _Calls(frozenset().union(*(by_name[name] for name in itself)), by_name)


def _closed(name: str, mentioned: dict[str, set[str]]) -> set[str]:
    """What a method mentions, and what those that it calls do."""
    found, todo = set[str](), [name]
    for each in todo:
        new = mentioned.get(each, set[str]()) - found
        found |= new
        todo += new
    return found


def _functions(item: Any) -> Iterator[types.FunctionType]:
    """The functions that an item of a class is made of."""
    inner = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
    if isinstance(inner, types.FunctionType):
        yield from with_inner(inner)
