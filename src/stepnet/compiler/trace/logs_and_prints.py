"""What a step says beside its results: logs and prints, which no compiled loop would write at each step."""

from __future__ import annotations

import builtins
import contextlib
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from stepnet.compiler.reads.code_facts import EFFECTS
from stepnet.compiler.reads.swapped import Swapped
from stepnet.compiler.reads.trust import is_trusted_code
from stepnet.errors import Unsupported
from stepnet.user_line import user_line
from stepnet.watchers import during

_LIBRARIES = ("torch", "stepnet")
_OF_SHAPES = "torch._subclasses.fake_tensor"  # logs a traceback of shapes that do not fit
_refused: ContextVar[list[Unsupported] | None] = ContextVar("stepnet_remarks", default=None)


@contextlib.contextmanager
def no_remarks() -> Iterator[None]:
    """Refuse a step that logs, prints, or asks the user in here, in this thread, before it does.

    Raises:
        Unsupported: it does, even if it caught that.
    """
    refused = list[Unsupported]()
    with contextlib.ExitStack() as stack:
        stack.enter_context(during(_refused, refused))
        for swapped in (_HANDLE, *_BUILTINS):
            stack.enter_context(swapped.inside())
        yield
    if refused:
        raise refused[0].fresh()


def _refuse(refused: list[Unsupported], does: str, remedy: str | None = None) -> Unsupported:
    refused.append(Unsupported(f"it {does}, once for each step", line=user_line().short, remedy=remedy))
    return refused[-1]


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    refused = _refused.get()
    if refused is not None and logger.name == _OF_SHAPES:  # why there is no plan is said, or it is tried anew
        return
    if refused is not None and logger.name.partition(".")[0] not in _LIBRARIES:
        raise _refuse(
            refused,
            f"logs to {logger.name!r}",
            "log outside of the step, or by a level that the logger is not enabled for",
        )
    with during(_refused, None):  # what writes the line of a library prints, if it tells an exception
        _HANDLE.original(logger, record)


def _stopped(name: str) -> Swapped:
    """Another function in the place of a builtin whose effect no compiled loop repeats."""

    def called(*args: Any, **kwargs: Any) -> Any:
        refused = _refused.get()
        if refused is not None and not is_trusted_code(sys._getframe(1).f_code.co_filename):
            raise _refuse(refused, f"calls {name}()")
        return swapped.original(*args, **kwargs)

    swapped = Swapped(builtins, name, called)
    return swapped


_HANDLE = Swapped(logging.Logger, "handle", _handle)
_BUILTINS = [_stopped(name) for name in sorted(EFFECTS) if hasattr(builtins, name)]
