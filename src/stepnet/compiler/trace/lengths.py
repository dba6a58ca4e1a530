"""`len()` of rows in a step that is traced: a number that is left open, as `x.shape[0]` is.

Python makes a number of whatever `Tensor.__len__` gives, so it is the function that is another one meanwhile.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from stepnet.compiler.reads.swapped import Swapped
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.errors import Unsupported
from stepnet.watchers import during

_open: ContextVar[bool] = ContextVar("stepnet_open_lengths", default=False)


class AsksLength(Unsupported):
    """A trace asks for the length of rows as a number."""


@contextlib.contextmanager
def open_lengths() -> Iterator[None]:
    """Let `len()` give sizes as they are in here, in this thread."""
    with during(_open, True), _LEN.inside():
        yield


def _len(of: Any, /) -> Any:
    if _open.get() and isinstance(of, Tensor) and of.dim() and not isinstance(of.shape[0], int):
        return of.shape[0]
    if _open.get() and isinstance(of, LoDTensor) and not isinstance(of.structure, LoD):
        return _len(of.structure.table)  # one word of each sentence
    return _LEN.original(of)


_LEN = Swapped(builtins, "len", _len)
