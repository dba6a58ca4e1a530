"""The structure of a ragged batch: nested offsets, checked once, never changed, compared cheaply.

Computed by numpy: what is kept is the same whatever somebody made of torch's operators.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from stepnet.data.arguments import brief, check_unmasked
from stepnet.data.modes import found_again, is_wrapped, noted, outside_modes, real
from stepnet.data.unpatched_torch import from_numpy
from stepnet.errors import FrozenError, LoDError, Unsupported
from stepnet.watchers import said

_Made = TypeVar("_Made")
_LISTS = {list, tuple}
_LONG = 1000  # from which torch takes much longer to make a tensor of a list than Python an array
OF_EACH_SEQUENCE = "what each sequence has of its own is static=: the step sees rows [n, L, ...] and a mask"
_UNCHANGED = "the offsets and the values of one LoDTensor go in together"

# What traces a module gives the lengths of offsets as tensors of what is traced.
LENGTHS: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("what answers for lengths", default=None)


@final
class LoD:
    """Nested offsets, outermost level first: int64 tensors on the CPU, shared by all that has this structure.

    A level of n sequences holds n + 1 offsets: it starts at 0, never falls, and ends at the number of
    sequences of the next level (the last level: at the number of rows).

    Raises LoDError, naming the level, the index and the values, when ``levels`` break that rule.

    >>> lod = LoD([[0, 2, 3], [0, 3, 5, 9]])
    >>> lod.lengths(0), lod.lengths(1)
    (tensor([2, 1]), tensor([3, 2, 4]))
    >>> lod.rows, len(lod)
    (9, 2)
    """

    __slots__ = ("_content", "_handed_out", "_made", "_owner", "levels", "rows")

    levels: tuple[Tensor, ...]
    rows: int
    _owner: Any
    _content: bytes | None
    _handed_out: Tensor | None
    _made: dict[Any, Any] | None

    @outside_modes
    def __init__(self, levels: Sequence[Any]) -> None:
        own = tuple(
            integers(level, f"LoDTensor 'lod' level {k}") for k, level in enumerate(_outer(levels, "lod"))
        )
        _check_levels(own)
        self._fill(own)

    def _fill(self, levels: tuple[Tensor, ...], rows: int | None = None) -> None:
        object.__setattr__(self, "levels", tuple([found_again(level) for level in levels]))
        object.__setattr__(self, "rows", _end(levels[-1]) if rows is None else rows)
        object.__setattr__(self, "_owner", None)
        object.__setattr__(self, "_content", None)
        object.__setattr__(self, "_handed_out", None)
        object.__setattr__(self, "_made", None)

    @staticmethod
    def trusted(levels: tuple[Tensor, ...], rows: int | None = None) -> LoD:
        """Offsets made here from valid ones: neither checked nor copied. ``rows`` saves reading them."""
        lod = object.__new__(LoD)
        lod._fill(levels, rows)
        return lod

    @staticmethod
    @outside_modes
    def handed(levels: tuple[Tensor, ...], rows: int) -> LoD:
        """Offsets that a node of a graph is handed, which anybody may have changed: checked, not copied."""
        if not any(map(in_program, levels)):
            wrong = next((v for v in levels if v.dim() != 1 or v.dtype != torch.int64), None)
            if wrong is not None:
                raise LoDError(
                    "the offsets of a graph must be 1-D int64 tensors", got=brief(wrong), remedy=_UNCHANGED
                )
            _check_levels(levels)
            if _end(levels[-1]) != rows:
                what = "the offsets of a graph must end at the number of rows"
                raise LoDError(what, got=_end(levels[-1]), expected=rows, remedy=_UNCHANGED)
        return LoD.trusted(levels, rows)

    @staticmethod
    @outside_modes
    def from_lengths(lengths: Sequence[Any]) -> LoD:
        """Lengths of every level, outermost first.

        >>> LoD.from_lengths([[2, 1], [3, 2, 4]])
        LoD([[0, 2, 3], [0, 3, 5, 9]])
        """
        own = tuple(
            integers(level, f"lengths of level {k}") for k, level in enumerate(_outer(lengths, "lengths"))
        )
        for k, level in enumerate(own):
            check_lengths(level, f"lengths of level {k}")
        for k, (level, below) in enumerate(pairwise(own)):
            total = int(level.numpy().sum())
            if total != len(below):
                raise LoDError(
                    f"lengths of level {k} must add up to the number of sequences of level {k + 1}",
                    got=f"{short(level)}, which add up to {total}",
                    expected=len(below),
                    remedy="the lengths of an outer level count sequences, those of the last one rows",
                )
        offsets = [_offsets(level.numpy()) for level in own]
        return LoD.trusted(tuple(map(index_of, offsets)), int(offsets[-1][-1]))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenError(f"a LoD is immutable: cannot set '{name}'", remedy="LoD(offsets) makes another")

    def __delattr__(self, name: str) -> None:
        raise FrozenError(f"a LoD is immutable: cannot delete '{name}'", remedy="LoD(offsets) makes another")

    @property
    def lod_level(self) -> int:
        """How many levels."""
        return len(self.levels)

    def __len__(self) -> int:
        """Sequences of the outermost level."""
        return len(known(self.levels[0])) - 1

    def lengths(self, level: int = -1) -> Tensor:
        """[n] lengths of the sequences of one level, counted in the elements of that level."""
        offsets = self.levels[level]
        return offsets.diff() if in_program(offsets) else _lengths(told(offsets))

    def lists(self) -> list[list[int]]:
        """The lengths of every level as plain numbers."""
        return [_lengths(told(offsets)).tolist() for offsets in self.levels]

    def count(self, level: int) -> int:
        """How many sequences one level has."""
        return self.levels[level].shape[0] - 1

    def content(self) -> bytes:
        """The offsets of the last level as bytes, to find what was made of equal ones. Made once."""
        found = self._content
        return self._make_content() if found is None else found

    @outside_modes
    def _make_content(self) -> bytes:
        made = self.levels[-1].numpy().tobytes()
        object.__setattr__(self, "_content", made)
        return made

    def copies(self) -> tuple[Tensor, ...]:
        """The levels, to be given to somebody who may write to them."""
        return tuple(level.clone() if in_program(level) else _copy(told(level)) for level in self.levels)

    def handed_out(self) -> Tensor:
        """The offsets of the last level, for somebody who may write to them: the same ones while nobody has,
        for torch takes sequences of other offsets, equal or not, for other ones."""
        last = self.levels[-1]
        return last if torch.compiler.is_dynamo_compiling() or in_program(last) else self._as_handed_out()

    @outside_modes
    def _as_handed_out(self) -> Tensor:
        found = self._handed_out
        if found is None or not torch.equal(found, self.levels[-1]):
            found = self.levels[-1].clone()
            object.__setattr__(self, "_handed_out", found)
        return found

    @outside_modes
    def missing(self, indices: Tensor) -> int | None:
        """The first place in `indices` that names no sequence of the outermost level."""
        n, given = len(self), indices.numpy()
        return _first((given < 0) | (given >= n))

    def owner(self) -> Tensor:
        """[rows] for every row, its sequence of the last level. Made once, so nobody may write to it."""
        if torch.compiler.is_dynamo_compiling() or in_program(self.levels[-1]):
            return torch.bucketize(torch.arange(self.rows), self.levels[-1][1:], right=True)
        return self._made_owner()

    @outside_modes
    def _made_owner(self) -> Tensor:
        found = self._owner
        told(self.levels[-1])
        if found is None:
            found = owners(self.lengths(), self.rows)
            object.__setattr__(self, "_owner", found)
        return found

    def made(self, make: Callable[[Tensor], _Made]) -> _Made:
        """What a function makes of the offsets of the last level, outside of modes. Made once, so nobody may
        write to it."""
        offsets, known = told(self.levels[-1]), self._made
        if known is None:
            object.__setattr__(self, "_made", known := {})
        found = known.get(make)
        if found is None:
            found = known[make] = make(offsets)
        return found

    @outside_modes
    def numbers(self) -> list[Numbers]:
        """The offsets of each level, of which nobody may write to any."""
        return [level.numpy() for level in self.levels]

    def kept(self) -> tuple[Any, ...]:
        """What it keeps: its offsets, and what was made of them once."""
        return self.levels, self._owner, *(self._made or {}).values()

    @outside_modes
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LoD) or len(self.levels) != len(other.levels):
            return False
        return all(torch.equal(a, b) for a, b in zip(self.levels, other.levels, strict=True))

    def __hash__(self) -> int:
        return hash((self.rows, *(len(level) for level in self.levels)))

    def __copy__(self) -> LoD:
        return self

    def __deepcopy__(self, memo: object) -> LoD:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return LoD, (self.levels,)

    def __repr__(self) -> str:
        return f"LoD({[level.tolist() for level in self.levels]})"

    def show(self) -> str:
        """The lengths of every level, long levels cut short."""
        lengths = [level.diff() if in_program(level) else _lengths(level) for level in self.levels]
        return "[" + ", ".join(map(short, lengths)) + "]"

    @outside_modes
    def difference(self, other: LoD) -> str:
        """In words, the first place where two unequal LoDs differ."""
        if len(self.levels) != len(other.levels):
            return f"{len(self.levels)} levels against {len(other.levels)}"
        for k in range(len(self.levels)):
            a, b = self.lengths(k), other.lengths(k)
            if len(a) != len(b):
                return f"level {k}: {len(a)} sequences against {len(b)}"
            unequal = (a != b).nonzero()
            if len(unequal):
                i = int(unequal[0])
                return f"level {k}, sequence {i}: length {int(a[i])} against {int(b[i])}"
        return "none"

    @outside_modes
    def span(self, start: int, stop: int) -> tuple[tuple[Tensor, ...], int, int]:
        """Top-level sequences start to stop: their offsets at every level, and their first and last row."""
        levels = []
        for offsets in self.levels:
            part = told(offsets).numpy()[start : stop + 1]
            start, stop = int(part[0]), int(part[-1])
            levels.append(index_of(part - start))
        return tuple(levels), start, stop

    @outside_modes
    def row_counts(self) -> list[int]:
        """How many rows each top-level sequence has, over all levels below it."""
        bounds = told(self.levels[0]).numpy()
        for offsets in self.levels[1:]:
            bounds = offsets.numpy()[bounds]
        return np.diff(bounds).tolist()

    @outside_modes
    def take(self, indices: Tensor) -> tuple[LoD, Tensor]:
        """The top-level sequences at ``indices`` in that order: their LoD, and the rows they are made of."""
        levels, chosen = [], indices.numpy()
        for offsets in (told(level).numpy() for level in self.levels):
            starts = offsets[chosen]
            lengths = offsets[chosen + 1] - starts
            levels.append(index_of(_offsets(lengths)))
            chosen = _ranges(starts, lengths)
        return LoD.trusted(tuple(levels), len(chosen)), index_of(chosen)


Numbers = np.ndarray[Any, np.dtype[np.int64]]


def index_of(numbers: Numbers) -> Tensor:
    """Numbers made of offsets as a tensor."""
    return found_again(from_numpy(numbers))


@outside_modes
def _end(offsets: Tensor) -> int:
    return int(offsets.numpy()[-1])


def in_program(offsets: Tensor) -> bool:
    """Whether offsets are of a program that torch.export writes: they have no numbers, and what is made of
    them is made by torch's operators."""
    return type(offsets) is not Tensor


