"""The mLSTM cell of xLSTM."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .heads import HeadsCell, lookup, outer


class MLSTM(HeadsCell):
    """LSTM with a matrix memory (Beck et al., "xLSTM: extended long short-term memory", 2024, section 2.3).
    For each head, of width d:

        q, k, v = W_q x + b_q, (W_k x + b_k) / sqrt(d), W_v x + b_v
        f, i    = sigmoid(w_f x + b_f), exp(w_i x + b_i)
        C' = f * C + i * k v^T
        n' = f * n + i * k
        h  = q C' / max(|q n'|, 1)
        y  = sigmoid(W_o x + b_o) * h

    C and n are kept divided by exp(m), with m' = max(log f + m, log i, 0): that leaves h as it is and keeps
    every exponent at or below zero. (The paper's m has no 0 in it, and then the 1 becomes exp(-m), which
    overflows where little was ever written.)

    Its state is (C, n, m): [n, heads, d, d], [n, heads, d], [n, heads]. The gates start as in the authors'
    implementation: weights of zero, b_f from 3 to 6 over the heads, b_i near 0.

    Args:
        input_size: features of x.
        hidden_size: features of y: heads * d.
        heads: how many memories there are.
        bias: whether b_q, b_k, b_v and b_o exist; b_f and b_i always do.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        StepError: a size is no positive whole number, or hidden_size does not divide by the heads.

    >>> cell = MLSTM(3, 4, heads=2)
    >>> y, (C, n, m) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape, C.shape
    (torch.Size([2, 4]), torch.Size([2, 2, 2, 2]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, heads, None, bias, device, dtype)
        self.output_gate = nn.Linear(self.input_size, self.hidden_size, bias, device, dtype)
        self.forget_gate = nn.Linear(self.input_size, self.heads, True, device, dtype)
        self.input_gate = nn.Linear(self.input_size, self.heads, True, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for linear in (self.query, self.key, self.value, self.output_gate):
            linear.reset_parameters()
        for gate in (self.forget_gate, self.input_gate):
            nn.init.zeros_(gate.weight)
        with torch.no_grad():
            biases = self.forget_gate.bias
            biases.copy_(torch.linspace(3, 6, self.heads, device=biases.device, dtype=biases.dtype))
        nn.init.normal_(self.input_gate.bias, std=0.1)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """One step."""
        c, n, m = state
        q, k, v = self.by_head(self.query(x)), self.by_head(self.key(x)), self.by_head(self.value(x))
        k = k / math.sqrt(k.shape[-1])
        log_f, log_i = F.logsigmoid(self.forget_gate(x)) + m, self.input_gate(x)
        m_new = torch.maximum(log_f, log_i).clamp(min=0)
        f, i = torch.exp(log_f - m_new).unsqueeze(-1), torch.exp(log_i - m_new).unsqueeze(-1)
        c_new = f.unsqueeze(-1) * c + outer(i * k, v)
        n_new = f * n + i * k
        scale = torch.maximum((q * n_new).sum(-1).abs(), torch.exp(-m_new))
        h = lookup(c_new, q) / scale.unsqueeze(-1)
        return torch.sigmoid(self.output_gate(x)) * h.flatten(-2), (c_new, n_new, m_new)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(C, n, m) of n sequences: zeros."""
        return super().initial_state(n), self.zeros(n, self.key_size // self.heads), self.zeros(n)
