"""Functions of torch that make memory or tell where it lies, as they were when stepnet was imported.

Generated C is given addresses. Whoever replaces one of these may get other numbers from the plain loop, but
is not to make C read what is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_methods: Any = Tensor.__mro__[1]  # made by C: what is set on Tensor leaves it as it is
_functions: Any = torch._C._VariableFunctions  # pyright: ignore[reportAttributeAccessIssue]

contiguous: Callable[[Tensor], Tensor] = _methods.contiguous
is_contiguous: Callable[[Tensor], bool] = _methods.is_contiguous
data_ptr: Callable[[Tensor], int] = _methods.data_ptr
stride: Callable[[Tensor], tuple[int, ...]] = _methods.stride
set_: Callable[..., Tensor] = _methods.set_
is_set_to: Callable[[Tensor, Tensor], bool] = _methods.is_set_to
split: Callable[[Tensor, list[int]], tuple[Tensor, ...]] = _methods.split_with_sizes
empty: Callable[..., Tensor] = _functions.empty
empty_strided: Callable[..., Tensor] = _functions.empty_strided
empty_like: Callable[[Tensor], Tensor] = _functions.empty_like
zeros: Callable[..., Tensor] = _functions.zeros
zeros_like: Callable[[Tensor], Tensor] = _functions.zeros_like
_guards: Any = torch._C._dynamo.guards  # pyright: ignore[reportAttributeAccessIssue]


def _empty_on_cpu(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return empty_strided(size, strides, dtype=dtype, device="cpu")


# What torch.compile makes tensors by, in half the time, seen by no mode.
empty_on_cpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor] = getattr(
    _guards, "_empty_strided_cpu", _empty_on_cpu
)
from_numpy: Callable[[Any], Tensor] = _functions.from_numpy
