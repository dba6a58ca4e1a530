"""The cell of gated linear attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cell import positive_size
from .heads import HeadsCell, lookup, outer

TEMPERATURE = 16  # tau of the paper


class GLA(HeadsCell):
    """Gated linear attention (Yang et al., "Gated linear attention transformers with hardware-efficient
    training", 2024, section 4): linear attention with a decay for each key feature. For each head:

        q, k, v = W_q x + b_q, W_k x + b_k, W_v x + b_v
        a  = sigmoid(W_2 W_1 x + b_a) ** (1 / 16)           W_1 has decay_rank rows
        S' = a * S + k v^T                                  row by row of S
        y  = q S'

    Its state is S, [n, heads, keys, values]. All weights are drawn as those of torch.nn.Linear. In the
    paper's layer keys have half the width, and a norm of each head and a gate come after y.

    Arguments and errors as of `DeltaNet`; `decay_rank` is how many features lie between W_1 and W_2, and b_a
    exists always.

    >>> cell = GLA(3, 4, heads=2)
    >>> y, S = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape, S.shape
    (torch.Size([2, 4]), torch.Size([2, 2, 2, 2]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int = 1,
        key_size: int | None = None,
        decay_rank: int = 16,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, heads, key_size, bias, device, dtype)
        rank = positive_size(self, "decay_rank", decay_rank)
        self.decay = nn.Sequential(
            nn.Linear(self.input_size, rank, False, device, dtype),
            nn.Linear(rank, self.key_size, True, device, dtype),
        )

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        q, k, v = self.by_head(self.query(x)), self.by_head(self.key(x)), self.by_head(self.value(x))
        decay = torch.exp(F.logsigmoid(self.by_head(self.decay(x))) / TEMPERATURE)
        new = decay.unsqueeze(-1) * state + outer(k, v)
        return lookup(new, q).flatten(-2), new
