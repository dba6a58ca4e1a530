"""Steps whose types typeguard checks as they run."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop
from stepnet.compiler.reads.reach import reach

typeguard = pytest.importorskip("typeguard")


@typeguard.typechecked
def step(x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = torch.tanh(x + 0.5 * h)
    return 2 * h, h


def test_all_that_it_reads_is_known():
    assert reach(step, [torch.Tensor, torch.Tensor]).open is None  # though its code asks for its globals


def test_compiles():
    x, h = (torch.randn(*n, 4, dtype=torch.float64, requires_grad=True) for n in ((5, 3), (3,)))
    as_the_plain_loop(step, x, h, "eager")
