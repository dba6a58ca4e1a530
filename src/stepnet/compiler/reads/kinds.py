"""What objects of a class hold, as far as Python shows it: slots, attributes, or more than that."""

from __future__ import annotations

import _abc  # pyright: ignore[reportMissingImports]
import abc
import functools
import gc
import operator
import types
import typing
from collections.abc import Set
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from stepnet.data.bounded_cache import Bounded
from stepnet.data.recording import LeftByRuns

from .survey import Same
from .trust import is_installed, is_trusted_class, words

MISSING = object()
PLAIN = frozenset({int, bool, str, type(None)})  # which are what they are by their value
UNREAD = words(  # of a class, unless code names them, or does what calls them
    """__dict__ __weakref__ __doc__ __module__ __annotations__ __qualname__ __firstlineno__ __slotnames__
    __static_attributes__ __repr__ __str__ __reduce__ __reduce_ex__ __getstate__ __setstate__
    __getnewargs__ __del__ __set_name__ __init_subclass__ __slots__
    __type_params__ __parameters__ __match_args__ __orig_bases__ __abstractmethods__ __dataclass_fields__
    __dataclass_params__ __attrs_attrs__ __attrs_props__ __attrs_own_setattr__ __replace__ __annotate__
    __annotate_func__ __annotations_cache__ _abc_impl"""
)
_PLAIN_BASES = frozenset(
    {object, nn.Module, typing.Generic, typing.Protocol, abc.ABC, dict, list, tuple, set}
)


# What Python shows the attributes of objects by; those of a namespace or a module as a member of theirs.
_DICTS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Names(typing.NamedTuple):
    """Names of a module's space that a step may bind anew."""

    space: dict[str, Any]
    names: tuple[str, ...]


def passed_by(value: Any, names: Set[str]) -> bool:
    """Whether a value is what runs of an object left in it, which code with these names does not ask for."""
    if isinstance(value, Bounded):  # found out of what is reached beside it
        return True
    return isinstance(value, LeftByRuns) and value.asked_by.isdisjoint(names)


@functools.lru_cache(maxsize=4096)
def _slots(klass: type) -> list[str]:
    if "__slots__" not in klass.__dict__ or is_trusted_class(klass):
        return []
    return [n for n, item in klass.__dict__.items() if isinstance(item, types.MemberDescriptorType)]


@functools.lru_cache(maxsize=4096)
def has_slots(kind: type) -> bool:
    """Whether classes of the user's give objects of a class slots."""
    return any(map(_slots, kind.__mro__))


def slot_values(value: Any) -> list[tuple[type, str, Any]]:
    """(class, name, what it holds) of each slot that classes of the user's give an object."""
    found: list[tuple[type, str, Any]] = []
    if not has_slots(type(value)):
        return found
    for klass in type(value).__mro__:
        for name in _slots(klass):
            try:
                found.append((klass, name, klass.__dict__[name].__get__(value)))
            except AttributeError:  # not assigned yet
                found.append((klass, name, MISSING))
    return found


def more_than_attributes(klass: type) -> bool:
    """Whether objects of a class hold something that is no attribute: one made by C, but for the plainest."""
    if klass.__base__ is None or klass.__module__ in ("typing", "abc", "enum"):
        return False
    room = klass.__basicsize__ - klass.__base__.__basicsize__
    if is_trusted_class(klass):
        return room > (16 if klass.__dictoffset__ else 0)
    own = (klass.__dictoffset__ > klass.__base__.__dictoffset__) + (
        klass.__weakrefoffset__ > klass.__base__.__weakrefoffset__
    )
    return room > 8 * (own + len(_slots(klass)))


@functools.lru_cache(maxsize=4096)
def shows_attributes(kind: type) -> bool:
    """Whether objects of a class have a `__dict__` of Python's own that can be asked for.

    Some made by C have one that they do not show: futures of asyncio, and type variables since Python 3.12.
    Others show what a property of their class makes up.

    >>> import asyncio
    >>> [shows_attributes(kind) for kind in (nn.Linear, types.SimpleNamespace, asyncio.Future, int)]
    [True, True, False, False]
    """
    shown = next((vars(klass)["__dict__"] for klass in kind.__mro__ if "__dict__" in vars(klass)), None)
    return bool(kind.__dictoffset__) and isinstance(shown, _DICTS)


