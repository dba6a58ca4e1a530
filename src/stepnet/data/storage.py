"""Which tensors share memory, whether they hold the same, and whether anybody wrote to them."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.modes import has_tangent


def memory_of(tensor: Tensor) -> int:
    """What two tensors that share memory have in common; a tensor without any has only itself.

    >>> a = torch.ones(3)
    >>> memory_of(a) == memory_of(a[1:]), memory_of(a) == memory_of(a.clone())
    (True, False)
    """
    if type(tensor) is Tensor:
        try:
            return tensor.untyped_storage()._cdata
        except NotImplementedError:  # to ask first takes four times as long
            return id(tensor)
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else id(tensor)


def no_view(tensor: Tensor) -> Tensor:
    """A result as one that autograd takes for no view: it loses hooks of a view that is written to.

    >>> no_view(torch.ones(4).view(2, 2))._is_view()
    False
    """
    if not tensor._is_view():
        return tensor
    return tensor.clone() if tensor.requires_grad or has_tangent(tensor) else tensor.data


def distinct(out: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results that callers may write to: none shares memory with an input, or with another result."""
    seen = set(map(memory_of, inputs))
    own = []
    for tensor in out:
        place = memory_of(tensor)
        if place in seen or tensor._is_view() or not tensor.is_contiguous():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            place = memory_of(tensor)
        seen.add(place)
        own.append(tensor)
    return own


def apart(tensors: Sequence[Tensor], others: Iterable[Tensor]) -> list[Tensor]:
    """The same numbers, none in the memory of another tensor; laid out as they come."""
    seen = {memory_of(t) for t in others}
    own = []
    for tensor in tensors:
        if memory_of(tensor) in seen:
            tensor = tensor.clone()
        seen.add(memory_of(tensor))
        own.append(tensor)
    return own


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """A count for each tensor that every change in place raises; inference tensors have none."""
    return [0 if t.is_inference() else t._version for t in tensors]


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one memory may have numbers in common.

    >>> x = torch.ones(4, 3)
    >>> overlap(x[:2], x[2:]), overlap(x[:2], x[:, 1])
    (False, True)
    """
    (begin, end), (first, last) = span(a), span(b)
    return begin < last and first < end


def span(tensor: Tensor) -> tuple[int, int]:
    """The addresses where the numbers of a tensor begin and end."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0
    begin = tensor.data_ptr()
    return begin, begin + count * tensor.itemsize


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one device look the same and hold the same bits, however they lie.

    >>> nan, zero = torch.tensor([torch.nan]), torch.zeros(1)
    >>> same_bits(nan, nan.clone()), same_bits(zero, -zero)
    (True, False)
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.detach().contiguous(), b.detach().contiguous()
    if not a.is_cpu:
        return torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))
    return not differ(a.data_ptr(), b.data_ptr(), a.nbytes)


def differ(a: int, b: int, size: int) -> bool:
    """Whether so many bytes at two addresses are not the same. Nothing else tells of all that is written:
    versions do not count what is by `.data`, or by another library."""
    return bool(_compare()(a, b, size))


@functools.cache
def _compare() -> Callable[..., int]:
    libc: Any = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    found = libc.memcmp
    found.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    return found
