"""The minLSTM cell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cell import Cell


class MinLSTM(Cell):
    """The minimal LSTM (Feng et al., "Were RNNs all we needed?", 2024, section 3.2): gates see the input
    alone and add up to one, so the step is linear in its state.

        f, i, n = W_ih x + b_ih
        f' = sigmoid(f) / (sigmoid(f) + sigmoid(i))
        i' = sigmoid(i) / (sigmoid(f) + sigmoid(i))
        h' = f' * h + i' * n
        y  = h'

    The gates are computed from d = softplus(-f) - softplus(-i), as f' = sigmoid(-d) and i' = sigmoid(d),
    which holds where both sigmoids are zero in floating point.

    Its state is h, [n, hidden_size]; the weights hold f, i, n in this order and are drawn as those of
    torch.nn.Linear, as the paper has them. There is no weight_hh.

    Arguments and errors as of `Cell`.

    >>> cell = MinLSTM(3, 4)
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 3
    recurrent = False

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        f, i, n = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, -1)
        d = F.softplus(-f) - F.softplus(-i)
        h = torch.sigmoid(-d) * state + torch.sigmoid(d) * n
        return h, h

    def initial_state(self, n: int) -> Tensor:
        """h of n sequences: zeros."""
        return self.zeros(n)