def hidden_attributes(value: Any) -> dict[str, Any] | None:
    """Where an object keeps its attributes that has no `__dict__` to show them by; None if that is not told.

    >>> hidden_attributes(typing.TypeVar("T")) in ({"__module__": __name__}, None)
    True
    """
    found = [part for part in gc.get_referents(value) if type(part) is dict]
    return found[0] if type(value).__module__ == "typing" and len(found) == 1 else None


_LEAD_ON: tuple[Any, ...] = (
    type(functools.lru_cache(has_slots)), type(functools.cmp_to_key(lambda a, b: 0)), types.GenericAlias,
    operator.itemgetter, operator.attrgetter, operator.methodcaller, type({}.keys()), type({}.values()),
    type({}.items()),
)  # fmt: skip


def led_to(value: Any) -> list[Any]:
    """What an object made by C leads to, which no attribute shows: what a cache of functools keeps, what is
    called, and the arguments of that and of errors.

    >>> held = []
    >>> led_to(ValueError(held, 1))
    [[], 1]
    """
    if isinstance(value, BaseException):
        return list(BaseException.args.__get__(value))  # pyright: ignore[reportAttributeAccessIssue]
    if type(value) not in _LEAD_ON:
        return []
    parts = gc.get_referents(value)
    if type(value) is _LEAD_ON[0]:
        place = _place_of_entries(parts)
        if place is None:
            return []
        parts = [*parts[:place], *parts[place].values()]
    return [
        part
        for part in parts
        if type(part).__name__ != _IN_ORDER and not (isinstance(part, type) and is_trusted_class(part))
    ]


def entries_of(cache: Any) -> dict[Any, Any] | None:
    """Where a cache of functools keeps results, or what holds them; None if that is not told.

    >>> cached = functools.lru_cache(abs)
    >>> [cached(-1), *entries_of(cached)]
    [1, -1]
    """
    place = _place_of_entries(parts := gc.get_referents(cache))
    return None if place is None else parts[place]


def _place_of_entries(parts: list[Any]) -> int | None:
    """Among keys and results, a dict of results or of what holds them, and the function."""
    places = [n for n, part in enumerate(parts) if isinstance(part, type) and part.__name__ == _IN_ORDER]
    return places[-1] - 3 if places and type(parts[places[-1] - 3]) is dict else None


_IN_ORDER = "_lru_list_elem"  # a class: what a cache of a bounded size holds results by


@functools.lru_cache(maxsize=4096)
def read_whole(kind: type) -> bool:
    """Whether code that is not read may ask an object for any attribute: that of a trusted base."""
    return any(is_trusted_class(k) and k not in _PLAIN_BASES for k in kind.__mro__)


def registered(kind: abc.ABCMeta) -> tuple[Any, ...]:
    """The classes that were registered with an abstract class, or with those beneath it.

    >>> class Shape(abc.ABC): ...
    >>> Shape.register(int)
    <class 'int'>
    >>> registered(Shape)
    ('builtins.int',)
    """
    found: set[type] = set()
    todo: list[type] = [kind]
    for klass in todo:
        if isinstance(klass, abc.ABCMeta):
            references = _abc._get_dump(klass)[0]  # pyright: ignore[reportAttributeAccessIssue]
            found.update(made for made in (reference() for reference in references) if made is not None)
        todo += type.__subclasses__(klass)
    known = {made for made in found if is_installed(made.__module__, None)}
    names = sorted(f"{made.__module__}.{made.__qualname__}" for made in known)
    return *names, *(Same(made) for made in sorted(found - known, key=id))


def caches(module: nn.Module) -> bool:
    """Whether a module has parametrized tensors that `parametrize.cached()` keeps."""
    return parametrize._cache_enabled > 0 and "parametrizations" in module._modules
