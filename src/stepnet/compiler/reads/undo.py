"""Whether running a step changed the objects it reads, and putting back what it changed.

A step is tried on sample rows before it is compiled. One that collects, counts or caches would be left with
what the sample rows gave: that is noticed and undone, and the step runs by the plain loop. Context variables
are left to who tries it, in a copy of its context. What another thread changes meanwhile stays as it left it.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import functools
import gc
import logging
import operator
import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES

from stepnet.data.bounded_cache import Bounded

from .fixed_values import FIXED
from .kinds import MISSING, Names, entries_of, slot_values
from .survey import KEPT_BY_COPY

_CLASS_ATTRIBUTES = (types.FunctionType, property, staticmethod, classmethod)


_T = TypeVar("_T")
_SHORTEST, _LONGEST = 0.02, 0.2  # seconds
_in_a_row = Bounded[Any, int](10_000)  # attempts that changed something, by their root
_SURELY = 3
_threads = sys._current_frames
# What is imported stays so, and so do its loggers, and what it registers with torch: a first attempt
# imports what torch traces with.
_FILLED_BY_IMPORTS: tuple[Any, ...] = (sys.modules, logging.Logger.manager.loggerDict, SUPPORTED_NODES)


def undone(
    holders: Iterable[Any], root: Any, attempt: Callable[[Snapshot], _T]
) -> tuple[_T, frozenset[str] | None]:
    """What an attempt gives, and if it changes what containers hold, which is undone then, by which names.

    Where there are other threads, it changed a container if it does so twice, and that one does not change
    without it.

    Args:
        holders: the containers.
        root: what is the same for all attempts of one kind. When some in a row changed something, all do.
        attempt: is given what they held before it, to see early that it changes them.
    """
    with _no_garbage_collected():
        return _undone(list(holders), root, attempt)


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Who is called at a collection may change what containers hold, and no step did."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _undone(
    holders: list[Any], root: Any, attempt: Callable[[Snapshot], _T]
) -> tuple[_T, frozenset[str] | None]:
    taken = list[Snapshot]()

    def tried() -> _T:
        taken.append(Snapshot(holders))
        try:
            return attempt(taken[-1])
        except BaseException:
            _restore(taken)
            raise

    began = time.perf_counter()
    result = tried()
    if not taken[0].changed():
        _in_a_row.pop(root, None)
        return result, None
    own: frozenset[int] | None = None  # all
    if not is_only_thread() and _in_a_row.get(root, 0) < _SURELY:
        first = taken[0].holders_changed()
        theirs = _changed_by_others(holders, time.perf_counter() - began)
        result = tried()
        if not theirs and not taken[1].changed():
            return result, None
        if theirs:
            own = (first & taken[1].holders_changed()) - theirs
            if not own:
                _in_a_row.pop(root, None)
                return attempt(Snapshot(())), None
    names = taken[0].names_changed(own)
    _restore(taken, own)
    _in_a_row[root] = _in_a_row.get(root, 0) + 1
    return result, names


def is_only_thread() -> bool:
    """Whether no other thread of this process runs Python."""
    return len(_threads()) == 1


def _changed_by_others(holders: Iterable[Any], seconds: float) -> frozenset[int]:
    """Which containers change while this thread does nothing, for as long as an attempt took."""
    before, end = Snapshot(holders), time.perf_counter() + min(max(seconds, _SHORTEST), _LONGEST)
    while time.perf_counter() < end:
        time.sleep(_SHORTEST / 20)
    return before.holders_changed()


def _restore(taken: Iterable[Snapshot], only: frozenset[int] | None = None) -> None:
    for snapshot in reversed([*taken]):
        if snapshot.restore(only):
            snapshot.restore_caches()


class Snapshot:
    """What containers hold now: lists, dicts, sets, cells, arrays and other memory, slots, classes, names of
    modules, and the environment."""

    def __init__(self, holders: Iterable[Any]) -> None:
        self._kept: list[tuple[Any, Way, Any]] = []
        self._caches: list[tuple[Any, dict[Any, Any]]] = []
        for holder in holders:
            if type(holder) is _CACHE and not any(holder is known for known, _ in self._caches):
                self._caches.append((holder, (entries_of(holder) or {}).copy()))
            way = way_of(type(holder))
            if way is not None and not any(holder is known for known in _FILLED_BY_IMPORTS):
                self._kept.append((holder, way, way.read(holder)))

    def __len__(self) -> int:
        return len(self._kept)

    def _changes(self, only: frozenset[int] | None = None) -> Iterator[tuple[Any, Way, list[Any], list[Any]]]:
        """Those that hold something else by now, how they are written, what they held, and what they hold;
        compares which objects, never what they equal. `only`: of these, by their ids."""
        for holder, way, held in self._kept:
            if (only is None or id(holder) in only) and not _same(now := way.read(holder), held):
                yield holder, way, held, now

    def changed(self) -> bool:
        """True if any of them holds something else by now."""
        return next(self._changes(), None) is not None

    def items_changed(self) -> list[tuple[dict[str, Any], str, Tensor]] | None:
        """The dicts that hold another tensor by a name, the names, and what they held; None where anything
        else is another."""
        found: list[tuple[dict[str, Any], str, Tensor]] = []
        for holder, _, held, now in self._changes():
            half = len(held) // 2
            if type(holder) is not dict or len(now) != len(held) or not _same(now[:half], held[:half]):
                return None
            for name, before, after in zip(held, held[half:], now[half:], strict=False):
                if before is not after:
                    if type(name) is not str or type(before) is not Tensor or type(after) is not Tensor:
                        return None
                    if not any(holder is known and name == other for known, other, _ in found):
                        found.append((holder, name, before))
        return found

    def names_set(self) -> list[tuple[dict[str, Any], str, Any]] | None:
        """The dicts that hold something else by a name, the names, and what they held, MISSING where that is
        nothing; None where anything else changed, or a name is gone."""
        found: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        for holder, _, held, now in self._changes():
            if type(holder) is not dict:
                return None
            before, after = dict(by_name(held)), dict(by_name(now))
            for name in before | after:
                if before.get(name, MISSING) is not (value := after.get(name, MISSING)):
                    if type(name) is not str or value is MISSING:
                        return None
                    found[id(holder), name] = holder, name, before.get(name, MISSING)
        return [*found.values()]

    def holders_changed(self) -> frozenset[int]:
        """The ids of those that hold something else by now."""
        return frozenset(id(holder) for holder, *_ in self._changes())

    def names_changed(self, only: frozenset[int] | None) -> frozenset[str]:
        """The names by which dicts, those of attributes among them, hold something else by now. `only`: of
        these, by their ids."""
        found = set[str]()
        for holder, _, held, now in self._changes(only):
            if type(holder) is dict:
                found |= _named_anew(held, now).keys()
        return frozenset(found)

    def restore(self, only: frozenset[int] | None = None) -> bool:
        """Put back what was there, `only`: in these, by their ids. True if something had changed."""
        found = False
        for holder, way, held, _ in self._changes(only):
            way.write(holder, held)
            found = True
        return found

    def restore_caches(self) -> None:
        """Forget what caches of functools hold since: a function that counts its calls is called again. What
        a full one let go is gone."""
        for cache, held in self._caches:
            if not held:
                cache.cache_clear()
                continue
            now = entries_of(cache)
            if now is not None and len(now) > len(held) and {*map(id, held)} <= {*map(id, now)}:
                now.clear()
                now.update(held)  # into nothing: no code of the keys' runs


class Way(NamedTuple):
    """How one kind of container is read as a list, and written."""

    read: Callable[[Any], list[Any]]
    write: Callable[[Any, list[Any]], None]


def _same(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    if all(map(operator.is_, a, b)):
        return True
    for one, other in zip(a, b, strict=True):
        if one is not other and not (type(one) is bytes and type(other) is bytes and one == other):
            return False
    return True


_KEPT_BY_DYNAMO = "__dynamo_disable"  # of a function of torch, at its first call


def _read_dict(value: Any) -> list[Any]:
    if type(value) is dict:
        now = value.copy()  # at once: another thread may add to it
        now.pop(_KEPT_BY_DYNAMO, None)
        return [*now, *now.values()]
    pairs = list(dict.items(value))
    return [name for name, _ in pairs] + [item for _, item in pairs]


def by_name(held: list[Any]) -> Iterable[tuple[Any, Any]]:
    """What a dict was read as, name by name."""
    half = len(held) // 2
    return zip(held[:half], held[half:], strict=True)


def _named(held: list[Any]) -> dict[str, Any]:
    # names of other types compare by code of the user's
    return {name: item for name, item in by_name(held) if type(name) is str}


def _named_anew(held: list[Any], now: list[Any]) -> dict[str, Any]:
    """What a dict holds by names by which it held something else."""
    before = _named(held)
    return {name: item for name, item in _named(now).items() if before.get(name, MISSING) is not item}


def _write_dict(value: Any, held: list[Any]) -> None:
    half, names = len(held) // 2, list(dict.keys(value))
    if not all(map(operator.is_, names, held[:half])) or len(names) < half:  # another order
        dict.clear(value)
    for name in names[half:]:
        dict.pop(value, name, None)
    for name, item in by_name(held):
        if dict.get(value, name, MISSING) is not item:  # all else stays where other threads look it up
            dict.__setitem__(value, name, item)


def _write_ordered(value: Any, held: list[Any]) -> None:
    count = len(held) // 3
    items = dict(zip(map(id, held[:count]), held[count : 2 * count], strict=True))
    collections.OrderedDict.clear(value)
    for name in held[2 * count :]:
        collections.OrderedDict.__setitem__(value, name, items[id(name)])


def _write_environment(value: Any, held: list[Any]) -> None:
    before = dict(by_name(held))
    for name in value._data.keys() - before.keys():
        os.unsetenv(name)
    for name, text in before.items():
        if value._data.get(name) != text:
            os.putenv(name, text)
    _write_dict(value._data, held)


def _write_list(value: Any, held: list[Any]) -> None:
    list.__setitem__(value, slice(None), held)


def _write_set(value: Any, held: list[Any]) -> None:
    set.clear(value)
    set.update(value, held)


def _write_deque(value: Any, held: list[Any]) -> None:
    collections.deque.clear(value)
    collections.deque.extend(value, held)


def _write_bytes(value: Any, held: list[Any]) -> None:
    if isinstance(value, array.array):
        del value[:]
        value.frombytes(held[0])
    else:
        value[:] = held[0]


def _read_array(value: Any) -> list[Any]:
    plain = np.ndarray.view(value, np.ndarray)
    return plain.ravel().tolist() if plain.dtype == object else [plain.tobytes()]


def _write_array(value: Any, held: list[Any]) -> None:
    plain = np.ndarray.view(value, np.ndarray)
    if plain.dtype == object and plain.flags.writeable:
        plain.flat[:] = held
    elif plain.flags.writeable and not plain.dtype.hasobject:
        plain[...] = np.frombuffer(held[0], plain.dtype).reshape(plain.shape)


def _read_memory(value: memoryview) -> list[Any]:
    try:
        return [value.tobytes()]
    except ValueError:  # released
        return []


def _write_memory(value: memoryview, held: list[Any]) -> None:
    if held and not value.readonly and value.contiguous:
        value.cast("B")[:] = held[0]


def _read_cell(value: Any) -> list[Any]:
    try:
        return [value.cell_contents]
    except ValueError:  # not assigned yet
        return [MISSING]


def _write_cell(value: Any, held: list[Any]) -> None:
    if held[0] is MISSING:
        del value.cell_contents
    else:
        value.cell_contents = held[0]


def _read_class(value: type) -> list[Any]:
    space = value.__dict__.items()
    items = [(k, v) for k, v in space if not isinstance(v, _CLASS_ATTRIBUTES) and k != KEPT_BY_COPY]
    return [k for k, _ in items] + [v for _, v in items]


def _write_class(value: type, held: list[Any]) -> None:
    before = dict(by_name(held))
    for name, _ in by_name(_read_class(value)):
        if name not in before:
            type.__delattr__(value, name)
    for name, item in before.items():
        if value.__dict__.get(name, MISSING) is not item:
            type.__setattr__(value, name, item)


def _write_names(value: Names, held: list[Any]) -> None:
    for name, item in zip(value.names, held, strict=True):
        if item is MISSING:
            value.space.pop(name, None)
        else:
            value.space[name] = item


def _write_slots(value: Any, held: list[Any]) -> None:
    for (klass, name, now), before in zip(slot_values(value), held, strict=True):
        if now is not before:
            member = klass.__dict__[name]
            member.__delete__(value) if before is MISSING else member.__set__(value, before)


_CACHE = functools._lru_cache_wrapper
_CELL = type((lambda x: lambda: x)(0).__closure__[0])  # pyright: ignore[reportOptionalSubscript]
_ORDER = collections.OrderedDict.__iter__
_WAYS: tuple[tuple[Any, Way], ...] = (
    (Names, Way(lambda value: [value.space.get(name, MISSING) for name in value.names], _write_names)),
    (collections.OrderedDict, Way(lambda value: [*_read_dict(value), *_ORDER(value)], _write_ordered)),
    (dict, Way(_read_dict, _write_dict)),
    (list, Way(lambda value: list(list.__iter__(value)), _write_list)),
    (set, Way(lambda value: list(set.__iter__(value)), _write_set)),
    (collections.deque, Way(lambda value: list(collections.deque.__iter__(value)), _write_deque)),
    ((bytearray, array.array), Way(lambda value: [bytes(memoryview(value))], _write_bytes)),
    (np.ndarray, Way(_read_array, _write_array)),
    (memoryview, Way(_read_memory, _write_memory)),
    (contextvars.ContextVar, Way(lambda value: [value.get(MISSING)], lambda value, held: None)),
    (_CELL, Way(_read_cell, _write_cell)),
    (type, Way(_read_class, _write_class)),
)
_ENVIRONMENT = Way(lambda value: _read_dict(value._data), _write_environment)
_SLOTTED = Way(lambda value: [held for _, _, held in slot_values(value)], _write_slots)


def way_of(kind: type) -> Way | None:
    """How containers of a class are read and written; None for what holds nothing that changes."""
    if kind is type(os.environ):
        return _ENVIRONMENT
    if kind in FIXED:  # paths keep what was asked of them
        return None
    for kinds, way in _WAYS:  # no abstract classes, which would compare kinds
        if issubclass(kind, kinds):
            return way
    return _SLOTTED if any("__slots__" in k.__dict__ for k in kind.__mro__[:-1]) else None
