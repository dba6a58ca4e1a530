"""Tables of all rows."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.data.as_imported import data_ptr, empty, is_contiguous

LARGE = 1 << 23  # bytes; below that the C library hands out memory that it kept
EARLIER = "earlier rows of "  # and a state: what a scan calls the rows one step before, if they lie in memory


def new_table(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An empty table. A large one is asked for in large pages: the kernel gives new memory a page at a time,
    which for small pages takes longer than writing it does."""
    table = empty(shape, dtype=dtype, device=device)
    size, advise = table.numel() * dtype.itemsize, _madvise()
    if size >= LARGE and table.is_cpu and advise is not None:
        start = -(-data_ptr(table) // mmap.PAGESIZE) * mmap.PAGESIZE
        inside = (data_ptr(table) + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, inside, mmap.MADV_HUGEPAGE)  # advice: what comes of it is the kernel's to say
    return table


def as_table(rows: Tensor) -> Tensor:
    """Rows one after the other: a copy, if they are not that yet.

    >>> as_table(torch.ones(1).expand(2, 3)).stride()
    (3, 1)
    """
    return rows if is_contiguous(rows) else new_table(rows.shape, rows.dtype, rows.device).copy_(rows)


def led_table(shape: Sequence[int], dtype: torch.dtype, by: int) -> Tensor:
    """An empty table with room for so many rows before it; no view, but a table of its own."""
    rows, *rest = shape
    whole = new_table((rows + by, *rest), dtype)
    return whole.new_empty(0).set_(whole.untyped_storage(), whole[:by].numel(), shape)  # pyright: ignore


def lead_in(table: Tensor, boot: Tensor) -> Tensor:
    """Let boot values stand before the rows of a step each; `earlier` of it.

    >>> table = led_table((2, 1), torch.float32, 1).copy_(torch.tensor([[5.0], [6.0]]))
    >>> lead_in(table, torch.tensor([[4.0]])).tolist()
    [[4.0], [5.0]]
    """
    rows = earlier(table, len(boot))
    assert rows is not None
    rows[: len(boot)] = boot
    return rows


def earlier(table: Tensor, by: int) -> Tensor | None:
    """What lies so many rows earlier in memory than a table; None if that is no room that was made for it.

    >>> earlier(torch.ones(2, 1), 1)
    """
    if not by or table.storage_offset() != by * table.stride(0) or not is_contiguous(table):
        return None
    return table.new_empty(0).set_(table.untyped_storage(), 0, table.shape)  # pyright: ignore


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is not None:
        found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
