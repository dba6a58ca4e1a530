"""Memory of large tables: that of earlier ones, or asked for in large pages, and given back to the system."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from .unpatched_torch import data_ptr, empty, set_

LARGE = 1 << 23  # bytes of a table that is asked for in large pages
KEPT = 1 << 18  # bytes of a table from which its memory is used again
_MOST = 1 << 27  # bytes of one that is too large for it
_ALL, _MANY = 1 << 28, 128  # bytes that are kept, and of how many tables
_kept: dict[int, UntypedStorage] = {}  # by address, the one used last at the end
_SINCE = 0  # no address: where in `_kept` those begin that were asked for since `forget_older`


def new_table(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu", shown: bool = True
) -> Tensor:
    """An empty table; one that is not `shown` to the caller may lie in somewhat more memory than it needs.

    The memory is that of an earlier table that nobody holds any more: what is freed goes back to the system,
    and comes again filled with zeros, page by page, which takes longer than to write a table. Where there is
    none, it is asked for in large pages.

    >>> table = new_table((512, 256), torch.float32)
    >>> at = table.data_ptr()
    >>> del table
    >>> new_table((256, 512), torch.float32).data_ptr() == at
    True
    """
    size = math.prod(shape) * dtype.itemsize
    if size < KEPT or torch.device(device).type != "cpu":
        return empty(shape, dtype=dtype, device=device)
    if size > _MOST:
        return _in_large_pages(empty(shape, dtype=dtype, device="cpu"), size)
    storage = _free(size, size if shown else size + size // 4)
    if storage is not None:
        table = set_(empty(0, dtype=dtype, device="cpu"), storage, 0, shape)
    else:
        table = _in_large_pages(empty(shape, dtype=dtype, device="cpu"), size)
        storage = table.untyped_storage()
        _make_room(size)
    _kept[storage.data_ptr()] = storage
    return table


def _in_large_pages(table: Tensor, size: int) -> Tensor:
    advise = _of_libc("madvise")
    if size >= LARGE and advise is not None:
        start = -(-data_ptr(table) // mmap.PAGESIZE) * mmap.PAGESIZE
        inside = (data_ptr(table) + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, inside, mmap.MADV_HUGEPAGE)  # advice: what comes of it is the kernel's to say
    return table


def _free(least: int, most: int) -> UntypedStorage | None:
    """Memory of so many bytes that nobody holds; from now on the caller alone does."""
    for at in [*_kept]:
        storage = _kept.get(at)
        if storage is None or not least <= storage.nbytes() <= most or _count(storage._cdata) > 1:
            continue
        if _kept.pop(at, None) is None:
            continue  # another thread has it
        # held by no tensor, nor by Python; where it was, and of the size; no other process writes to it
        alone = _count(storage._cdata) == 1 and sys.getrefcount(storage) == 2
        if alone and storage.data_ptr() == at and least <= storage.nbytes() and not storage.is_shared():
            return storage
    return None


def _make_room(size: int) -> None:
    """Forget the memory that was used longest ago, so that with so many bytes more it is not too much."""
    sizes = {at: storage.nbytes() for at, storage in [*_kept.items()]}
    left, many = sum(sizes.values()) + size, len(sizes) + 1
    for at, each in sizes.items():
        if left <= _ALL and many <= _MANY:
            return
        _kept.pop(at, None)
        left, many = left - each, many - 1


def forget_older() -> None:
    """Forget the memory that no table was made in since this was called last.

    Where work is done in turns whose tables become larger or smaller, that of earlier turns fits no more.
    """
    if _SINCE in _kept:
        for at in [*_kept]:
            _kept.pop(at, None)
            if at == _SINCE:
                break
    _kept[_SINCE] = UntypedStorage(0)


def give_back() -> None:
    """Let the system have what was freed.

    The C library keeps it, in holes between what is still in use. Where large tables come and go beside small
    ones that stay, the next tables do not fit the holes, and a process grows.
    """
    _kept.clear()
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


_count: Callable[[int], int] = torch._C._storage_Use_Count  # pyright: ignore[reportAttributeAccessIssue]
_ARGUMENTS = {"madvise": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], "malloc_trim": [ctypes.c_size_t]}


@functools.cache
def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of Linux's C library; None where there is none."""
    found: Any = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = _ARGUMENTS[name]
    return found