def known(offsets: Tensor) -> Tensor:
    """Offsets that have numbers."""
    if in_program(offsets):
        raise LoDError(
            "a program that torch.export writes is for any lengths: it cannot count, index or take apart "
            "the sequences of a LoDTensor",
            remedy="x.lengths(), x.lod, x.to_padded() and sequence_pool(x, ...) are tensors of the program",
        )
    return offsets


def told(offsets: Tensor) -> Tensor:
    """Offsets whose numbers are those of every call."""
    if said(LENGTHS) is not None:
        raise LoDError(
            "a module that is saved is for any lengths: it cannot count, index, pad or take apart the "
            "sequences of a LoDTensor",
            remedy="x.with_values(v) has the sequences of x; x.lengths(), sequence_pool(x, ...) and "
            "recurrences are written",
        )
    return known(offsets)


@outside_modes
def _copy(offsets: Tensor) -> Tensor:
    return found_again(offsets.clone())


@outside_modes
def _lengths(offsets: Tensor) -> Tensor:
    return index_of(np.diff(offsets.numpy()))


def _first(wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> int | None:
    """The first place that is true."""
    return int(wrong.argmax()) if wrong.any() else None


def _offsets(lengths: Numbers) -> Numbers:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _ranges(starts: Numbers, lengths: Numbers) -> Numbers:
    offsets = _offsets(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


def offsets_of(lengths: Tensor) -> Tensor:
    """[n] lengths to [n + 1] offsets.

    >>> offsets_of(torch.tensor([3, 0, 2]))
    tensor([0, 3, 3, 5])
    """
    return pad(lengths.cumsum(0), (1, 0)) if in_program(lengths) else _offsets_of(lengths)


@outside_modes
def _offsets_of(lengths: Tensor) -> Tensor:
    return index_of(_offsets(lengths.numpy()))


@outside_modes
def longest_of(lengths: Tensor) -> int:
    """The largest of known lengths, 0 of none."""
    return max(lengths.tolist(), default=0)


@outside_modes
def owners(lengths: Tensor, rows: int) -> Tensor:
    """[rows] for every row, the sequence it belongs to.

    >>> owners(torch.tensor([3, 0, 2]), 5)
    tensor([0, 0, 0, 2, 2])
    """
    found = np.repeat(np.arange(len(lengths)), lengths.numpy())
    assert len(found) == rows
    return index_of(found)


@outside_modes
def ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """For every sequence ``start, start + 1, ...``, length many, one after the other.

    >>> ranges(torch.tensor([5, 0]), torch.tensor([2, 3]))
    tensor([5, 6, 0, 1, 2])
    """
    return index_of(_ranges(starts.numpy(), lengths.numpy()))


@outside_modes
def check_lengths(lengths: Tensor, what: str, most: int | None = None, most_is: str = "") -> None:
    """Refuse a length below zero or above ``most``, and a sum that no tensor could hold."""
    given = lengths.numpy()
    i = _first(given < 0 if most is None else (given < 0) | (given > most))
    if i is not None:
        raise LoDError(
            f"{what} must not be negative" if most is None else f"{what} must be 0 to {most}{most_is}",
            got=f"{int(lengths[i])} at index {i}",
        )
    if given.sum(dtype=np.float64) >= 2**62:
        raise LoDError(
            f"{what} add up to more rows than a tensor can hold", got=short(lengths), expected="below 2**62"
        )


@outside_modes
def integers(given: Any, what: str) -> Tensor:
    """A list, array, tensor or generator of integers as a fresh 1-D int64 CPU tensor; LoDError if it is not
    one."""
    if isinstance(given, Tensor):
        try:
            given = noted(given)
        except Unsupported as refusal:  # of rows of a step
            raise Unsupported(refusal.reason, remedy=OF_EACH_SEQUENCE, line=refusal.line) from None
    cause = None
    try:
        tensor = real(given) if isinstance(given, Tensor) else torch.as_tensor(_as_torch_takes(given))
        if tensor is None:
            raise TypeError("a tensor without numbers, or of many")
        tensor = tensor.detach()
        empty_list = tensor.numel() == 0 and not isinstance(given, Tensor)
        integral = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        if tensor.ndim == 1 and (integral or empty_list):
            # Always a copy: what the caller passed may change later, this must not.
            numbers = tensor.cpu().numpy()
            if numbers.dtype == np.uint64 and numbers.max(initial=0) > np.iinfo(np.int64).max:
                raise OverflowError("a number beyond int64")
            return from_numpy(numbers.astype(np.int64))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        cause = error
    if isinstance(given, Tensor) and real(given) is None:
        raise _without_numbers(given, what) from cause
    raise LoDError(
        f"{what} must be a 1-D list or tensor of integers",
        got=brief(given),
        remedy="given.lengths()"
        if hasattr(given, "structure")
        else "given.long().flatten() of a tensor, [int(n) for n in given] of a list",
    ) from cause


def _without_numbers(given: Tensor, what: str) -> LoDError:
    if is_wrapped(given):
        return LoDError(
            f"{what}: torch.vmap would give each of the batches that it maps over other lengths",
            got=brief(given),
            remedy="make it outside of what is mapped",
        )
    if said(LENGTHS) is not None:
        says = "a module that is saved is for any lengths, and makes no sequences of its own"
        remedy = (
            "take the LoDTensor or PackedSequence as an input; or tensors, and the mask of rows as an input"
        )
    else:
        says = "a traced, fake or meta tensor has no numbers"
        remedy = (
            "give a list of them, or a tensor made outside; torch.compile and torch.export leave them open"
        )
    return LoDError(f"{what}: {says}", got=brief(given), remedy=remedy)


def _as_torch_takes(numbers: Any) -> Any:
    """Numbers that torch makes a tensor of: no array of objects, none that runs backwards in memory."""
    numbers = list(numbers) if isinstance(numbers, Iterator) else numbers
    if isinstance(numbers, (list, tuple)):
        if len(numbers) >= _LONG and type(numbers[0]) is int:
            with contextlib.suppress(TypeError, OverflowError):
                return np.frombuffer(array("q", numbers), dtype=np.int64)
        if not _LISTS.isdisjoint(map(type, numbers)):  # torch ends the process at one that holds itself
            raise TypeError("a list in a list")
        return numbers
    check_unmasked(numbers)
    table = np.array(numbers, order="C")
    if table.dtype == object:
        return table.tolist()
    return table if table.flags.writeable else table.copy()  # a column of Arrow gives its own memory


@outside_modes
def short(tensor: Tensor, limit: int = 10) -> str:
    """The entries of a 1-D tensor, the middle left out when there are many."""
    if len(tensor) <= limit:
        return str(tensor.tolist())
    head, tail = tensor[: limit - 3].tolist(), tensor[-2:].tolist()
    return f"[{', '.join(map(str, head))}, ..., {', '.join(map(str, tail))}] ({len(tensor)} in all)"


def _outer(levels: Any, what: str) -> Sequence[Any]:
    listed = isinstance(levels, Sequence) and not isinstance(levels, (str, bytes))
    if not listed or (len(levels) > 0 and isinstance(levels[0], int)):
        raise LoDError(
            f"LoDTensor '{what}' must be a list of levels, outermost first",
            got=brief(levels),
            remedy="one level is written [[...]]",
        )
    if len(levels) == 0:
        raise LoDError(
            f"LoDTensor '{what}' must have at least one level",
            got="none",
            remedy="one level is written [[...]]",
        )
    return levels


def _check_levels(levels: Sequence[Tensor]) -> None:
    for k, offsets in enumerate(levels):
        _check_offsets(k, offsets)
    for k, (offsets, below) in enumerate(pairwise(levels)):
        if _end(offsets) != len(below) - 1:
            raise LoDError(
                f"LoDTensor 'lod' level {k} must end at the number of sequences of level {k + 1}",
                got=f"{_end(offsets)}, at index {len(offsets) - 1}",
                expected=f"{len(below) - 1} (level {k + 1} has {len(below)} offsets)",
            )


def _check_offsets(k: int, offsets: Tensor) -> None:
    where = f"LoDTensor 'lod' level {k}"
    if len(offsets) == 0:
        raise LoDError(
            f"{where} must have at least one offset", got="[]", remedy="[0] is a level of no sequences"
        )
    own = offsets.numpy()
    if own[0] != 0:
        raise LoDError(
            f"{where} must start at 0",
            got=f"{int(offsets[0])} at index 0 of {short(offsets)}",
            remedy="these are offsets; lengths go to LoDTensor.from_lengths",
        )
    i = _first(own[1:] < own[:-1])
    if i is not None:
        raise LoDError(
            f"{where} must never fall",
            got=f"{int(offsets[i])} at index {i}, then {int(offsets[i + 1])} at index {i + 1}",
            remedy="these are offsets; lengths go to LoDTensor.from_lengths",
        )
