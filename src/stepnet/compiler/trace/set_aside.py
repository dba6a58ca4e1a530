"""What is around a call of a step, set aside while the step is tried or traced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext

from stepnet.data.modes import without_function_modes
from stepnet.errors import Unsupported


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Set aside the TorchFunctionModes around: what they watch or change is the caller's, not the capture's.
    The default device stays, because it is part of what a step means. What `parametrize.cached()` has kept
    stays, too, and it keeps nothing more: what a trace makes is none of the caller's."""
    cache = parametrize._cache
    held = set(cache)
    try:
        with without_function_modes(DeviceContext):
            yield
        if cache.keys() - held:
            raise Unsupported("it reads a tensor that parametrize.cached() is to keep, which no walk finds")
    finally:
        for key in cache.keys() - held:
            cache.pop(key, None)


@contextlib.contextmanager
def without_hooks() -> Iterator[None]:
    """Set aside the hooks on saved tensors around: they are for the caller's tensors."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    if not hasattr(autograd, "_top_saved_tensors_default_hooks"):  # torch 2.6 does not tell which there are
        if autograd._saved_tensors_hooks_is_enabled():
            with saved_tensors_hooks(_with_version, _as_saved):  # the last ones hide all before
                yield
        else:
            yield
        return
    aside: list[Any] = []
    while (pair := autograd._top_saved_tensors_default_hooks(True)) is not None:
        aside.append(pair)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(aside):
            autograd._push_saved_tensors_default_hooks(*pair)


def without_compiled_autograd() -> contextlib.AbstractContextManager[None]:
    """Set aside compiled autograd around, which would compile the backward that is being recorded."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")  # not imported: not around
    return contextlib.nullcontext() if compiled is None else compiled._disable()


def _with_version(tensor: Tensor) -> tuple[Tensor, int]:
    return tensor, tensor._version


def _as_saved(kept: tuple[Tensor, int]) -> Tensor:
    """What was kept. With hooks torch does not see that it was written into since."""
    tensor, version = kept
    if tensor._version != version:
        raise RuntimeError("a value needed for a gradient has been modified by an inplace operation")
    return tensor
