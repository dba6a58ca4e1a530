"""LSTM as a drop-in for torch.nn.LSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.cells.lstm import lstm_step
from stepnet.typed import Marks, Rows

from .base import RNNBase
from .batch import Batch


class LSTM(RNNBase):
    """Long short-term memory in layers, for torch.nn.LSTM: same arguments, parameters, initialisation,
    `state_dict` (loads either way) and calls. See `stepnet.cells.LSTM` for the equations.

    Unlike torch.nn's it also takes LoDTensors, sequences of no steps and batches of no sequences.

    Args:
        input_size: features of the input.
        hidden_size: features of h and c.
        num_layers: layers, each over the output of the one before.
        bias: whether b_ih and b_hh exist.
        batch_first: batched tensors are [batch, time, features] instead of [time, batch, features].
        dropout: probability of dropout between layers, in training.
        bidirectional: a second direction, from the end of each sequence; outputs lie side by side.
        proj_size: features that h is projected to, 0 for none (Sak, Senior and Beaufays, 2014).
        device: of the parameters.
        dtype: of the parameters.

    The call `(input, hx=None) -> (output, (h_n, c_n))` has, for L = num_layers * directions:

        input                      output                            hx, (h_n, c_n)
        [T, B, F] or [B, T, F]     [T, B, D * H] or [B, T, D * H]    [L, B, H], [L, B, hidden_size]
        [T, F]                     [T, D * H]                        [L, H], [L, hidden_size]
        PackedSequence             PackedSequence                    as for B, in the order before packing
        LoDTensor                  LoDTensor                         as for B, sequences of the last level

    where D is 2 if bidirectional, and H is proj_size or hidden_size.

    Raises:
        StepError: an argument, the input or hx does not fit; the text says which.

    >>> rnn = LSTM(3, 4, num_layers=2, bidirectional=True)
    >>> y, (h, c) = rnn(torch.zeros(5, 2, 3))
    >>> y.shape, h.shape
    (torch.Size([5, 2, 8]), torch.Size([4, 2, 4]))
    """

    gates = 4

    if TYPE_CHECKING:

        def __call__(
            self, input: Rows, hx: tuple[Tensor, Tensor] | None = None, resets: Marks = None
        ) -> tuple[Rows, tuple[Tensor, Tensor]]: ...

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The features of h_0 and of c_0."""
        return {"h_0": self.proj_size or self.hidden_size, "c_0": self.hidden_size}

    @property
    def step(self) -> Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]:
        """`step(x, (h, c), weight_ih=..., weight_hh=..., ...)`: one step of any layer and direction."""
        return _step

    def _cast_to(self, low: torch.dtype, batch: Batch, *state: Tensor) -> tuple[torch.dtype, ...]:
        """Where torch has no kernel for all of it, c stays as it came, and what is no product is like c."""
        packed, kernel = isinstance(batch.given, PackedSequence), True
        if batch.rows.dtype == torch.float16:  # oneDNN has it for some CPUs, and never with gradients
            kernel = not torch.is_grad_enabled() and torch.ops.mkldnn._is_mkldnn_fp16_supported()
        kernel = kernel and not packed and not self.proj_size
        c = low if kernel else torch.promote_types(low, state[1].dtype)
        h = low if self.proj_size else c
        return h, h, c


def _step(x: Tensor, state: tuple[Tensor, Tensor], **weights: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, c = lstm_step(x, state, **weights)
    return h, (h, c)
