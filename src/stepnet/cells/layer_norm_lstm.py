"""The LSTM cell with layer normalisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cell import Cell, seen


class LayerNormLSTM(Cell):
    """LSTM with layer normalisation (Ba, Kiros and Hinton, "Layer normalization", 2016, equations 20 to 22).

        i, f, g, o = LN_ih(W_ih x) + LN_hh(W_hh h)
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(LN_c(c'))
        y  = h'

    LN_ih and LN_hh normalise all four gates of a row together, as the paper does; the paper's bias of the
    gates is the bias of the norms. Its state is (h, c), each [n, hidden_size].

    Arguments and errors as of `Cell`; `bias` is whether the three norms have biases.

    >>> cell = LayerNormLSTM(3, 4)
    >>> y, (h, c) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 4
    biased = False  # those of the norms are

    def add_parameters(self, **like: Any) -> None:
        norms = (nn.LayerNorm(n * self.hidden_size, bias=self.bias, **like) for n in (4, 4, 1))
        self.norm_ih, self.norm_hh, self.norm_c = norms

    def reset_parameters(self) -> None:
        """Draw the weights anew; the norms start at one and zero."""
        super().reset_parameters()
        for norm in self.children():
            assert isinstance(norm, nn.LayerNorm)
            norm.reset_parameters()

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step; `mask` multiplies h where it meets weight_hh."""
        h, c = state
        gates = self.norm_ih(F.linear(x, self.weight_ih)) + self.norm_hh(
            F.linear(seen(h, mask), self.weight_hh)
        )
        i, f, g, o = gates.chunk(4, -1)
        c_new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h_new = torch.sigmoid(o) * torch.tanh(self.norm_c(c_new))
        return h_new, (h_new, c_new)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        """(h, c) of n sequences: zeros."""
        return self.zeros(n), self.zeros(n)
