"""The selective state space of Mamba, S6."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cell import check_factory, positive_size

SHORTEST, LONGEST = 1e-3, 0.1  # time steps at the start


class SelectiveSSM(nn.Module):
    """The selective state space model S6 (Gu and Dao, "Mamba: linear-time sequence modeling with selective
    state spaces", 2023, section 3.2): what Mamba scans.

        t, B, C = W x                                       of dt_rank, state_size and state_size features
        dt = softplus(W_t t + b_t)                          [n, size], the time that a step takes
        A  = -exp(A_log)                                    [size, state_size]
        h' = exp(dt A) * h + (dt * x) B^T
        y  = h' C + D * x

    Its state is h, [n, size, state_size]. Parameters are named, shaped and drawn as in the authors' Mamba
    block (x_proj, dt_proj, A_log, D): A is -1, -2, ..., D is 1, and dt starts log-uniformly from 0.001 to
    0.1. The block has a linear layer and a short convolution before, a gate and a linear layer after it.

    Args:
        size: features of x and y.
        state_size: numbers that each feature carries.
        dt_rank: features of t; None for a sixteenth of size.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        StepError: a size is no positive whole number.

    >>> cell = SelectiveSSM(3, state_size=4)
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape, h.shape
    (torch.Size([2, 3]), torch.Size([2, 3, 4]))
    """

    def __init__(
        self,
        size: int,
        state_size: int = 16,
        dt_rank: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = self.hidden_size = size = positive_size(self, "size", size)
        check_factory(self, device, dtype)
        self.state_size = state_size = positive_size(self, "state_size", state_size)
        self.dt_rank = positive_size(self, "dt_rank", math.ceil(size / 16) if dt_rank is None else dt_rank)
        self.x_proj = nn.Linear(size, self.dt_rank + 2 * state_size, False, device, dtype)
        self.dt_proj = nn.Linear(self.dt_rank, size, True, device, dtype)
        self.A_log = nn.Parameter(torch.empty(size, state_size, device=device, dtype=dtype))
        self.D = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.x_proj.reset_parameters()
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        draw_steps(self.dt_proj.bias)
        nn.init.ones_(self.D)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, self.state_size + 1, device=self.A_log.device).log())

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        t, b, c = self.x_proj(x).split([self.dt_rank, self.state_size, self.state_size], dim=-1)
        dt = F.softplus(self.dt_proj(t)).unsqueeze(-1)
        decay = torch.exp(dt * -torch.exp(self.A_log))
        h = decay * state + dt * x.unsqueeze(-1) * b.unsqueeze(-2)
        y = (h * c.unsqueeze(-2)).sum(-1) + self.D * x
        return y, h

    def initial_state(self, n: int) -> Tensor:
        """h of n sequences: zeros."""
        return self.A_log.new_zeros(n, self.hidden_size, self.state_size)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, state_size={self.state_size}, dt_rank={self.dt_rank}"


def draw_steps(biases: Tensor) -> None:
    """Fill the biases of time steps so that softplus of them is log-uniform from SHORTEST to LONGEST."""
    with torch.no_grad():
        steps = nn.init.uniform_(biases, math.log(SHORTEST), math.log(LONGEST)).exp_()
        biases.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus
