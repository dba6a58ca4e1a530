"""A matrix that parts are put together to, read where these stand: some of its columns in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepnet.executors.line import Place

# Functions whose results are the numbers that they are given, in another order perhaps.
PUT_TOGETHER = frozenset({"cat", "concat", "stack", "flatten", "reshape", "contiguous", "clone"})


class Part(NamedTuple):
    """Where numbers of a memory come from: both of one shape."""

    to: Place
    source: Place


def columns_of(matrix: Place, parts: Sequence[Part]) -> list[tuple[int, Place]] | None:
    """Where the columns of a matrix stand, and at which of them each part begins, from the first on; None: a
    part is no number of whole columns.

    Args:
        matrix: [K, N], in a memory.
        parts: of that memory.

    >>> w = Place("w", "float32", (4, 3), (3, 1))  # the other way round: the parts are two rows each
    >>> halves = [w._replace(shape=(2, 3), begin=begin) for begin in (6, 0)]
    >>> there = Place("m", "float32", (3, 4), (1, 3))
    >>> parts = [Part(Place("m", "float32", (2, 3), (3, 1), 6 * k), half) for k, half in enumerate(halves)]
    >>> [(at, place.begin) for at, place in columns_of(there, parts) or []]
    [(0, 6), (2, 0)]
    """
    (depth, columns), (down, across) = matrix.shape, matrix.strides
    found: list[tuple[int, Place]] = []
    for to, source in parts:
        at, rest = divmod(to.begin - matrix.begin, across) if across else (0, 1)
        dims = [d for d, size in enumerate(to.shape) if size != 1]
        sizes = {to.strides[d]: (to.shape[d], source.strides[d]) for d in dims}
        count, step = sizes.pop(across, (1, 0))
        own = sizes.pop(down, (1, 0))
        if rest or sizes or own[0] != depth or (len(dims) != (depth != 1) + (count != 1)):
            return None
        if not 0 <= at < columns:
            continue
        if at + count > columns:
            return None
        found.append((at, source._replace(shape=(depth, count), strides=(own[1], step))))
    found.sort(key=lambda part: part[0])
    ends = [0, *(at + place.shape[1] for at, place in found)]
    return found if [at for at, _ in found] == ends[:-1] and ends[-1] == columns else None
