"""Tables that lie in one piece for one number of rows only: recorded as for any, and right for each."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from outcomes import as_the_plain_loop
from stepnet.compiler.trace import torch_tracers

N, K = 4, 3
MATRIX = torch.randn(N, N, dtype=torch.float64)
WEIGHT = torch.randn(K, 4 * K, dtype=torch.float64)


def nodes_first(x, h):
    """As graph networks have it: rows last, for one product of all of them, and back."""
    both = torch.cat([x.reshape(-1, N, K), h.reshape(-1, N, K)], 2).permute(1, 2, 0).reshape(N, -1)
    spread = torch.stack([both, torch.mm(MATRIX, both)]).reshape(2, N, 2 * K, -1).permute(3, 1, 2, 0)
    h = torch.tanh(linear(spread.reshape(-1, 4 * K), WEIGHT)).reshape(x.shape)
    return h, h


@pytest.mark.parametrize("rows", [2, 3, 12, 24])
def test_recorded_and_as_the_plain_loop(rows, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("torch's tracer is asked")

    monkeypatch.setattr(torch_tracers, "by_torch", refused)
    x, h = (torch.randn(*n, N * K, dtype=torch.float64, requires_grad=True) for n in ((5, rows), (rows,)))
    as_the_plain_loop(nodes_first, x, h, "eager")
