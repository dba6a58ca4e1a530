"""Kernels of operators whose own torch ops are dispatched as a caller's are."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from stepnet.data.in_graph import CAN_CAPTURE, is_exporting

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _keys_between(low: Any, high: Any) -> Any:
    return torch._C._dispatch_keyset_full_after(high) - torch._C._dispatch_keyset_full_after(low)


_KEYS = torch._C.DispatchKey
_AUTOCAST: Any = _keys_between(_KEYS.AutocastCPU, _KEYS.FuncTorchBatched)
_TRACED: Any = functools.reduce(
    operator.or_,
    map(torch._C.DispatchKeySet, (_KEYS.Python, _KEYS.PythonTLSSnapshot, _KEYS.Functionalize)),
)
_AUTOGRAD: Any = _keys_between(_KEYS.ADInplaceOrView, _KEYS.AutocastCPU)


def from_the_top(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function of a kernel whose torch ops are dispatched as a caller's are.

    Torch passes over whatever stands above a kernel: autograd would not record, and tensors that are only
    marked as conjugate, negative or zero would be read as their memory is, which a zero one does not have.
    """

    @functools.wraps(kernel)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        around: Any = torch._C._dispatch_tls_local_exclude_set()
        kept = around & (_AUTOCAST | _TRACED)
        if torch.is_inference_mode_enabled():
            kept = kept | (around & _AUTOGRAD)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), kept):
            return kernel(*args, **kwargs)

    return call


def on_numbers(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """A kernel, which runs: what it calls is no part of a program, though torch.export may trace its caller.
    `draft_export` has numbers beside what it traces, and runs each operator on them."""
    if not CAN_CAPTURE:
        return kernel

    @functools.wraps(kernel)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_exporting():
            return kernel(*args, **kwargs)
        state: Any = torch.compiler
        flags = state._is_exporting_flag, state._is_compiling_flag
        state._is_exporting_flag = state._is_compiling_flag = False
        try:
            return kernel(*args, **kwargs)
        finally:
            state._is_exporting_flag, state._is_compiling_flag = flags

    return call
