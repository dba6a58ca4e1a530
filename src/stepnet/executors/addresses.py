"""Runs of scans by addresses: where what they read and make lies, and memory for that."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.heap import LARGE, new_table
from stepnet.data.unpatched_torch import empty, empty_like, empty_on_cpu

from .layout import Layout
from .loop import Lone

MOST = LARGE  # bytes of a table, and of what is kept for backward, which lies in one piece
_FOUND = 1 << 20  # bytes of a table from which earlier memory is found faster than new memory (measured)

Size = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
Run = Callable[[Sequence[int], Layout], None]  # a scan of some sequences, on what lies at some addresses
# What maps read: its place among what is at hand, and its part of that: where it begins (None: all of it),
# whether it has rows, and its shape, or that of a row.
Read = tuple[str, int, int | None, bool, tuple[int, ...]]


class Place(NamedTuple):
    """So many bytes after one of the addresses that a scan is given; None: in memory of its own."""

    which: int | None
    offset: int = 0


class Places(NamedTuple):
    """Where a call has what a scan reads and makes, by name.

    Attributes:
        values: what it reads.
        strides: of inputs among those.
        boots: of carries, and of the rows that are moved by a step.
        made: what it makes that is asked for: tables, sums (of zeros) and products.
        lasts: the last values of carries that are asked for.
        filled: which addresses are filled before the scan with a number at which; its bytes, and how often in
            each row.
            Those that are the same are left alone.
        zeroed: which addresses have zeros before the scan, and how many bytes.
        copied: which get a copy after it, of what lies at which, and how many bytes.
    """

    values: Mapping[str, Place]
    strides: Mapping[str, Sequence[int]]
    boots: Mapping[str, Place]
    made: Mapping[str, Place]
    lasts: Mapping[str, Place]
    filled: Sequence[tuple[int, int, int, int]] = ()
    zeroed: Sequence[tuple[int, int]] = ()
    copied: Sequence[tuple[int, int, int]] = ()


def addressed(lone: Lone | None, layout: Layout, most: int, at: Places) -> Run:
    """The scan with which a loop begins. `most`: rows of a call. Raises LookupError."""
    scan = None if lone is None else getattr(lone.scan, "addressed", None)
    if lone is None or scan is None:
        raise LookupError
    return scan(layout, most, at, lone.products)


def ran(run: Run, addresses: Sequence[int], layout: Layout) -> bool:
    """Run a scan. False: it is not of these sequences, or something has no memory."""
    if not all(addresses):
        return False
    try:
        run(addresses, layout)
    except LookupError:
        return False
    return True


def outline(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor to make others like, without memory."""
    like = empty(shape, dtype=dtype, device="cpu")
    like.untyped_storage().resize_(0)
    return like


def size_of(like: Tensor) -> Size:
    """What `empty_on_cpu` takes."""
    return (*like.shape,), like.stride(), like.dtype


def bytes_of(like: Tensor) -> int:
    """How many it takes in one piece."""
    return like.numel() * like.dtype.itemsize


def made_like(like: Tensor) -> Tensor:
    """An empty tensor like one that lies in one piece."""
    return empty_like(like) if bytes_of(like) < _FOUND else new_table((*like.shape,), like.dtype)


def made_of_rows(like: Tensor, rows: int) -> Tensor:
    """An empty tensor of so many rows like those of another one."""
    shape = rows, *like.shape[1:]
    if math.prod(shape) * like.dtype.itemsize < _FOUND:
        return empty(shape, dtype=like.dtype, device="cpu")
    return new_table(shape, like.dtype)


def maker_of(like: Tensor, shown: bool = True) -> Callable[[], Tensor]:
    """What makes empty tensors like one that lies in one piece. `shown`: see `new_table`."""
    if bytes_of(like) < _FOUND:
        return functools.partial(empty_on_cpu, *size_of(like))
    return functools.partial(new_table, (*like.shape,), like.dtype, shown=shown)


def read(at_hand: Sequence[Tensor], reads: Sequence[Read], rows: int) -> dict[str, Tensor]:
    """What maps read, of so many rows."""
    return {
        name: part(at_hand[k], begin, (rows, *shape) if of_rows else shape)
        for name, k, begin, of_rows, shape in reads
    }


def part(table: Tensor, begin: int | None, shape: tuple[int, ...]) -> Tensor:
    """A table of rows; of what is kept in one piece, the one that begins there."""
    return (table if begin is None else table[begin : begin + math.prod(shape)]).view(shape)
