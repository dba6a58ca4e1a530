"""What a TorchFunctionMode does not see: calls of custom autograd Functions, and torch's control flow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from torch.autograd import Function

from .control import plain_control

See = Callable[[Any, Any], tuple[Any, Any]]

_seeing: ContextVar[tuple[See, ...]] = ContextVar("stepnet_applied", default=())
_lock = threading.Lock()
_entered = 0
_original: Any = None


@contextlib.contextmanager
def applied(see: See) -> Iterator[None]:
    """Let `see(args, kwargs)` give the arguments of each `Function.apply` that this thread calls in here, and
    let torch's control flow be Python's."""
    global _entered, _original
    token = _seeing.set((*_seeing.get(), see))
    with _lock:
        if not _entered:
            _original = Function.__dict__["apply"]
            Function.apply = classmethod(_apply)  # pyright: ignore[reportAttributeAccessIssue]
        _entered += 1
    try:
        with plain_control():
            yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered:
                Function.apply = _original
        _seeing.reset(token)


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    for see in reversed(_seeing.get()):
        args, kwargs = see(args, kwargs)
    return _original.__func__(function, *args, **kwargs)
