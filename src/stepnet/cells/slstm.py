"""The sLSTM cell of xLSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cell import Cell

# The logarithm of "nothing yet": its exponential is zero in every dtype, and unlike -inf it can be averaged.
LOG_NOTHING = -1e4


class SLSTM(Cell):
    """LSTM with an exponential input gate (Beck et al., "xLSTM: extended long short-term memory", 2024,
    section 2.2), one head.

        i, f, z, o = W_ih x + b_ih + W_hh h + b_hh
        m' = max(log sigmoid(f) + m, i)                     stabiliser
        a  = exp(log sigmoid(f) + m - m')                   forget gate
        b  = exp(i - m')                                    input gate
        c' = a * c + b * tanh(z)
        n' = a * n + b                                      normaliser
        h' = sigmoid(o) * c' / n'
        y  = h'

    c and n are kept divided by exp(m), which leaves h as it is and keeps every exponent at or below zero.
    From the initial state (h, c, n = 0; m = -10000, nothing seen) n is at least 1 after the first step.

    Its state is (h, c, n, m), each [n, hidden_size]; the weights hold i, f, z, o in this order.

    Arguments and errors as of `Cell`.

    >>> cell = SLSTM(3, 4)
    >>> y, (h, c, n, m) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 4

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """One step; `mask` multiplies h where it meets weight_hh."""
        h, c, n, m = state
        i, f, z, o = self.both_products(x, h, mask).chunk(4, -1)
        log_f = F.logsigmoid(f) + m
        m_new = torch.maximum(log_f, i)
        a = torch.exp(log_f - m_new)
        b = torch.exp(i - m_new)
        c_new = a * c + b * torch.tanh(z)
        n_new = a * n + b
        h_new = torch.sigmoid(o) * (c_new / n_new)
        return h_new, (h_new, c_new, n_new, m_new)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(h, c, n, m) of n sequences: nothing seen."""
        return self.zeros(n), self.zeros(n), self.zeros(n), self.zeros(n) + LOG_NOTHING
