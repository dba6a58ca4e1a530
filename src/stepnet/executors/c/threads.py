"""The threads that generated C runs on: those of the OpenMP runtime torch itself loaded.

One pool in the process, no OpenMP compiler needed: the runtime's functions are handed to C as pointers (see
c/sn_parallel.h, which makes threads of its own where there is no such runtime).
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import torch

_MULTIPLIED = 1 << 20  # numbers that a thread multiplies at least


class Pool(ctypes.Structure):
    """`sn_pool` of sn_parallel.h, the first argument of generated entry functions."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("team_size", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


def pool(threads: int | None = None) -> Pool:
    """The pool for one call, of at most `threads` threads (`torch.get_num_threads()` unless given).

    In a process forked from one that imported this module the runtime is left alone: libgomp would wait for
    worker threads that the fork did not copy.

    >>> pool(1).threads
    1
    """
    return _pool(torch.get_num_threads() if threads is None else threads, _forked)


def worth(multiplications: int) -> int:
    """How many threads a product is worth of so many multiplications.

    >>> worth(1)
    1
    """
    return max(1, min(torch.get_num_threads(), multiplications // _MULTIPLIED))


@functools.lru_cache(maxsize=64)
def _pool(threads: int, forked: bool) -> Pool:
    parallel, team_size = (None, None) if forked else _openmp()
    return Pool(parallel, team_size, threads)


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _openmp() -> tuple[int | None, int | None]:
    """Addresses of GOMP_parallel and omp_get_num_threads as libtorch resolves them, else None.

    Looking them up through libtorch finds its own runtime, though other packages may have loaded another.
    libgomp, libomp and libiomp5 on Linux all export both; libomp on macOS has no GOMP_parallel.
    """
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            library = ctypes.CDLL(str(folder / name))
            functions = library.GOMP_parallel, library.omp_get_num_threads
        except (OSError, AttributeError):
            continue
        parallel, team_size = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
        return parallel, team_size
    return None, None
