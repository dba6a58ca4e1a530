"""The ends of a network where data comes in: dense rows, integers, and sequences of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.arguments import brief, name_of, whole
from stepnet.data.convert import DEEPEST
from stepnet.data.lod import LoDTensor
from stepnet.data.no_graph import refuse_proxies
from stepnet.errors import TapeError, Unsupported
from stepnet.tape.creation import describe, example_lengths, example_rows
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape
from stepnet.tape.topology import Feed

from .feeding import as_value


@dataclass(frozen=True)
class Dense:
    """Rows of `size` floating point numbers: values [n, size].

    Raises:
        TapeError: no rows have such a size.

    >>> Sequence(Dense(3))
    Dense(size=3, level=1)
    """

    size: int
    level: int = 0

    def __post_init__(self) -> None:
        _check(self, "size")

    @property
    def classes(self) -> None:
        """None: these are no ids."""
        return None

    def example(self) -> Tensor | LoDTensor:
        """Zeros of this type."""
        return _example(torch.zeros(example_rows(self.level), self.size), self.level)

    def describe(self) -> dict[str, Any]:
        """It in plain words and numbers."""
        return {"kind": "dense", "size": self.size, "level": self.level}

    def check(self, name: str, value: Any, like: Tensor | None = None) -> Any:
        """The value as a tensor or a LoDTensor, if it is of this type. Numbers from lists and arrays take the
        dtype and device of `like`, or torch's defaults. Raises TapeError: it is not."""
        value, rows = _taken(name, value, self, self.size, like)
        if rows.dim() != 2 or rows.shape[1] != self.size or not rows.is_floating_point():
            _refuse(name, value, self, f"a tensor of floating point rows [n, {self.size}]")
        return value


@dataclass(frozen=True)
class Integer:
    """Integers from 0 to `classes` - 1, one in each row: values int64 [n].

    Raises:
        TapeError: there are no classes.

    >>> Sequence(Sequence(Integer(1000)))
    Integer(classes=1000, level=2)
    """

    classes: int
    level: int = 0

    def __post_init__(self) -> None:
        _check(self, "classes")

    def example(self) -> Tensor | LoDTensor:
        """Zeros of this type."""
        return _example(torch.zeros(example_rows(self.level), dtype=torch.int64), self.level)

    def describe(self) -> dict[str, Any]:
        """It in plain words and numbers."""
        return {"kind": "integer", "size": self.classes, "level": self.level}

    def check(self, name: str, value: Any, like: Tensor | None = None) -> Any:
        """The value as a tensor or a LoDTensor, if it is of this type. The range is checked on the CPU alone,
        where it is free. Raises TapeError: it is not."""
        value, rows = _taken(name, value, self, None, like)
        if rows.dim() != 1 or rows.dtype not in (torch.int64, torch.int32):
            _refuse(name, value, self, "a tensor of int64 rows [n]")
        if torch.compiler.is_compiling():  # a graph knows no numbers: it checks them as it runs
            told = f"data '{name}' has an integer out of range, which is 0 to {self.classes - 1}"
            torch.ops.aten._assert_async.msg(((rows >= 0) & (rows < self.classes)).all(), told)
        elif rows.device.type == "cpu" and len(rows):
            low, high = (int(v) for v in rows.aminmax())
            if low < 0 or high >= self.classes:
                raise TapeError(
                    f"data '{name}' has an integer out of range",
                    got=low if low < 0 else high,
                    expected=f"0 to {self.classes - 1}, as it is {self}",
                )
        return value


_TYPES = "Dense(size), Integer(classes), or Sequence(...) of these"
DataType = TypeVar("DataType", Dense, Integer)


def Sequence(of: DataType) -> DataType:
    """Sequences of a type: a LoDTensor with one level more. Sequences of sequences are nested.

    Raises:
        TapeError: `of` is no type.

    >>> Sequence(Integer(10)).level
    1
    """
    if not isinstance(of, (Dense, Integer)):
        raise TapeError("Sequence is of a type", got=brief(of), expected=_TYPES)
    return replace(of, level=of.level + 1)


def data(name: str, type: Dense | Integer) -> TapeItem:
    """A value that a topology is called with, by name.

    Args:
        name: the keyword of the topology's call.
        type: `Dense(size)`, `Integer(classes)`, or `Sequence` of these, to any level.

    Raises:
        TapeError: the name is taken, or not one that a layer can have.

    >>> with Tape():
    ...     data("words", Sequence(Integer(1000)))
    TapeItem(0, 'words', int64 [*], 1 level)
    """
    if not isinstance(type, (Dense, Integer)):
        raise TapeError(
            f"data '{name}' has no type that is known",
            got=brief(type),
            expected=_TYPES,
        )
    if name_of("data: 'name'", name, error=TapeError) == "self":
        raise TapeError("data 'self': a call cannot have an argument of this name", remedy="another name")
    feed = Feed(name, type)
    return Tape.current().record("data", feed, name=name, example=type.example(), classes=type.classes)


def _check(type: Dense | Integer, of_rows: str) -> None:
    """Refuse sizes that no rows have; whole numbers of any library become Python's own."""
    kind = type.__class__.__name__
    for name, least in ((of_rows, 1), ("level", 0)):
        size = whole(f"{kind}: '{name}'", getattr(type, name), least, error=TapeError)
        object.__setattr__(type, name, size)
    if type.level > DEEPEST:
        raise TapeError(f"{kind}: too many levels", got=type.level, expected=f"up to {DEEPEST}")


def _example(rows: Tensor, level: int) -> Tensor | LoDTensor:
    return LoDTensor.from_lengths(rows, example_lengths(level)) if level else rows


def _taken(
    name: str, value: Any, type: Dense | Integer, size: int | None, like: Tensor | None
) -> tuple[Any, Tensor]:
    """The value as a tensor or LoDTensor of the type's level, and its rows."""
    level = type.level
    expected = f"a LoDTensor of {level} levels" if level else "a tensor, without levels"
    try:
        taken = as_value(value, level, size, like)
    except Unsupported as why:
        kinds = (
            f"{expected}, a list of sequences or a PackedSequence"
            if level
            else f"{expected}, or a list or array"
        )
        _refuse(name, value, type, kinds, str(why))
    if (taken.lod_level if isinstance(taken, LoDTensor) else 0) != level or isinstance(taken, PackedSequence):
        remedy = "LoDTensor.from_padded(tensor, lengths), or a list with a tensor for each sequence"
        _refuse(name, taken, type, expected, remedy=remedy if level and isinstance(taken, Tensor) else None)
    return taken, taken.values if isinstance(taken, LoDTensor) else taken


def _refuse(
    name: str, value: Any, type: Dense | Integer, expected: str, why: str = "", remedy: str | None = None
) -> NoReturn:
    refuse_proxies([value])
    got = describe(value) if isinstance(value, (Tensor, LoDTensor)) else value.__class__.__name__
    raise TapeError(
        f"data '{name}' is {type}; the value does not fit",
        got=f"{got}: {why}" if why else got,
        expected=expected,
        remedy=remedy,
    )
