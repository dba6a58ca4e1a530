"""What users' objects have, asked in their stead."""

from __future__ import annotations

import inspect
from typing import Any

from stepnet.interrupts import let_through


def attribute(of: Any, name: str, default: Any = None) -> Any:
    """An attribute of a user's object, if it has it. The `__getattr__` of many raises a KeyError for what it
    does not know, and it is not their user who asks.

    >>> class Options(dict):
    ...     __getattr__ = dict.__getitem__
    >>> attribute(Options(rate=0.5), "rate"), attribute(Options(), "initial_state")
    (0.5, None)
    """
    try:
        return getattr(of, name, default)
    except Exception as error:
        let_through(error)
        if inspect.getattr_static(of, name, None) is not None:  # of a property, say
            raise
        return default


def begins_by_itself(step: Any) -> bool:
    """Whether a step has an initial state of its own, by a method `initial_state(n)`."""
    return attribute(step, "initial_state") is not None
