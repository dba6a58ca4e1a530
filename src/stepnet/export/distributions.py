"""What torch's distributions ask of their arguments only to raise, which a file that is run does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torch.distributions import Distribution

from stepnet.compiler.reads.swapped import Swapped
from stepnet.watchers import during

_unasked: ContextVar[bool] = ContextVar("stepnet_unasked_distributions", default=False)


class _Default:
    """torch's default of `validate_args`, off in some threads."""

    def __get__(self, of: Any, owner: Any = None) -> bool:
        return not _unasked.get() and _DEFAULT.original


_DEFAULT = Swapped(Distribution, "_validate_args", _Default())


@contextlib.contextmanager
def unasked() -> Iterator[None]:
    """Let those that were not told to validate their arguments not do so in here, in this thread."""
    with _DEFAULT.inside(), during(_unasked, True):
        yield
