"""Functions of torch whose code or defaults somebody set, beside those that `monkeypatches` looks at for each
step: those of torch.distributions, and of layers and what is beneath them, for steps that come by these. And
functions of the user's that torch.distributions finds in tables of its own."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import torch
from torch.distributions import biject_to, kl, transform_to
from torch.distributions.utils import lazy_property

from .dict_changes import changes_at, counts_changes
from .monkeypatches import (
    CLASSES,
    OF_DISTRIBUTIONS,
    TORCH,
    Patch,
    Written,
    is_as_it_was,
    parts_of,
    reader,
    words_of_functions,
    written_in,
)
from .survey import CALLS
from .trust import is_foreign


def _inner(item: Any) -> Any:
    """The function that a method of a class, or a property, is made of."""
    if isinstance(item, lazy_property):
        return item.wrapped
    return item.fget if isinstance(item, property) else getattr(item, "__func__", item)


def _of_distributions() -> Iterator[Written]:
    for space in TORCH:
        if space.name.startswith(OF_DISTRIBUTIONS):
            yield from written_in(space.name, [(key, _inner(item)) for key, item in space.held.items()])


def _of_class(kind: type) -> list[Written]:
    seen = {"forward"} if kind.__module__.startswith("torch.nn.modules.") else set[str]()  # for every step
    names = CALLS if kind is torch.nn.Module else vars(kind).keys() - seen
    items = [(name, _inner(vars(kind).get(name))) for name in sorted(names)]
    return list(written_in(f"{kind.__module__}.{kind.__qualname__}", items))


_DISTRIBUTIONS = list(_of_distributions())
_METHODS = {kind: _of_class(kind) for kind in CLASSES if kind.__module__.startswith("torch.nn.")}


class _Watched:
    """Some functions, and which of them were set."""

    def __init__(self, functions: Sequence[Written]) -> None:
        self._functions = functions
        self._before: Any = None
        self._found: Sequence[Patch] = ()

    @functools.cached_property
    def places(self) -> list[int]:
        """See `monkeypatches.places`."""
        return words_of_functions(self._functions)

    @functools.cached_property
    def _counter(self) -> Callable[[], Any]:
        return reader(self.places) if self.places else lambda: parts_of(self._functions)

    def patched(self) -> Sequence[Patch]:
        """Those that were set."""
        now = self._counter()
        if now != self._before:
            self._found = tuple(one.patch for one in self._functions if not is_as_it_was(one))
            self._before = now
        return self._found


_distributions = _Watched(_DISTRIBUTIONS)
_TABLES: tuple[dict[Any, Any], ...] = kl._KL_REGISTRY, biject_to._registry, transform_to._registry


def _registered() -> Iterator[Patch]:
    """What was registered for classes of distributions and constraints, but for what torch has itself."""
    for table in _TABLES:
        for kinds, function in list(table.items()):
            if not isinstance(function, types.FunctionType) or is_foreign(function):
                yield Patch(f"registered for {kinds}", function)


@functools.lru_cache(maxsize=4096)
def _methods(kinds: frozenset[type]) -> _Watched:
    return _Watched([one for kind in kinds for one in _METHODS[kind]])


@functools.lru_cache(maxsize=4096)
def _beneath(kind: type) -> frozenset[type]:
    return frozenset(kind.__mro__) & _METHODS.keys()


def _watched(kinds: Iterable[type], distributions: bool) -> list[_Watched]:
    found = [_methods(beneath)] if (beneath := frozenset[type]().union(*map(_beneath, kinds))) else []
    return [_distributions, *found] if distributions else found


def functions_set(kinds: Set[type], distributions: bool) -> list[Patch]:
    """What was set of the methods of these classes, and of `distributions`.

    >>> functions_set({torch.nn.Conv1d}, distributions=True)
    []
    """
    found = [patch for watched in _watched(kinds, distributions) for patch in watched.patched()]
    return [*found, *_registered()] if distributions else found


def places_of_functions(kinds: Iterable[type], distributions: bool) -> list[int]:
    """Words of memory one of which is another after one was set; none where Python has no such."""
    found = [place for watched in _watched(kinds, distributions) for place in watched.places]
    return [*found, *map(changes_at, _TABLES)] if distributions and counts_changes() else found
