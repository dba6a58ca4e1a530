"""What a block of `torch.nn.utils.parametrize.cached()` kept, for derivatives of its calls that are asked for
when it is over: the step reads it again, in the thread that derives, and nowhere else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils import parametrize

from stepnet.locks import Lock

Cached = Mapping[tuple[int, str], Any]  # by modules, told by their numbers, and names
NOTHING: Cached = {}


def cached_here(tensors: Sequence[Tensor]) -> Cached:
    """Those of some tensors that a block around keeps."""
    if not parametrize._cache_enabled:
        return NOTHING
    read = {id(t) for t in tensors}
    return {place: made for place, made in parametrize._cache.items() if id(made) in read}


def cached_again(cached: Cached) -> contextlib.AbstractContextManager[None]:
    """In here, these are what the block around keeps.

    >>> from torch import nn
    >>> linear = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> with parametrize.cached():
    ...     kept = linear.weight
    ...     cached = cached_here([kept])
    >>> with cached_again(cached):
    ...     linear.weight is kept
    True
    >>> linear.weight is kept
    False
    """
    there = parametrize._cache_enabled and all(parametrize._cache.get(at) is t for at, t in cached.items())
    return contextlib.nullcontext() if there or not cached else _again(cached)


class _OfThreads(MutableMapping[tuple[int, str], Any]):
    """What torch finds cached: in threads that derive, what their calls read; in others, what it would."""

    def __init__(self, around: MutableMapping[tuple[int, str], Any]) -> None:
        self.around, self.of = around, dict[int, dict[tuple[int, str], Any]]()

    def _here(self) -> MutableMapping[tuple[int, str], Any]:
        own = self.of.get(threading.get_ident())
        if own is not None:
            return own
        return self.around if parametrize._cache_enabled > 1 else {}  # one is ours

    def __getitem__(self, place: tuple[int, str]) -> Any:
        return self._here()[place]

    def __setitem__(self, place: tuple[int, str], made: Any) -> None:
        self._here()[place] = made

    def __delitem__(self, place: tuple[int, str]) -> None:
        del self._here()[place]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())


_lock = Lock()


@contextlib.contextmanager
def _again(cached: Cached) -> Iterator[None]:
    torch_own: Any = parametrize
    thread = threading.get_ident()
    with _lock:
        if not isinstance(torch_own._cache, _OfThreads):
            torch_own._cache = _OfThreads(torch_own._cache)
            torch_own._cache_enabled += 1
        of = torch_own._cache.of
        before, of[thread] = of.get(thread), dict(cached)
    try:
        yield
    finally:
        with _lock:
            if before is not None:
                of[thread] = before
            else:
                del of[thread]
            if not of:
                torch_own._cache_enabled -= 1
                torch_own._cache = torch_own._cache.around if torch_own._cache_enabled else {}
