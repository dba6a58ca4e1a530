"""The distinct numbers of a tensor, or its distinct slices along an axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import not_in_recordings

from .info import Info, Run, op


@op("Unique")
def _unique(node: Info) -> Run:
    axis, in_order = node.get("axis"), node.get("sorted", 1)

    def unique(x: Tensor) -> tuple[Any, ...]:
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

    return unique
