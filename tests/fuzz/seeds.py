"""What `python -m fuzz.changes`, `fuzz.models`, `fuzz.frames` and `fuzz.orders` do with seeds, and what
all hold plans to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from plans import plans_made, read_back
from stepnet.compiler.pipeline import Compiled
from stepnet.engine import plans


@contextlib.contextmanager
def held(broken: list[str]) -> Iterator[None]:
    """Holds what is compiled in here to the rules of plans: each keeps them, and is the same when read."""

    def read(compiled: Compiled, given: tuple[Any, ...]) -> None:
        try:
            read_back(compiled, given)
        except Exception as error:
            broken.append(f"a plan, written and read: {type(error).__name__}: {error}")

    with plans_made(read):
        yield


def run(first: int, count: int, find: Callable[[int], str | None], what: str) -> int:
    """Print how each case of some seeds differs, if it does; returns how many do."""
    torch.set_num_threads(1)
    wrong = 0
    for seed in range(first, first + count):
        broken: list[str] = []
        with held(broken):
            found = find(seed)
        if found is not None or broken:
            wrong += 1
            print(*([] if found is None else [found]), *broken, f"(seed {seed})", sep="\n", flush=True)
        if seed % 20 == 19:
            plans.forget()
    print(f"{count} {what}: {wrong} differ")
    return wrong


def main(find: Callable[..., str | None], what: str) -> None:
    """`[first count] [more for find]` of the command line; ends with status 1 if one differs."""
    first, count = map(int, sys.argv[1:3] or (0, 500))
    sys.exit(run(first, count, lambda seed: find(seed, *sys.argv[3:]), what) > 0)
