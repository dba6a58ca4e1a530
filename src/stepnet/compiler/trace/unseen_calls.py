"""What a TorchFunctionMode does not see: custom autograd Functions, torch's control flow, what transforms of
torch.func take, what vmap gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch._functorch import eager_transforms, vmap
from torch.autograd import Function

from stepnet.compiler.reads.as_written import as_written
from stepnet.compiler.reads.swapped import Swapped
from stepnet.watchers import during

from .control import plain_control
from .logs_and_prints import no_remarks

See = Callable[[Any, Any], tuple[Any, Any]]
Made = Callable[[Any, Any], None]

_seeing: ContextVar[tuple[tuple[See, Made | None], ...]] = ContextVar("stepnet_applied", default=())


@contextlib.contextmanager
def applied(see: See, made: Made | None = None) -> Iterator[None]:
    """Let `see(args, kwargs)` give the arguments of each `Function.apply` that this thread calls in here, and
    `made(args, result)` meet what it makes of those; let `see` give the tensors that vmap and grad take
    apart, too; let torch's control flow be Python's, and what torch compiles run as it is written."""
    seeing = during(_seeing, (*_seeing.get(), (see, made)))
    with (
        seeing,
        _APPLY.inside(),
        _BATCH.inside(),
        _WRAP.inside(),
        plain_control(),
        as_written(),
        no_remarks(),
    ):
        yield


def _seen(args: Any, kwargs: Any) -> tuple[Any, Any]:
    for see, _ in reversed(_seeing.get()):
        args, kwargs = see(args, kwargs)
    return args, kwargs


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = _seen(args, kwargs)
    result = _APPLY.original.__get__(None, function)(*args, **kwargs)
    for _, made in _seeing.get():
        if made is not None:
            made(args, result)
    return result


def _batch(tensor: Tensor, *where: Any) -> Any:
    return _BATCH.original(*_seen((tensor,), {})[0], *where)


def _wrap(tensor: Tensor, *where: Any) -> Any:
    return _WRAP.original(*_seen((tensor,), {})[0], *where)


_APPLY = Swapped(Function, "apply", classmethod(_apply))
_BATCH = Swapped(vmap, "_add_batch_dim", _batch)
_WRAP = Swapped(eager_transforms, "_wrap_for_grad", _wrap)
_unbatching: ContextVar[Callable[[Tensor], None] | None] = ContextVar("stepnet_unbatched", default=None)


@contextlib.contextmanager
def unbatched(see: Callable[[Tensor], None]) -> Iterator[None]:
    """Let `see` meet what comes out of each vmap that this thread calls in here."""
    with during(_unbatching, see), _UNBATCH.inside():
        yield


def _unbatch(*args: Any) -> Any:
    result = _UNBATCH.original(*args)
    if (see := _unbatching.get()) is not None:
        see(result)
    return result


_UNBATCH = Swapped(vmap, "_remove_batch_dim", _unbatch)
