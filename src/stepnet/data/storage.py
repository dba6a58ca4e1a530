"""Which tensors share memory, and whether anybody wrote to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def memory_of(tensor: Tensor) -> int:
    """What two tensors that share memory have in common; a tensor without any has only itself.

    >>> a = torch.ones(3)
    >>> memory_of(a) == memory_of(a[1:]), memory_of(a) == memory_of(a.clone())
    (True, False)
    """
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else id(tensor)


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
