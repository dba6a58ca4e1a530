"""`python -m fuzz [first] [count] [backend]`: run random steps, and print those that differ as source."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter

import torch

from stepnet.engine import plans

from .compare import Declined, check
from .seeds import held
from .steps import make_case


def main(first: int, count: int, backend: str) -> int:
    """Run `count` steps; returns how many differ."""
    torch.set_num_threads(1)
    declined: Counter[str] = Counter()
    wrong = 0
    began = time.time()
    for seed in range(first, first + count):
        case = make_case(seed)
        found: list[str] = []
        broken: list[str] = []
        try:
            with held(broken):
                found = check(case, backend)
        except Declined as reason:
            declined[re.sub(r" \(<fuzz.*", "", str(reason).strip().splitlines()[0])[:140]] += 1
        if found or broken:
            wrong += 1
            print(f"---- seed {seed}", *found, *broken, case.body, sep="\n", flush=True)
        if seed % 50 == 0:
            plans.forget()
        if seed % 100 == 99:
            print(f"seed {seed}: {wrong} differ, {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"{count} steps by {backend}: {wrong} differ, {sum(declined.values())} declined")
    for kind, number in declined.most_common():
        print(f"  {number:5d}  {kind}")
    return wrong


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:3]]
    first, count = numbers if len(numbers) == 2 else (0, numbers[0] if numbers else 10_000)
    sys.exit(main(first, count, sys.argv[3] if len(sys.argv) > 3 else "eager") > 0)
