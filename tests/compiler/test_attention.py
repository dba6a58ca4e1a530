"""Attention of torch's own inside a step."""

from __future__ import annotations

import torch
from torch import nn

from outcomes import as_the_plain_loop

DTYPE = torch.float64


class Attends(nn.Module):
    """Its kernel of the CPU is tagged as one that draws noise, which it does to drop something."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, add_zero_attn=True, dtype=DTYPE)

    def forward(self, x, h):
        both = torch.stack([x, h], 1)
        h = torch.tanh(self.attention(both, both, both, need_weights=False)[0].sum(1))
        return h, h


def test_attention_that_drops_nothing_has_a_plan():
    x, h = (torch.linspace(-1, 2, n, dtype=DTYPE).sin().view(*s, 4) for n, s in ((24, (3, 2)), (8, (2,))))
    as_the_plain_loop(Attends(), x.requires_grad_(), h.requires_grad_(), "eager")
