"""Errors that a handler of a signal raises in the middle of something else: a timeout, say."""

from __future__ import annotations

import dis
import functools
import signal
import types
from typing import Any


def let_through(error: BaseException) -> None:
    """Raise an error again if it is a handler's, or was made of one: it says nothing of what it interrupted.
    So does Ctrl-C, whose own handler has no frame.

    >>> let_through(ValueError("of the step"))
    """
    found: BaseException | None = error
    handlers = [_code_of(signal.getsignal(number)) for number in signal.valid_signals()]
    while found is not None:
        trace = found.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                raise found
            trace = trace.tb_next
        if isinstance(found, KeyboardInterrupt) and found.__traceback__ and not is_by_raise(found):
            raise found
        found = found.__cause__ or found.__context__


def is_by_raise(error: BaseException) -> bool:
    """Whether a `raise` in Python made an error, and not a call of C or what came between two lines."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and dis.opname[at.tb_frame.f_code.co_code[at.tb_lasti]] == "RAISE_VARARGS"


def _code_of(handler: Any) -> types.CodeType | None:
    if isinstance(handler, functools.partial):
        return _code_of(handler.func)
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
