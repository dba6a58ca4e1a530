"""What layer functions ask of their inputs, and how they refuse."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stepnet.data.arguments import brief
from stepnet.data.arguments import size as checked_size
from stepnet.data.lod import LoDTensor
from stepnet.errors import StepError, TapeError
from stepnet.tape.creation import describe
from stepnet.tape.item import TapeItem
from stepnet.user_line import user_line


def unfit(kind: str, why: str, got: Any, **more: Any) -> TapeError:
    """The error of a layer that cannot be made; names the line that makes it. An item is told as it is."""
    told = f"'{got.name}', {describe_item(got)}" if isinstance(got, TapeItem) else got
    return TapeError(f"{kind} ({user_line()}): {why}", got=told, **more)


def describe_item(x: TapeItem) -> str:
    """What is known of an item's value."""
    return describe(x.creation.example) or "an evaluator, whose value no layer takes"


def check_item(kind: str, x: Any, what: str = "its input") -> TapeItem:
    """An item, or an error that says what came in its place."""
    if not isinstance(x, TapeItem):
        remedy = "pass what layers.data(...) or another layer returned"
        raise unfit(kind, f"{what} is no item of a tape", type(x).__name__, remedy=remedy)
    return x


def check_callable(what: str, function: Any) -> Any:
    """Refuse the class of a module in its place: called, it would make one."""
    if isinstance(function, type) and issubclass(function, nn.Module):
        name = function.__name__
        raise TapeError(f"{what} is a class, no module", got=name, remedy=f"{name}(...) makes a module")
    return function


def features(kind: str, x: Any, what: str = "its input") -> int:
    """The size of the last dimension of rows [*, size]."""
    example = check_item(kind, x, what).creation.example
    if not isinstance(example, (Tensor, LoDTensor)) or example.ndim < 2:
        raise unfit(
            kind,
            f"{what} must be rows of features [*, size]",
            x,
            remedy="embedding(ids, size) makes rows of ids",
        )
    return example.shape[-1]


def check_rows(kind: str, x: Any, what: str = "its input") -> None:
    """Refuse items that are no floating point rows."""
    features(kind, x, what)
    if not x.dtype.is_floating_point:
        raise unfit(kind, f"{what} must be floating point", x, remedy="apply(lambda x: x.float(), item)")


def check_sequences(kind: str, x: Any, what: str = "its input") -> LoDTensor:
    """The example of sequences."""
    example = check_item(kind, x, what).creation.example
    if not isinstance(example, LoDTensor):
        raise unfit(kind, f"{what} must be sequences", x, remedy="data(name, Sequence(...)) makes sequences")
    return example


def check_size(kind: str, size: Any, what: str = "size") -> int:
    """A positive whole number."""
    try:
        return checked_size(f"'{what}'", size)
    except StepError as error:
        raise unfit(kind, error.where, error.got, expected=error.expected) from None


def check_ids(kind: str, x: Any, what: str = "its input") -> None:
    """Refuse items that are no integers, one in each row."""
    example = check_item(kind, x, what).creation.example
    integral = isinstance(example, (Tensor, LoDTensor)) and not example.dtype.is_floating_point
    if not integral or example.ndim != 1:
        raise unfit(
            kind, f"{what} must be ids [*]", x, remedy="data(name, Integer(classes)), or Sequence of it"
        )


def check_same_levels(kind: str, x: TapeItem, other: TapeItem) -> None:
    """Refuse two items of which one has sequences that the other has not."""
    if x.lod_level != other.lod_level:
        got = f"{describe_item(x)}, and {describe_item(other)}"
        raise unfit(
            kind,
            f"'{x.name}' and '{other.name}' must have the same levels",
            got,
            remedy="expand(x, like) repeats x for the rows of 'like'; pool(x) makes a row of a sequence",
        )


def check_labels(kind: str, x: Any, label: Any, ignore: int | None) -> None:
    """Refuse what are not scores and a label for each row, of a class that has a score or is ignored."""
    check_rows(kind, x)
    check_ids(kind, label, "'label'")
    check_same_levels(kind, x, label)
    size, classes = features(kind, x), label.creation.classes
    if ignore is not None and (not isinstance(ignore, int) or isinstance(ignore, bool)):
        raise unfit(kind, "'ignore' must be a label, or None", brief(ignore))
    if classes is not None and classes - (ignore == classes - 1) > size:
        got = f"'{label.name}' has {classes} classes, '{x.name}' {size} scores"
        raise unfit(
            kind, "the labels have more classes than there are scores", got, remedy=f"fc(x, {classes})"
        )


def check_lengths(kind: str, x: Any, label: Any) -> None:
    """Refuse sequences whose rows do not stand one for one."""
    ours, theirs = x.recursive_sequence_lengths(), label.recursive_sequence_lengths()
    if ours != theirs:
        raise TapeError(
            f"{kind}: x and label must have the same lengths",
            got=f"{ours} and {theirs}",
            remedy="feed both from one batch, a label for each row",
        )
