"""RNN as a drop-in for torch.nn.RNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.cells.rnn import Nonlinearity, check_nonlinearity, rnn_step
from stepnet.typed import Marks, Rows

from .base import RNNBase


class RNN(RNNBase):
    """The simple recurrent network in layers, for torch.nn.RNN: same arguments, parameters, initialisation,
    `state_dict` (loads either way) and calls. See `stepnet.cells.RNN` for the equations, and LSTM here for
    the arguments and shapes: there is no proj_size, hx and h_n are one tensor.

    Unlike torch.nn's it also takes LoDTensors, sequences of no steps and batches of no sequences.

    Args:
        nonlinearity: "tanh" or "relu".

    Raises:
        StepError: an argument, the input or hx does not fit; the text says which.

    >>> y, h = RNN(3, 4, nonlinearity="relu")(torch.zeros(5, 2, 3))
    >>> y.shape, h.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]))
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Nonlinearity = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
        self.nonlinearity = check_nonlinearity(self, nonlinearity)

    if TYPE_CHECKING:

        def __call__(
            self, input: Rows, hx: Tensor | None = None, resets: Marks = None
        ) -> tuple[Rows, Tensor]: ...

    @property
    def step(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """`step(x, h, weight_ih=..., weight_hh=..., ...)`: one step of any layer and direction."""
        return _tanh_step if self.nonlinearity == "tanh" else _relu_step

    def extra_repr(self) -> str:
        shown = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity!r}"
        return super().extra_repr() + shown


def _tanh_step(x: Tensor, h: Tensor, **weights: Any) -> tuple[Tensor, Tensor]:
    h = rnn_step(x, h, **weights)
    return h, h


def _relu_step(x: Tensor, h: Tensor, **weights: Any) -> tuple[Tensor, Tensor]:
    h = rnn_step(x, h, nonlinearity="relu", **weights)
    return h, h
