"""The simple recurrent cell."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepnet.data.arguments import choice

from .cell import Cell, seen

Nonlinearity: TypeAlias = Literal["tanh", "relu"]
NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu}


def rnn_step(
    x: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    nonlinearity: Nonlinearity = "tanh",
    mask: Tensor | None = None,
) -> Tensor:
    """One step of the simple recurrent network; returns the new h.

    >>> rnn_step(torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), nonlinearity="relu")
    tensor([[1.]])
    """
    new = NONLINEARITIES[nonlinearity](
        F.linear(x, weight_ih, bias_ih) + F.linear(seen(h, mask), weight_hh, bias_hh)
    )
    return new.to(h.dtype)  # under autocast both products have the lower precision, and so would the state


def check_nonlinearity(module: nn.Module, name: Nonlinearity) -> Nonlinearity:
    """The name of a known nonlinearity, or an error."""
    what = f"{type(module).__name__} 'nonlinearity'"
    return choice(what, name, NONLINEARITIES, remedy="for another, write the step yourself")


class RNN(Cell):
    """The simple recurrent cell (Elman, "Finding structure in time", 1990).

        h' = tanh(W_ih x + b_ih + W_hh h + b_hh)        or relu in place of tanh
        y  = h'

    Its state is h, [n, hidden_size]. A `state_dict` of torch.nn.RNNCell loads into it, and back.

    Args:
        input_size: features of x.
        hidden_size: features of h.
        bias: whether b_ih and b_hh exist.
        nonlinearity: "tanh" or "relu".
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        StepError: a size is no positive whole number, or the nonlinearity is another.

    >>> cell = RNN(3, 4)
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Nonlinearity = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity: Nonlinearity = check_nonlinearity(self, nonlinearity)

    def forward(self, x: Tensor, state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step; `mask` multiplies h where it meets weight_hh."""
        h = rnn_step(
            x, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.nonlinearity, mask
        )
        return h, h

    def initial_state(self, n: int) -> Tensor:
        """h of n sequences: zeros."""
        return self.zeros(n)
