"""The edit distance of two sequences."""

from __future__ import annotations

from collections.abc import Sequence


def edit_steps(a: Sequence[int], b: Sequence[int]) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b (Levenshtein, 1966), in
    O(len(a) len(b)) time.

    >>> edit_steps([1, 2, 3], [2, 3, 4])
    2
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]
