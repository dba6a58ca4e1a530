"""What `python -m fuzz.changes`, `fuzz.models`, `fuzz.frames` and `fuzz.orders` do with seeds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stepnet.engine import plans


def run(first: int, count: int, find: Callable[[int], str | None], what: str) -> int:
    """Print how each case of some seeds differs, if it does; returns how many do."""
    torch.set_num_threads(1)
    wrong = 0
    for seed in range(first, first + count):
        found = find(seed)
        if found is not None:
            wrong += 1
            print(found, flush=True)
        if seed % 20 == 19:
            plans.forget()
    print(f"{count} {what}: {wrong} differ")
    return wrong
