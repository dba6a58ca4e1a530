"""What torch runs otherwise than it is written: compiled, scripted and checkpointed code. In a step that is
tried or traced, it runs as Python wrote it, which is what it means."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint

from stepnet.data.tree import leaves
from stepnet.watchers import during

from .swapped import Swapped

_inside: ContextVar[bool] = ContextVar("stepnet_as_written", default=False)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Let what this thread calls in here run as it is written."""
    compiled = _compiled().inside() if _DYNAMO in sys.modules else contextlib.nullcontext()
    with during(_inside, True), _SCRIPTED.inside(), _CHECKPOINTED.inside(), _REENTRANT.inside(), compiled:
        yield


def written_as(function: Any) -> Callable[..., Any] | None:
    """The Python that a function of torch's was made from; None where there is none, or it means less.

    >>> @torch.jit.script
    ... def double(x):
    ...     return 2 * x
    >>> written_as(double).__name__, written_as(len)
    ('double', None)
    """
    own = getattr(function, "__dict__", {})
    if isinstance(function, torch.jit.ScriptFunction):
        scripted = own.get("__qualname__") == "torch.jit.ScriptFunction"  # and not traced on an example
        return own.get("_torchdynamo_inline") if scripted else None
    return own.get("_torchdynamo_orig_callable") if isinstance(function, types.FunctionType) else None


def _scripted(function: Any, *args: Any, **kwargs: Any) -> Any:
    written = written_as(function) if _inside.get() else None
    return _SCRIPTED.original(function, *args, **kwargs) if written is None else written(*args, **kwargs)


def _compiler_of(callback: Any) -> Any:
    """What Dynamo looks at code by: nothing."""
    return None if _inside.get() else _compiled().original(callback)


def _checkpoint_frames(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """What torch does before and after it calls the function: nothing."""
    return iter((None,)) if _inside.get() else _CHECKPOINTED.original(function, *args, **kwargs)


class _Reentrant:
    """In the place of the Function by which torch checkpoints reentrantly."""

    @staticmethod
    def apply(function: Any, preserve: Any, *args: Any) -> Any:
        """Call the function; without a gradient if no argument wants one."""
        if not _inside.get():
            return _REENTRANT.original.apply(function, preserve, *args)
        wanted = any(tensor.requires_grad for tensor in leaves(args, Tensor))
        with torch.set_grad_enabled(wanted and torch.is_grad_enabled()):
            return function(*args)


_SCRIPTED = Swapped(torch.jit.ScriptFunction, "__call__", _scripted)
_CHECKPOINTED = Swapped(checkpoint, "_checkpoint_without_reentrant_generator", _checkpoint_frames)
_REENTRANT = Swapped(checkpoint, "CheckpointFunction", _Reentrant)
_DYNAMO = "torch._dynamo.eval_frame"  # imported by what is compiled, and slow to import


@functools.cache
def _compiled() -> Swapped:
    return Swapped(sys.modules[_DYNAMO], "_callback_from_stance", _compiler_of)
