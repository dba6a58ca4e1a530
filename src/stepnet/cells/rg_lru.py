"""The RG-LRU cell of Griffin."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepnet.data.arguments import truth

from .cell import check_factory, positive_size

SHARPNESS = 8.0  # c of the paper


class RGLRU(nn.Module):
    """The real-gated linear recurrent unit (De et al., "Griffin: mixing gated linear recurrences with local
    attention for efficient language models", 2024, section 2.4): a decay for each feature, between 0 and 1,
    that a gate brings nearer to 1.

        r  = sigmoid(W_a x + b_a)                           recurrence gate
        i  = sigmoid(W_x x + b_x)                           input gate
        a  = sigmoid(L) ** (8 r)                            computed as exp(-8 r softplus(-L))
        h' = a * h + sqrt(1 - a**2) * (i * x)
        y  = h'

    Its state is h, [n, size]. The decays sigmoid(L)**8 are drawn uniformly from 0.9 to 0.999, the weights as
    LeCun's (variance 1 / size), the biases as zeros. The paper puts a linear layer and a short convolution
    before the cell.

    Args:
        size: features of x and of h.
        bias: whether b_a and b_x exist.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        StepError: the size is no positive whole number.

    >>> cell = RGLRU(3)
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = self.hidden_size = size = positive_size(self, "size", size)
        truth("RGLRU 'bias'", bias)
        check_factory(self, device, dtype)
        self.recurrence_gate = nn.Linear(size, size, bias, device, dtype)
        self.input_gate = nn.Linear(size, size, bias, device, dtype)
        self.decay = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for gate in (self.recurrence_gate, self.input_gate):
            nn.init.normal_(gate.weight, std=1 / math.sqrt(self.hidden_size))
            if gate.bias is not None:
                nn.init.zeros_(gate.bias)
        with torch.no_grad():
            nn.init.uniform_(self.decay, 0.9, 0.999)
            self.decay.pow_(1 / SHARPNESS).logit_()

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        log_a = -SHARPNESS * torch.sigmoid(self.recurrence_gate(x)) * F.softplus(-self.decay)
        kept = torch.exp(log_a)
        # The root has no derivative at 0, where the gate is zero in floating point.
        share = (-torch.expm1(2 * log_a)).clamp(min=torch.finfo(x.dtype).tiny).sqrt()
        h = kept * state + share * (torch.sigmoid(self.input_gate(x)) * x)
        return h, h

    def initial_state(self, n: int) -> Tensor:
        """h of n sequences: zeros."""
        return self.decay.new_zeros(n, self.hidden_size)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}"
