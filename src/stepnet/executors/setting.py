"""Which executor is asked for: per call, or one setting for the process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stepnet.data.arguments import brief
from stepnet.data.modes import autocast_dtype, in_function_modes, linearizes, traced, transforms_active
from stepnet.errors import StepError

from .base import Backend
from .registry import AUTO, backend_names, is_backend

_default: Backend = AUTO


def set_backend(backend: Backend) -> None:
    """Choose the executor of every recurrence that does not name one.

    Args:
        backend: `"auto"` takes the first that accepts the step, of generated C, torch ops and the plain
            loop, unless another is timed faster; each of these, and what `register` added, can be asked for
            by name.

    Raises:
        StepError: there is no such backend.

    >>> set_backend("auto")
    """
    global _default
    _default = check_backend(backend)


def get_backend() -> Backend:
    """The process-wide setting.

    >>> get_backend()
    'auto'
    """
    return _default


def check_backend(backend: Backend | None) -> Backend:
    """A backend by name; None is the process-wide setting."""
    if backend is None:
        backend = _default
    if not (isinstance(backend, str) and is_backend(backend)):
        expected = f"one of {', '.join(backend_names())}"
        raise StepError("no such backend", got=brief(backend), expected=expected)
    return backend


def only_plain(tensors: Sequence[Tensor], *, transforms: bool = False) -> str | None:
    """Why a call on these tensors can only run by the plain loop, whatever its step; None if it need not.
    With `transforms`, one inside torch.func's transforms is looked into by the caller.

    >>> only_plain([torch.ones(2, device="meta")])
    'the tensors are on meta, without numbers'
    """
    if transforms_active() and not transforms:
        return "a torch.func transform (vmap, grad, jvp) is active"
    looked_into = transforms and linearizes()
    if traced() and not looked_into:
        return "torch traces what runs, or runs it on fake tensors"
    if torch._C._len_torch_dispatch_stack() and not looked_into:
        return "a TorchDispatchMode is active, which is to see every operation"
    if in_function_modes():
        return "a TorchFunctionMode is active, which may change what any call gives"
    for tensor in tensors:
        if tensor.is_meta:
            return "the tensors are on meta, without numbers"
        if tensor.layout is not torch.strided:
            return f"a tensor of layout {tensor.layout} is no table of numbers"
        kind = type(tensor)
        if kind is not Tensor and kind is not nn.Parameter and not isinstance(tensor, nn.Parameter):
            return f"a {kind.__name__} is traced or dispatched by rules of its own"
    if tensors and not tensors[0].is_cpu:
        device = tensors[0].device.type
        if autocast_dtype(device) is not None:
            return f"autocast is on for {device}"  # a step is captured on the CPU, where other ops are cast
    return None
