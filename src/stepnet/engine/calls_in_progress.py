"""Which threads are in a call of a step: what one of them collects in a list is not to be met by a trial of
the step in another, which puts back what stood there."""

from __future__ import annotations

import sys
import threading
from typing import Any

from .kept_by_step import place_of

_calls: dict[object, tuple[Any, int]] = {}  # by the call: where its step is found, and the thread


class call_of:
    """In here this thread calls a step, by a plan or by the plain loop."""

    __slots__ = ("step",)

    def __init__(self, step: Any) -> None:
        self.step = step

    def __enter__(self) -> None:
        # one call of C each: no other thread between
        _calls[self] = place_of(self.step), threading.get_ident()

    def __exit__(self, *_: object) -> None:
        _calls.pop(self, None)


def is_called_elsewhere(step: Any) -> bool:
    """Whether another thread is in a call of a step."""
    place, own = place_of(step), threading.get_ident()
    others = [thread for at, thread in list(_calls.values()) if at == place and thread != own]
    return bool(others) and not sys._current_frames().keys().isdisjoint(others)  # a fork leaves some behind
