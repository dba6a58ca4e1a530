"""The machine's limit: floating-point operations a second of a large matmul."""

from __future__ import annotations

import time

import torch

SLOW = 10e9  # operations a second


def matmul_peak(threads: int, turns: int = 5, n: int = 1536, dtype: torch.dtype = torch.float32) -> float:
    """The best of some turns, in operations a second; a multiplication and an addition are two.

    A type that nobody multiplies fast here gets few turns of a small matmul: SLOW is no peak.

    >>> matmul_peak(1, turns=1, n=16) > 0
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        few = _rate(min(n, 256), 2, dtype)
        return few if few < SLOW else _rate(n, turns, dtype)
    finally:
        torch.set_num_threads(before)


def _rate(n: int, turns: int, dtype: torch.dtype) -> float:
    a, b, out = torch.ones(3, n, n, dtype=dtype)
    torch.mm(a, b, out=out)
    best = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best
