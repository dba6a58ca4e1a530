"""Batches of tables, of weights and of calls, as `torch.func.vmap` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def of_members(kinds: Sequence[str], dims: Sequence[int | None]) -> bool:
    """Whether each call of a batch has weights of its own."""
    return any(d is not None and kind == "shared" for d, kind in zip(dims, kinds, strict=True))


def beside(tensor: Tensor, dim: int | None, k: int, kind: str) -> Tensor:
    """A batch of tables as one of all members, beside the rows; a batch of weights as it is."""
    at = 0 if kind == "shared" else 1
    if dim is not None:
        return tensor.movedim(dim, at)
    return tensor.unsqueeze(at).expand(*tensor.shape[:at], k, *tensor.shape[at:])


def wide(tensor: Tensor, dim: int | None, k: int, kind: str) -> Tensor:
    """A batch of tables as one table."""
    if kind == "shared":
        return tensor
    batch = tensor.expand(k, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return batch.flatten(0, 1)


def narrow(out: Any, k: int, kinds: Sequence[str]) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """Tables as batches of tables, and where their batches are."""
    dims = tuple(None if kind == "shared" else 0 for kind in kinds)
    return tuple(t if d is None else split(t, k) for t, d in zip(out, dims, strict=True)), dims


def split(table: Tensor, k: int) -> Tensor:
    return table.reshape(k, table.shape[0] // k, *table.shape[1:])


def of_none(
    function: Any, in_dims: Sequence[int | None], fixed: tuple[Any, ...], tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """What a batch of no calls gives: as one call would, and none of it."""
    given = [
        t if d is None else t.new_zeros(t.movedim(d, 0).shape[1:])
        for t, d in zip(tensors, in_dims, strict=True)
    ]
    out = tuple(t.new_empty((0, *t.shape)) for t in function.apply(*fixed, *given))
    return out, (0,) * len(out)


def one_by_one(
    call: Callable[..., Any], k: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    parts = [[t] * k if d is None else t.unbind(d) for t, d in zip(tensors, in_dims, strict=True)]
    rows = [call(*each) for each in zip(*parts, strict=True)]
    out = tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    return out, (0,) * len(out)
