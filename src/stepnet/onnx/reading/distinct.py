"""Unique: the distinct numbers of a tensor, or its distinct slices along an axis."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepnet.file_model import distinct

from .info import Info, Run, op


@op("Unique")
def _unique(node: Info) -> Run:
    axis, in_order = node.get("axis"), bool(node.get("sorted", 1))

    def unique(x: Tensor) -> tuple[Any, ...]:
        return distinct(x, axis, in_order)

    return unique
