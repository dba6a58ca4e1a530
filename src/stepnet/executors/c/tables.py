"""Tables of all rows that a scan writes."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import torch
from torch import Tensor

LARGE = 1 << 23  # bytes; below that the C library hands out memory that it kept


def new_table(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty table. A large one is asked for in large pages: the kernel gives new memory a page at a time,
    which for small pages takes longer than writing it does."""
    table = torch.empty(shape, dtype=dtype)
    size, advise = table.numel() * dtype.itemsize, _madvise()
    if size >= LARGE and advise is not None:
        start = -(-table.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        inside = (table.data_ptr() + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, inside, mmap.MADV_HUGEPAGE)  # advice: what comes of it is the kernel's to say
    return table


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is not None:
        found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
