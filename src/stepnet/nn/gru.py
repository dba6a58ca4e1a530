"""GRU as a drop-in for torch.nn.GRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stepnet.cells.gru import gru_step
from stepnet.typed import Marks, Rows

from .base import RNNBase
from .batch import Batch


class GRU(RNNBase):
    """Gated recurrent units in layers, for torch.nn.GRU: same arguments, parameters, initialisation,
    `state_dict` (loads either way) and calls. See `stepnet.cells.GRU` for the equations, and LSTM here for
    the arguments and shapes: there is no proj_size, hx and h_n are one tensor.

    Unlike torch.nn's it also takes LoDTensors, sequences of no steps and batches of no sequences.

    Raises:
        StepError: an argument, the input or hx does not fit; the text says which.

    >>> y, h = GRU(3, 4)(torch.zeros(5, 2, 3))
    >>> y.shape, h.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]))
    """

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
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

    if TYPE_CHECKING:

        def __call__(
            self, input: Rows, hx: Tensor | None = None, resets: Marks = None
        ) -> tuple[Rows, Tensor]: ...

    @property
    def step(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """`step(x, h, weight_ih=..., weight_hh=..., ...)`: one step of any layer and direction."""
        return _step

    def _cast_to(self, low: torch.dtype, batch: Batch, *state: Tensor) -> tuple[torch.dtype, ...]:
        """The update mixes h itself into the result, which so keeps the dtype of the state."""
        return (torch.promote_types(low, state[0].dtype),) * 2


def _step(x: Tensor, h: Tensor, **weights: Tensor) -> tuple[Tensor, Tensor]:
    h = gru_step(x, h, **weights)
    return h, h
