"""What a step says beside its results: logs, which no compiled loop would write at each step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

from stepnet.errors import Unsupported
from stepnet.user_line import user_line
from stepnet.watchers import during

from .swapped import Swapped

_LIBRARIES = ("torch", "stepnet")
_listening: ContextVar[bool] = ContextVar("stepnet_remarks", default=False)


@contextlib.contextmanager
def no_logs() -> Iterator[None]:
    """Refuse a step that logs in here, in this thread, before it does.

    Raises:
        Unsupported: it logs.
    """
    with during(_listening, True), _HANDLE.inside():
        yield


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    if _listening.get() and logger.name.partition(".")[0] not in _LIBRARIES:
        raise Unsupported(
            f"it logs to {logger.name!r}, once for each step",
            line=user_line().short,
            remedy="log outside of the step, or by a level that the logger is not enabled for",
        )
    _HANDLE.original(logger, record)


_HANDLE = Swapped(logging.Logger, "handle", _handle)
