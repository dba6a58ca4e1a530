"""What the tests of cells over sequences share."""

from __future__ import annotations

import torch

from outcomes import tensors
from stepnet import LoDTensor, recurrent
from stepnet.data.tree import flatten, unflatten

DTYPE = torch.float64
LENGTHS = {
    "unsorted with an empty one": [3, 0, 5, 1],
    "all of length 1": [1, 1, 1],
    "batch of one": [4],
    "all empty": [0, 0],
    "batch of none": [],
}
CLOSE = {"rtol": 0, "atol": 1e-10}


def by_hand(cell, sequences, state, reverse=False):
    """y of every sequence and the leaves of its final state: one sequence at a time, one row at a time."""
    ys, finals = [], []
    leaves, spec = flatten(state)
    for b, rows in enumerate(sequences):
        s = unflatten(spec, [leaf[b : b + 1] for leaf in leaves])
        y = [None] * len(rows)
        for t in reversed(range(len(rows))) if reverse else range(len(rows)):
            y[t], s = cell(rows[t : t + 1], s)
        ys.append(torch.cat(y) if y else rows.new_zeros(0, cell.hidden_size))
        finals.append(flatten(s)[0])
    return ys, [torch.cat(leaf) for leaf in zip(*finals, strict=True)] if finals else leaves


def check_autocast(cell, features, atol):
    """Numbers are of fewer digits, and the state keeps its dtype."""
    x = LoDTensor.from_lengths(torch.randn(6, features), [[2, 0, 4]])
    y, final = recurrent(cell, x)
    with torch.autocast("cpu", torch.bfloat16):
        low_y, low_final = recurrent(cell, x)
    assert [leaf.dtype for leaf in tensors(low_final)] == [torch.float32] * len(tensors(final))
    torch.testing.assert_close(low_y.values.float(), y.values, rtol=0, atol=atol)
    assert not torch.equal(low_y.values.float(), y.values)
