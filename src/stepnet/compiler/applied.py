"""What a TorchFunctionMode does not see: calls of custom autograd Functions, and torch's control flow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from torch.autograd import Function

from stepnet.watchers import during

from .control import plain_control
from .swapped import Swapped

See = Callable[[Any, Any], tuple[Any, Any]]

_seeing: ContextVar[tuple[See, ...]] = ContextVar("stepnet_applied", default=())


@contextlib.contextmanager
def applied(see: See) -> Iterator[None]:
    """Let `see(args, kwargs)` give the arguments of each `Function.apply` that this thread calls in here, and
    let torch's control flow be Python's."""
    with during(_seeing, (*_seeing.get(), see)), _APPLY.inside(), plain_control():
        yield


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    for see in reversed(_seeing.get()):
        args, kwargs = see(args, kwargs)
    return _APPLY.original.__func__(function, *args, **kwargs)


_APPLY = Swapped(Function, "apply", classmethod(_apply))
