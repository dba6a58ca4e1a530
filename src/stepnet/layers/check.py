"""What layer functions ask of their inputs, and how they refuse."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.errors import TapeError
from stepnet.tape.creation import describe
from stepnet.tape.item import TapeItem
from stepnet.user_line import user_line


def check_item(kind: str, x: Any, what: str = "its input") -> TapeItem:
    """An item, or an error that says what came in its place."""
    if not isinstance(x, TapeItem):
        raise TapeError(
            f"{kind} ({user_line()}): {what} is no item of a tape",
            got=type(x).__name__,
            remedy="pass what layers.data(...) or another layer returned",
        )
    return x


def features(kind: str, x: Any, what: str = "its input") -> int:
    """The size of the last dimension of rows [*, size]."""
    example = check_item(kind, x, what).creation.example
    if not isinstance(example, (Tensor, LoDTensor)) or example.ndim < 2:
        raise TapeError(
            f"{kind} ({user_line()}): {what} must be rows of features [*, size]",
            got=f"'{x.name}', {describe(example)}",
        )
    return example.shape[-1]


def check_rows(kind: str, x: Any, what: str = "its input") -> None:
    """Refuse items that are no floating point rows."""
    features(kind, x, what)
    if not x.dtype.is_floating_point:
        raise TapeError(
            f"{kind} ({user_line()}): {what} must be floating point", got=f"'{x.name}', {describe_item(x)}"
        )


def check_sequences(kind: str, x: Any, what: str = "its input") -> LoDTensor:
    """The example of sequences."""
    example = check_item(kind, x, what).creation.example
    if not isinstance(example, LoDTensor):
        raise TapeError(
            f"{kind} ({user_line()}): {what} must be sequences",
            got=f"'{x.name}', {describe(example)}",
            remedy="data(name, Sequence(...)) makes sequences",
        )
    return example


def check_size(kind: str, size: Any, what: str = "size") -> int:
    """A positive whole number."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise TapeError(f"{kind} ({user_line()}): '{what}' must be a positive whole number", got=repr(size))
    return size


def describe_item(x: TapeItem) -> str:
    """What is known of an item's value."""
    return describe(x.creation.example)


def check_ids(kind: str, x: Any, what: str = "its input") -> None:
    """Refuse items that are no integers, one in each row."""
    example = check_item(kind, x, what).creation.example
    integral = isinstance(example, (Tensor, LoDTensor)) and not example.dtype.is_floating_point
    if not integral or example.ndim != 1:
        raise TapeError(
            f"{kind} ({user_line()}): {what} must be ids [*]", got=f"'{x.name}', {describe(example)}"
        )


def check_same_levels(kind: str, x: TapeItem, other: TapeItem) -> None:
    """Refuse two items of which one has sequences that the other has not."""
    if x.lod_level != other.lod_level:
        raise TapeError(
            f"{kind} ({user_line()}): '{x.name}' and '{other.name}' must have the same levels",
            got=f"{describe_item(x)}, and {describe_item(other)}",
        )


def check_labels(kind: str, x: Any, label: Any, ignore: int | None = None) -> None:
    """Refuse what are not scores and a label for each row, of a class that has a score or is ignored."""
    check_rows(kind, x)
    check_ids(kind, label, "'label'")
    check_same_levels(kind, x, label)
    size, classes = features(kind, x), label.creation.classes
    if ignore is not None and (not isinstance(ignore, int) or isinstance(ignore, bool)):
        raise TapeError(f"{kind} ({user_line()}): 'ignore' must be a label, or None", got=repr(ignore))
    if classes is not None and classes - (ignore == classes - 1) > size:
        raise TapeError(
            f"{kind} ({user_line()}): the labels have more classes than there are scores",
            got=f"'{label.name}' has {classes} classes, '{x.name}' {size} scores",
        )


def check_lengths(kind: str, x: Any, label: Any) -> None:
    """Refuse sequences whose rows do not stand one for one."""
    if x.recursive_sequence_lengths() != label.recursive_sequence_lengths():
        raise TapeError(
            f"{kind}: x and label must have the same lengths",
            got=f"{x.recursive_sequence_lengths()} and {label.recursive_sequence_lengths()}",
        )
