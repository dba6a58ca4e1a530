"""Tensors kept for backward, those that lie in the memory of an input or a result by their place in it: a
compiler may use that memory for something else until it hands the same numbers to backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.storage import apart, memory_of
from stepnet.data.unpatched_torch import contiguous


class Place(NamedTuple):
    """Where a tensor lies in the memory of an input or a result."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from its first element
    whole: tuple[int, ...]  # the strides of that input or result

    def among(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensor, in the memory of others that hold the same numbers."""
        own = tensors[self.number]
        if own.stride() != self.whole:
            own = torch.empty_strided(own.shape, self.whole, dtype=own.dtype, device=own.device).copy_(own)
        return own.as_strided(self.size, self.stride, own.storage_offset() + self.offset)


def places(kept: Sequence[Tensor], among: Sequence[Tensor]) -> list[Tensor | Place]:
    """Each tensor, or its place among others.

    >>> x = torch.arange(6.0)
    >>> own, place = places([torch.ones(1), x[2:4]], [x])
    >>> own, place.among([x * 10])
    (tensor([1.]), tensor([20., 30.]))
    """
    numbers = {memory_of(t): i for i, t in reversed([*enumerate(among)])}
    held: list[Tensor | Place] = []
    for tensor in kept:
        number = numbers.get(memory_of(tensor))
        if number is None:
            held.append(tensor)
            continue
        if tensor.dtype is not among[number].dtype or tensor.is_conj() or tensor.is_neg():
            held.append(tensor.clone())  # it reads that memory otherwise than as its numbers
            continue
        whole = among[number]
        offset = int(tensor.storage_offset() - whole.storage_offset())
        held.append(Place(number, tuple(tensor.shape), tensor.stride(), offset, whole.stride()))
    return held


def taken(held: Sequence[Tensor | Place], memory: Sequence[Tensor]) -> list[Tensor]:
    """The tensors themselves. `memory`: what others they were placed among are by now."""
    return [entry.among(memory) if isinstance(entry, Place) else entry for entry in held]


def laid_out(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in one piece of memory, as what stands for it in a graph says.

    >>> laid_out(torch.ones(2, 3, dtype=torch.complex64).t().conj()).is_conj()
    False
    """
    plain = contiguous(tensor).resolve_conj().resolve_neg()
    return plain.clone() if plain._is_zerotensor() else plain


def leave_alone(results: list[Tensor], read_back: int, held: Sequence[Tensor | Place]) -> None:
    """Copy the results from `read_back` on whose memory is held for backward: they are the caller's to
    change."""
    results[read_back:] = apart(results[read_back:], [t for t in held if isinstance(t, Tensor)])
