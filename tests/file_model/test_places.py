"""Elements by their places: what both formats' ops pick, put and cut."""

from __future__ import annotations

import pytest
import torch

from stepnet.file_model import Misfit, places, slices

INF = float("inf")
X = torch.arange(12.0).reshape(3, 4)
I = torch.tensor

CASES = {
    # what an infinite number does not reach, and sums that do not cancel what they never held
    "exclusive sum": (
        places.cumulated(I([1, INF, 2]), 0, "cumsum", exclusive=True, reverse=False), I([0, 1, INF]),
    ),
    "of small behind large": (
        places.cumulated(I([3, 1e8]), -1, "cumsum", exclusive=True, reverse=True), I([1e8, 0]),
    ),
    "exclusive product": (
        places.cumulated(I([2.0, 3, 4]), 0, "cumprod", exclusive=True, reverse=True), I([12.0, 4, 1]),
    ),
    "sums of nothing": (
        places.cumulated(torch.zeros(0), 0, "cumsum", exclusive=True, reverse=False), torch.zeros(0),
    ),
    "one place": (places.gather_nd(X, I([0, -1])), I(3.0)),
    "places that name no axis": (places.gather_nd(X, torch.zeros(2, 0).long()), torch.stack([X, X])),
    "no sequences": (places.gather_nd(X[:0], torch.zeros(0, 1).long(), 1), torch.zeros(0)),
    "of int32": (places.gather_elements(X, I([[0, -1]]).int(), 1), I([[0.0, 3]])),
    "largest at a place": (
        places.scatter_nd(X, I([[0, 0], [0, -1]]), I([7.0, 1]), "max")[0], I([7.0, 1, 2, 3]),
    ),
    "cut, then around again": (places.padded(X[0], [-1], [2], "wrap", None), I([1.0, 2, 3, 1, 2])),
    "cut, then mirrored": (places.padded(X[0], [-1], [1], "reflect", None), I([1.0, 2, 3, 2])),
    "a large whole number": (places.padded(I([1]), [0], [1], "constant", 2**60 + 1), I([1, 2**60 + 1])),
}  # fmt: skip

REFUSED = {
    **{
        f"a place outside ({how}, {k})": lambda how=how, k=k: places.scatter_nd(X, I([[0, k]]), I([7.0]), how)
        for how in ("none", "sum", "prod", "max")
        for k in (4, -5)
    },
    "a place far before": lambda: places.gather_nd(X, I([[0, -5]])),
    "no place": lambda: places.scatter_nd(X, torch.zeros(2, 0).long(), torch.stack([X, X]), "max"),
    "mirrored in less than it": lambda: places.padded(X, [0, 4], [0, 0], "reflect", None),
    "mirrored in what is cut": lambda: places.padded(X, [0, -3], [0, 2], "reflect", None),
    **{f"a length of {n}": lambda n=n: places.reversed_within(X, I([1, n, 2]), 0, 1) for n in (-1, 5)},
    "no such axis": lambda: places.gather(X, I([0]), 2),
    "an axis twice": lambda: slices(X, [0, 0], [1, 1], [1, 1], [1, -1]),
}


@pytest.mark.parametrize("name", CASES)
def test_places(name):
    found, expected = CASES[name]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit(name):
    with pytest.raises((Misfit, IndexError, RuntimeError)):
        REFUSED[name]()
