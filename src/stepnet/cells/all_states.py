"""Every state of every step, on request."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .wrapper import Wrapper


class AllStates(Wrapper):
    """A cell whose y is (y, new state), so that a run gives every state of every step.

    Args:
        cell: a cell, a cell of torch.nn, or any step.

    >>> import torch
    >>> from stepnet import recurrent
    >>> from stepnet.cells import LSTM
    >>> (y, (h, c)), final = recurrent(AllStates(LSTM(3, 4)), torch.zeros(5, 2, 3))
    >>> c.shape
    torch.Size([5, 2, 4])
    """

    def forward(self, x: Any, state: Any, mask: Tensor | None = None) -> tuple[Any, Any]:
        """One step."""
        y, new = self.inner(x, state, mask)
        return (y, new), new
