"""Sequences of no steps: the step is asked what y looks like, and nothing tells that it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stepnet import LoDTensor, recurrent


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls, self.log = nn.BatchNorm1d(3), 0, list[int]()
        self.register_buffer("n", torch.zeros(()))
        self.n: Tensor

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self.n += 1
        self.calls += 1
        self.log.append(self.calls)
        h = self.norm(x) + h + torch.rand(3)
        return h, h


NONE = {
    "no steps": (torch.zeros(0, 2, 3), 2),
    "empty sequences": (LoDTensor.from_lengths(torch.zeros(0, 3), [[0, 0]]), 2),
    "no sequences": (LoDTensor.from_lengths(torch.zeros(0, 3), [[]]), 0),
}


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("name", NONE)
@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_nothing_tells_that_the_step_was_asked(name, backend):
    (x, n), cell = NONE[name], Counts()
    h, before, seed = (
        torch.randn(n, 3),
        {k: t.clone() for k, t in cell.state_dict().items()},
        torch.get_rng_state(),
    )
    for _ in range(2):
        y, last = recurrent(cell, x, h, backend=backend)
        rows = y.values if isinstance(y, LoDTensor) else y
        assert (rows.shape[-1], rows.numel()) == (3, 0)
        assert torch.equal(last, h)
    torch.testing.assert_close(cell.state_dict(), before, rtol=0, atol=0)
    assert (cell.calls, cell.log) == (0, [])
    assert torch.equal(torch.get_rng_state(), seed)
    recurrent(cell, torch.randn(4, 2, 3), torch.randn(2, 3), backend=backend)
    assert (cell.calls, int(cell.n), len(cell.log)) == (4, 4, 4)
