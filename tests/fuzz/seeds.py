"""What `python -m fuzz.changes`, `fuzz.models`, `fuzz.frames` and `fuzz.orders` do with seeds."""

from __future__ import annotations

import sys
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


def main(find: Callable[..., str | None], what: str) -> None:
    """`[first count] [more for find]` of the command line; ends with status 1 if one differs."""
    first, count = map(int, sys.argv[1:3] or (0, 500))
    sys.exit(run(first, count, lambda seed: find(seed, *sys.argv[3:]), what) > 0)
