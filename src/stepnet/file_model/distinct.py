"""The distinct numbers of a tensor, or its distinct slices along an axis."""

from __future__ import annotations

import torch
from torch import Tensor

from .recording import not_in_recordings


def distinct(x: Tensor, axis: int | None, in_order: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is distinct, in order or as it comes first; where each first is; which one each of x is; how often
    each is there. Without an axis, of the flat tensor."""
    not_in_recordings()
    table, at = (x.reshape(-1), 0) if axis is None else (x, axis % max(x.dim(), 1))
    of = torch.unique(table, return_inverse=True, return_counts=True, dim=None if axis is None else at)
    values, place, counts = of
    numbers = torch.arange(table.shape[at])
    first = torch.full_like(counts, len(numbers)).scatter_reduce(0, place, numbers, "amin")
    if not in_order:
        order = first.argsort()
        values, first, counts = values.index_select(at, order), first[order], counts[order]
        place = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))[place]
    return values, first, place, counts
