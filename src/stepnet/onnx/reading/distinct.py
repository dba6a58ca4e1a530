"""Unique: the distinct numbers of a tensor, or its distinct slices along an axis."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepnet.file_model import distinct

from .info import of_inputs


@of_inputs("Unique")
def _unique(x: Tensor, *, axis: Any = None, sorted: bool = True) -> tuple[Any, ...]:
    return distinct(x, axis, sorted)
