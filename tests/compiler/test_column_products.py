"""Products of which some columns are read alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain

F64 = torch.float64
X, H = 5, 3


class Beside(torch.nn.Module):
    """Multiplies its input and its state, one beside the other, by weights that lie one way or the other."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        shape = (X + H, H) if turned else (H, X + H)
        self.w = torch.nn.Parameter(torch.randn(shape, dtype=F64))
        self.turned = turned

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(torch.cat([x, h], 1) @ (self.w if self.turned else self.w.t()))
        return h, h


@pytest.mark.parametrize("turned", few([False, True], [False]))
def test_the_gradient_of_the_input_is_made_only_if_it_is_wanted(turned):
    step, h = Beside(turned), torch.randn(3, H, dtype=F64)
    x = LoDTensor.from_lengths(torch.randn(9, X, dtype=F64), [[4, 0, 5]])
    for given in (x, wanting(x)):
        for _ in range(2):
            as_the_plain_loop(step, given, h.requires_grad_(), "c")
        scan = str(explain(step, given, h)).split("BACKWARD")[1]
        wanted = given.values.requires_grad
        assert (f"[3 → {X + H}]" in scan, f"[3 → {H}]" in scan) == (wanted, not wanted)
