"""Chunks in a sequence of tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from stepnet.data.arguments import choice, whole
from stepnet.errors import TapeError

Scheme = Literal["IOB", "IOE", "IOBES", "plain"]
_PARTS = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "I"}


def tags_of(scheme: Scheme, types: int) -> int:
    """How many tags there are, outside included.

    >>> tags_of("IOB", 3)
    7
    """
    choice("chunk: 'scheme'", scheme, _PARTS, error=TapeError)
    return whole("chunk: 'types'", types, 1, error=TapeError) * len(_PARTS[scheme]) + 1


def chunks(tags: Sequence[int], scheme: Scheme, types: int) -> set[tuple[int, int, int]]:
    """(first, last, type) of every chunk; tags that no scheme allows are read leniently, as by conlleval.

    >>> sorted(chunks([0, 1, 4, 2, 3, 3], "IOB", 2))  # B0 I0 outside B1 I1 I1
    [(0, 1, 0), (3, 5, 1)]
    """
    parts = _PARTS[scheme]
    found: set[tuple[int, int, int]] = set()
    start, previous = -1, ("", types)
    for i, tag in enumerate([*tags, types * len(parts)]):
        kind, part = divmod(tag, len(parts))
        here = ("" if kind >= types else parts[part], min(kind, types))
        if start >= 0 and _ends(previous, here):
            found.add((start, i - 1, previous[1]))
            start = -1
        if _begins(previous, here, types):
            start = i
        previous = here
    return found


def _ends(before: tuple[str, int], here: tuple[str, int]) -> bool:
    return here[1] != before[1] or before[0] in "ES" or here[0] in "BS"


def _begins(before: tuple[str, int], here: tuple[str, int], outside: int) -> bool:
    if here[1] == outside:
        return False
    return here[1] != before[1] or here[0] in "BS" or before[0] in "ES"
