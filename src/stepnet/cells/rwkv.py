"""The time mixing of RWKV."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stepnet.data.arguments import number

from .cell import check_factory, positive_size
from .slstm import LOG_NOTHING


class RWKVTimeMix(nn.Module):
    """Time mixing, the recurrent half of an RWKV block (Peng et al., "RWKV: reinventing RNNs for the
    transformer era", 2023, section 3.1; RWKV-4). With x' the input of the step before:

        r, k, v = W_r mix_r(x), W_k mix_k(x), W_v mix_v(x)      mix_j(x) = m_j * x + (1 - m_j) * x'
        wkv = (A + exp(u + k) v) / (B + exp(u + k))
        A'  = exp(-exp(w)) * A + exp(k) * v
        B'  = exp(-exp(w)) * B + exp(k)
        y   = W_o (sigmoid(r) * wkv)

    A and B are kept divided by exp(p), with p' = max(p - exp(w), k), so that no exponent is above zero.

    Its state is (x', A, B, p), each [n, size]; from the initial state (zeros; p = -10000, nothing seen) wkv
    of the first step is v. m, w and u start as in the authors' implementation, where they depend on the place
    of the block; the weights are drawn as those of torch.nn.Linear.

    Args:
        size: features of x, y and each state.
        depth: where in the network the block is: 0 for the first, 1 for the last.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        StepError: the size is no positive whole number, or depth is not 0 to 1.

    >>> cell = RWKVTimeMix(4)
    >>> y, (last, a, b, p) = cell(torch.zeros(2, 4), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        size: int,
        depth: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = self.hidden_size = size = positive_size(self, "size", size)
        check_factory(self, device, dtype)
        self.depth = number("RWKVTimeMix 'depth'", depth, 0, 1, kind="a share of the network")
        empty = (torch.empty(size, device=device, dtype=dtype) for _ in range(5))
        self.mix_r, self.mix_k, self.mix_v, self.decay, self.bonus = map(nn.Parameter, empty)
        linear = (nn.Linear(size, size, False, device, dtype) for _ in range(4))
        self.receptance, self.key, self.value, self.output = linear
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for linear in (self.receptance, self.key, self.value, self.output):
            linear.reset_parameters()
        with torch.no_grad():
            place = torch.arange(self.hidden_size, device=self.decay.device, dtype=self.decay.dtype)
            share, ahead = place / self.hidden_size, 1 - self.depth
            self.mix_k.copy_(share**ahead)
            self.mix_v.copy_(share**ahead + 0.3 * self.depth)
            self.mix_r.copy_(share ** (0.5 * ahead))
            across = place / max(self.hidden_size - 1, 1)
            self.decay.copy_(8 * across ** (0.7 + 1.3 * self.depth) - 5)
            self.bonus.copy_(math.log(0.3) + 0.5 * ((place + 1) % 3 - 1))

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """One step."""
        last, a, b, p = state
        r = self.receptance(torch.lerp(last, x, self.mix_r))
        k = self.key(torch.lerp(last, x, self.mix_k))
        v = self.value(torch.lerp(last, x, self.mix_v))
        most = torch.maximum(p, self.bonus + k)
        old, now = torch.exp(p - most), torch.exp(self.bonus + k - most)
        wkv = (old * a + now * v) / (old * b + now)
        faded = p - torch.exp(self.decay)
        p_new = torch.maximum(faded, k)
        old, now = torch.exp(faded - p_new), torch.exp(k - p_new)
        y = self.output(torch.sigmoid(r) * wkv)
        return y, (x, old * a + now * v, old * b + now, p_new)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(x', A, B, p) of n sequences: nothing seen."""
        last, a, b, p = self.decay.new_zeros(4, n, self.hidden_size).unbind()
        return last, a, b, p + LOG_NOTHING

    def extra_repr(self) -> str:
        return f"{self.hidden_size}" + (f", depth={self.depth}" if self.depth else "")
