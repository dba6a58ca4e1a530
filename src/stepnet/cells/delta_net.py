"""The delta rule as a cell, plain and gated."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .heads import HeadsCell, lookup, outer
from .selective_ssm import draw_steps


class DeltaNet(HeadsCell):
    """Linear attention that writes by the delta rule (Schlag, Irie and Schmidhuber, "Linear transformers are
    secretly fast weight programmers", 2021; Yang et al., "Parallelizing linear transformers with the delta
    rule over sequence length", 2024). For each head:

        q, k = unit(silu(W_q x + b_q)), unit(silu(W_k x + b_k))         unit(v) = v / |v|
        v, b = W_v x + b_v, sigmoid(w_b x)
        S' = S + b * k (v - k S)^T           what S holds at k moves towards v by the share b
        y  = q S'

    Its state is S, [n, heads, keys, values]. All weights are drawn as those of torch.nn.Linear. The papers
    put short convolutions before q, k and v and a norm after y.

    Args:
        input_size: features of x.
        hidden_size: features of y and of the values, all heads together.
        heads: how many matrices there are.
        key_size: features of queries and keys, all heads together; None for hidden_size.
        bias: whether b_q, b_k and b_v exist.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        StepError: a size is no positive whole number, or does not divide by the heads.

    >>> cell = DeltaNet(3, 4, heads=2)
    >>> y, S = cell(torch.ones(2, 3), cell.initial_state(2))
    >>> y.shape, S.shape
    (torch.Size([2, 4]), torch.Size([2, 2, 2, 2]))
    """

    def add_parameters(self, **like: Any) -> None:
        self.write_share = nn.Linear(self.input_size, self.heads, False, **like)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        return self.write(x, state)

    def write(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """y and the new S: one write by the delta rule, then one lookup."""
        q = F.normalize(F.silu(self.by_head(self.query(x))), dim=-1)
        k = F.normalize(F.silu(self.by_head(self.key(x))), dim=-1)
        share = torch.sigmoid(self.write_share(x)).unsqueeze(-1)
        missing = share * (self.by_head(self.value(x)) - lookup(state, k))
        new = state + outer(k, missing)
        return lookup(new, q).flatten(-2), new


class GatedDeltaNet(DeltaNet):
    """The delta rule with a decay for each head (Yang, Kautz and Hatamizadeh, "Gated delta networks:
    improving Mamba2 with delta rule", 2024). As `DeltaNet`, with

        a  = exp(-exp(A) softplus(w_a x + d))
        S' = a S + b * k (v - k (a S))^T

    exp(A), one number a head, is drawn uniformly from 0 to 16 and softplus(d) log-uniformly from 0.001 to
    0.1, as in Mamba2, whose decay this is.

    Arguments and errors as of `DeltaNet`.

    >>> cell = GatedDeltaNet(3, 4, heads=2)
    >>> y, S = cell(torch.ones(2, 3), cell.initial_state(2))
    >>> y.shape, S.shape
    (torch.Size([2, 4]), torch.Size([2, 2, 2, 2]))
    """

    def add_parameters(self, **like: Any) -> None:
        super().add_parameters(**like)
        self.decay_time = nn.Linear(self.input_size, self.heads, True, **like)
        self.decay_rate = nn.Parameter(torch.empty(self.heads, **like))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        super().reset_parameters()
        draw_steps(self.decay_time.bias)
        with torch.no_grad():
            nn.init.uniform_(self.decay_rate, 0, 16).clamp_(min=1e-4).log_()

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        decay = torch.exp(-torch.exp(self.decay_rate) * F.softplus(self.decay_time(x)))
        return self.write(x, decay[..., None, None] * state)
