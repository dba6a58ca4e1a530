"""Which tensors share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .as_imported import data_ptr, is_contiguous

_methods: Any = Tensor.__mro__[1]
_offset: Callable[[Tensor], int] = _methods.storage_offset
_is_view: Callable[[Tensor], bool] = _methods._is_view


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


def are_distinct(out: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Whether it is plain that `distinct` has nothing to do: all begin where their memory does, and no two at
    one place. To ask for memory itself takes five times as long. No transform of torch.func is around.

    >>> a, b = torch.ones(3), torch.ones(3)
    >>> are_distinct([a], [b]), are_distinct([a[:2]], [b]), are_distinct([a], [a.detach()])
    (True, False, False)
    """
    tensors = [*inputs, *out]
    if any([type(t) is not Tensor or t.layout is not torch.strided for t in tensors]):  # noqa: C419
        return False
    if any(map(_offset, tensors)) or any(map(_is_view, out)) or not all(map(is_contiguous, out)):
        return False
    places = {*map(data_ptr, tensors)}
    return 0 not in places and len(places) == len(tensors)


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
