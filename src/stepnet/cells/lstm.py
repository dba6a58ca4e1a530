"""The LSTM cell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cell import Cell, seen


def lstm_step(
    x: Tensor,
    state: tuple[Tensor, Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    weight_hr: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of the LSTM; returns the new (h, c).

    `weight_hr` [projection, hidden] projects h (Sak, Senior and Beaufays, "Long short-term memory based
    recurrent neural network architectures for large vocabulary speech recognition", 2014).

    >>> h, c = lstm_step(torch.ones(1, 1), (torch.zeros(1, 1), torch.ones(1, 1)), *torch.zeros(2, 4, 1))
    >>> c
    tensor([[0.5000]])
    """
    h, c = state
    gates = F.linear(x, weight_ih, bias_ih) + F.linear(seen(h, mask), weight_hh, bias_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    if weight_hr is not None:
        h = F.linear(h, weight_hr).to(c.dtype)  # see rnn_step
    return h, c


class LSTM(Cell):
    """Long short-term memory with a forget gate (Hochreiter and Schmidhuber, "Long short-term memory", 1997;
    Gers, Schmidhuber and Cummins, "Learning to forget", 2000).

        i, f, g, o = W_ih x + b_ih + W_hh h + b_hh
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(c')
        y  = h'

    Its state is (h, c), each [n, hidden_size]. A `state_dict` of torch.nn.LSTMCell loads into it, and back.

    Arguments and errors as of `Cell`.

    >>> cell = LSTM(3, 4)
    >>> y, (h, c) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 4

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step; `mask` multiplies h where it meets weight_hh."""
        h, c = lstm_step(x, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, mask=mask)
        return h, (h, c)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        """(h, c) of n sequences: zeros."""
        return self.zeros(n), self.zeros(n)
