"""The GRU cell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cell import Cell, seen


def gru_step(
    x: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """One step of the GRU; returns the new h.

    >>> gru_step(torch.ones(1, 1), torch.ones(1, 1), *torch.zeros(2, 3, 1))
    tensor([[0.5000]])
    """
    x_r, x_z, x_n = F.linear(x, weight_ih, bias_ih).chunk(3, -1)
    h_r, h_z, h_n = F.linear(seen(h, mask), weight_hh, bias_hh).chunk(3, -1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return (1 - z) * n + z * h


class GRU(Cell):
    """The gated recurrent unit (Cho et al., "Learning phrase representations using RNN encoder-decoder for
    statistical machine translation", 2014), with the reset gate after the product as torch and cuDNN have it.

        r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
        z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
        n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
        h' = (1 - z) * n + z * h
        y  = h'

    Its state is h, [n, hidden_size]; the weights hold r, z, n in this order. A `state_dict` of
    torch.nn.GRUCell loads into it, and back.

    Arguments and errors as of `Cell`.

    >>> cell = GRU(3, 4)
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 3

    def forward(self, x: Tensor, state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step; `mask` multiplies h where it meets weight_hh, not where z keeps it."""
        h = gru_step(x, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, mask)
        return h, h

    def initial_state(self, n: int) -> Tensor:
        """h of n sequences: zeros."""
        return self.zeros(n)
