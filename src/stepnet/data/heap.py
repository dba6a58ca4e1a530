"""Memory of large tables: asked for in large pages, and given back to the system when it was freed."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .as_imported import data_ptr, empty

LARGE = 1 << 23  # bytes; below that the C library hands out memory that it kept


def new_table(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An empty table. A large one is asked for in large pages: the kernel gives new memory a page at a time,
    which for small pages takes longer than writing it does."""
    table = empty(shape, dtype=dtype, device=device)
    size, advise = table.numel() * dtype.itemsize, _of_libc("madvise")
    if size >= LARGE and table.is_cpu and advise is not None:
        start = -(-data_ptr(table) // mmap.PAGESIZE) * mmap.PAGESIZE
        inside = (data_ptr(table) + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, inside, mmap.MADV_HUGEPAGE)  # advice: what comes of it is the kernel's to say
    return table


def give_back() -> None:
    """Let the system have what was freed.

    The C library keeps it, in holes between what is still in use. Where large tables come and go beside small
    ones that stay, the next tables do not fit the holes, and a process grows.
    """
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


_ARGUMENTS = {"madvise": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], "malloc_trim": [ctypes.c_size_t]}


@functools.cache
def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of Linux's C library; None where there is none."""
    found: Any = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = _ARGUMENTS[name]
    return found
