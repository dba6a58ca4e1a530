"""What is done to a TensorArray inside a frame is recorded, not done: the hook between the two."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

Recorder = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RECORDER: ContextVar[Recorder | None] = ContextVar("recorder of TensorArray calls", default=None)

Method = TypeVar("Method", bound=Callable[..., Any])


def recordable(method: Method) -> Method:
    """Offer calls of a method to the active recorder, if any; where it gives NotImplemented, do the call."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = RECORDER.get()
        if recorder is not None:
            recorded = recorder(method, args, kwargs)
            if recorded is not NotImplemented:
                return recorded
        return method(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]
