"""Ragged structures for hypothesis, and the plain-list reading of them that tests compare with."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from stepnet.data.lod import LoDTensor


@st.composite
def ragged_lengths(
    draw: st.DrawFn,
    min_levels: int = 1,
    max_levels: int = 3,
    max_sequences: int = 4,
    min_length: int = 0,
    max_length: int = 4,
) -> list[list[int]]:
    """Lengths of every level, outermost first, with zero lengths at every level and batches of none."""
    count = draw(st.integers(0, max_sequences))
    lengths: list[list[int]] = []
    for _ in range(draw(st.integers(min_levels, max_levels))):
        level = draw(st.lists(st.integers(min_length, max_length), min_size=count, max_size=count))
        lengths.append(level)
        count = sum(level)
    return lengths


@st.composite
def lod_tensors(
    draw: st.DrawFn, features: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float64, **ragged: Any
) -> LoDTensor:
    """LoDTensors over distinct values, so that a row in the wrong place shows."""
    lengths = draw(ragged_lengths(**ragged))
    shape = (sum(lengths[-1]), *features)
    values = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)
    return LoDTensor.from_lengths(values, lengths)


def nested_rows(values: Tensor, lengths: list[list[int]]) -> list[Any]:
    """The rows as nested lists, by counting them off: what a LoD means."""
    items: list[Any] = list(values)
    for level in reversed(lengths):
        taken = iter(items)
        items = [[next(taken) for _ in range(n)] for n in level]
    return items


def plain(nested: Any) -> Any:
    """Nested lists, tensors and LoDTensors as nested lists of numbers."""
    if isinstance(nested, Tensor):
        return nested.tolist()
    return [plain(part) for part in nested]


def last_sequences(x: LoDTensor) -> list[Tensor]:
    """The sequences of the last level, one tensor each."""
    bounds = x.lod[-1].tolist()
    return [x.values[a:b] for a, b in pairwise(bounds)]
