"""When values may be let go of."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def last_uses(uses: Sequence[Iterable[Name]], kept: Iterable[Name]) -> list[tuple[Name, ...]]:
    """For each step the values that no step after it uses.

    Args:
        uses: for each step what it reads and makes.
        kept: what is asked for in the end.

    >>> last_uses([["x", "h"], ["h", "y"]], kept=["y"])
    [('x',), ('h',)]
    """
    later = set(kept)
    last: list[tuple[Name, ...]] = []
    for names in reversed(uses):
        last.append(tuple(name for name in dict.fromkeys(names) if name not in later))
        later.update(names)
    return last[::-1]
