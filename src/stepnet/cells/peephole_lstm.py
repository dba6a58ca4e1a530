"""The LSTM cell whose gates see the cell state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .cell import Cell


class PeepholeLSTM(Cell):
    """LSTM with peephole connections (Gers, Schraudolph and Schmidhuber, "Learning precise timing with LSTM
    recurrent networks", 2002): the gates see the cell state, each unit its own.

        i, f, g, o = W_ih x + b_ih + W_hh h + b_hh
        c' = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * tanh(g)
        h' = sigmoid(o + p_o * c') * tanh(c')
        y  = h'

    Its state is (h, c), each [n, hidden_size]. `weight_c` [3 * hidden_size] holds p_i, p_f, p_o; the other
    parameters are those of LSTM.

    Arguments and errors as of `Cell`.

    >>> cell = PeepholeLSTM(3, 4)
    >>> y, (h, c) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 4

    def add_parameters(self, **like: Any) -> None:
        self.weight_c = nn.Parameter(self.weight_hh.new_empty(3 * self.hidden_size))
        self.reset_parameters()

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step; `mask` multiplies h where it meets weight_hh."""
        h, c = state
        i, f, g, o = self.both_products(x, h, mask).chunk(4, -1)
        p_i, p_f, p_o = self.weight_c.chunk(3, -1)
        c_new = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
        h_new = torch.sigmoid(o + p_o * c_new) * torch.tanh(c_new)
        return h_new, (h_new, c_new)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        """(h, c) of n sequences: zeros."""
        return self.zeros(n), self.zeros(n)
