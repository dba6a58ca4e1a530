"""Operators on sequences, which are lists of tensors here, and on optional values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stepnet.export.open_sizes import Sizes

from .info import Info, Misfit, Run, dtype_of, op


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit("a sequence is needed", type(value).__name__)
    return value


def _place(node: Info, index: int) -> Callable[..., int]:
    """A function from the inputs of a call to a place in a sequence of so many."""
    number = node.listed(index)

    def place(inputs: Sequence[Any], size: int, default: int = -1, new: int = 0) -> int:
        (at,) = [default] if (given := number(inputs)) is None else given
        if not -size <= at < size + new:
            raise Misfit("no such place in the sequence", at, f"{-size} to {size + new - 1}")
        return at

    return place


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
    place = _place(node, 1)
    return lambda *inputs: _list(inputs[0])[place(inputs, len(inputs[0]))]


@op("SequenceLength")
def _length(node: Info) -> Run:
    return lambda xs: Sizes(len(_list(xs)))


@op("SequenceInsert", inputs=(2, 3))
def _insert(node: Info) -> Run:
    place = _place(node, 2)

    def insert(*inputs: Any) -> Any:
        new = list(_list(inputs[0]))
        new.insert(place(inputs, len(new), default=len(new), new=1), inputs[1])
        return new

    return insert


@op("SequenceErase", inputs=(1, 2))
def _erase(node: Info) -> Run:
    place = _place(node, 1)

    def erase(*inputs: Any) -> Any:
        new = list(_list(inputs[0]))
        del new[place(inputs, len(new))]
        return new

    return erase


@op("SplitToSequence", inputs=(1, 2))
def _split(node: Info) -> Run:
    axis, keep, sizes = node.get("axis", 0), node.get("keepdims", 1), node.numbers(1)

    def split(*inputs: Any) -> Any:
        x, wanted = inputs[0], sizes(inputs)
        if wanted is None:
            parts = x.split(1, axis)
            return [part if keep else part.squeeze(axis) for part in parts]
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
