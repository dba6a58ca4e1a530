"""Run code for its shapes alone: every torch function in it works on tensors without data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import is_wrapped, outside_transforms, unrecorded, without_function_modes
from stepnet.data.tree import map_leaves

_P = ParamSpec("_P")
_R = TypeVar("_R")


class OnMeta(TorchFunctionMode):
    """In this block, torch functions see each tensor as its shape and dtype, weights too.

    >>> import torch
    >>> with OnMeta():
    ...     product = torch.zeros(2, 3) @ torch.ones(3, 5)
    >>> product.shape, product.device.type
    (torch.Size([2, 5]), 'meta')
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = map_leaves((args, kwargs or {}), Tensor, without_data)
        return func(*args, **kwargs)


def for_shapes(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that finds shapes, which are remembered: what it calls is no part of a trace, nor of what a
    mode around has to `note` of a step, which the next time does not call it."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        around = _get_current_function_mode_stack()
        others = [type(mode) for mode in around if not hasattr(mode, "note")]
        if len(others) == len(around):
            return function(*args, **kwargs)
        with without_function_modes(*others):
            return function(*args, **kwargs)

    return unrecorded(call)


def without_data(value: Any) -> Any:
    """A tensor of the same shape and dtype that holds no numbers."""
    if isinstance(value, LoDTensor):
        return value
    if is_wrapped(value):  # by a transform that is over when what it stands for is still known
        with outside_transforms(), torch._C.DisableTorchFunction():  # no trace is asked how its rows lie
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return value if value.device.type == "meta" else value.detach().to("meta")


def asks_for_data(error: BaseException | None) -> bool:
    """Whether code that ran for its shapes failed since it asked for a number, which decides what it does."""
    while error is not None:
        if isinstance(error, NotImplementedError) or any(text in str(error) for text in _ASKED):
            return True
        error = error.__cause__
    return False


_ASKED = ("cannot be called on meta tensors", "Cannot cast tensor(")  # the second where torch traces
