"""Products of two matrices of a row in generated C, in whichever order passes go, give what loops give."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain

OPTIMISED = False


def by_lines(s, x):
    return s @ x.mT


def by_columns(s, x):
    return s.mT.contiguous().mT @ x.mT


def of_heads(s, x):
    """Each has every second column."""
    s, x = (t.unflatten(-1, (-1, 2)).movedim(-1, 1) for t in (s, x))
    return (s @ x.transpose(-1, -2)).sum(1)


def with_itself(s, x):
    return (s @ s.mT)[:, :, :1] + x.sum((1, 2), keepdim=True)


# lines, how many products each sum has (twice for heads), columns: many short sums, and others
SIZES = [(9, 4, 8), (2, 8, 8), (3, 2, 17), (2, 10, 8), (4, 18, 9), (5, 4, 7), (1, 4, 9)]


@pytest.mark.parametrize("product", [by_lines, by_columns, of_heads, with_itself])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_matrices_of_a_row(product, m, k, n):
    def step(x, s):
        a = torch.softmax(product(s, x), -1)
        return a, torch.tanh(s * 0.5 + a.square().sum(-1, keepdim=True))

    torch.manual_seed(0)
    rows, state = (torch.randn(*size, dtype=torch.float64) for size in ((6, n, k), (4, m, k)))
    as_the_plain_loop(step, *wanting((LoDTensor.from_lengths(rows, [[3, 0, 1, 2]]), state)))


@pytest.mark.parametrize(("m", "k", "n", "lies"), [(8, 8, 16, "lines"), (8, 64, 8, "columns")])
def test_many_short_sums_go_side_by_side(m, k, n, lies):
    """Over a copy of the second matrix, line after line; long ones over the matrix as it lies."""

    def step(x, s):
        return torch.tanh(by_lines(s, x)), s

    source = explain(step, torch.randn(1, 1, n, k), torch.randn(1, m, k), backend="c", source=True).source
    assert source is not None
    inner = source[source.index("row by row") :]
    assert ("reduction(+" in inner) == (lies == "columns")
