"""The minGRU cell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cell import Cell


class MinGRU(Cell):
    """The minimal GRU (Feng et al., "Were RNNs all we needed?", 2024, section 3.1): gates see the input
    alone, so the step is linear in its state.

        z, n = W_ih x + b_ih
        h' = (1 - sigmoid(z)) * h + sigmoid(z) * n
        y  = h'

    Its state is h, [n, hidden_size]; the weights hold z, n in this order and are drawn as those of
    torch.nn.Linear, as the paper has them. There is no weight_hh.

    Arguments and errors as of `Cell`.

    >>> cell = MinGRU(3, 4)
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 2
    recurrent = False

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        z, n = F.linear(x, self.weight_ih, self.bias_ih).chunk(2, -1)
        z = torch.sigmoid(z)
        h = (1 - z) * state + z * n
        return h, h

    def initial_state(self, n: int) -> Tensor:
        """h of n sequences: zeros."""
        return self.zeros(n)
