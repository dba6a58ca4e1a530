"""Operators on sequences, which are lists of tensors here, and on optional values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .info import Info, Misfit, Run, dtype_of, op


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit("a sequence is needed", type(value).__name__)
    return value


def _place(position: Tensor, size: int, what: str) -> int:
    at = int(position.reshape(()).item())
    if not -size <= at < size:
        raise Misfit(f"no such {what}", at, f"{-size} to {size - 1}")
    return at


@op("SequenceEmpty", inputs=(0, 0))
def _empty(node: Info) -> Run:
    if node.get("dtype") is not None:
        dtype_of(node.get("dtype"))
    return list


@op("SequenceConstruct", inputs=(1, 2**16))
def _construct(node: Info) -> Run:
    return lambda *xs: list(xs)


@op("SequenceAt", inputs=(2, 2))
def _at(node: Info) -> Run:
    return lambda xs, position: _list(xs)[_place(position, len(xs), "element")]


@op("SequenceLength")
def _length(node: Info) -> Run:
    return lambda xs: torch.tensor(len(_list(xs)))


@op("SequenceInsert", inputs=(2, 3))
def _insert(node: Info) -> Run:
    def insert(xs: Any, x: Tensor, position: Tensor | None = None) -> Any:
        new = list(_list(xs))
        size = len(new)
        at = size if position is None else int(position.reshape(()).item())
        if not -size <= at <= size:
            raise Misfit("no such place", at, f"{-size} to {size}")
        new.insert(at, x)
        return new

    return insert


@op("SequenceErase", inputs=(1, 2))
def _erase(node: Info) -> Run:
    def erase(xs: Any, position: Tensor | None = None) -> Any:
        new = list(_list(xs))
        del new[-1 if position is None else _place(position, len(new), "element")]
        return new

    return erase


@op("SplitToSequence", inputs=(1, 2))
def _split(node: Info) -> Run:
    axis, keep = node.get("axis", 0), node.get("keepdims", 1)

    def split(x: Tensor, sizes: Tensor | None = None) -> Any:
        if sizes is None:
            parts = x.split(1, axis)
            return [part if keep else part.squeeze(axis) for part in parts]
        wanted: Any = sizes.tolist()
        if isinstance(wanted, int) and wanted < 1:
            raise Misfit("parts must have elements", wanted)
        return list(x.split(wanted, axis))

    return split


@op("ConcatFromSequence")
def _concat(node: Info) -> Run:
    axis, new = node.get("axis", 0), node.get("new_axis", 0)
    return lambda xs: torch.stack(_list(xs), axis) if new else torch.cat(_list(xs), axis)


@op("Optional", inputs=(0, 1))
def _optional(node: Info) -> Run:
    return lambda x=None: x


@op("OptionalHasElement", inputs=(0, 1))
def _has_element(node: Info) -> Run:
    return lambda x=None: torch.tensor(x is not None)


@op("OptionalGetElement")
def _get_element(node: Info) -> Run:
    def get(x: Any) -> Any:
        if x is None:
            raise Misfit("the optional value is not there")
        return x

    return get
