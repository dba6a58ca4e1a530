"""Work of several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(run: Callable[[int], T], count: int = 4) -> list[T]:
    """What `run(k)` gives in thread k, all of them begun together.

    Raises:
        Exception: what one of them raises; TimeoutError if it does not end.
    """
    gate, pool = threading.Barrier(count), ThreadPoolExecutor(count)

    def work(k: int) -> T:
        gate.wait(timeout=60)
        return run(k)

    futures = [pool.submit(work, k) for k in range(count)]
    pool.shutdown(wait=False)  # of those that do not end
    results = [future.result(timeout=120) for future in futures]
    pool.shutdown()
    return results
