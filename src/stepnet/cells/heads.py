"""What cells with heads share: a matrix for each head as the state, and projections cut into heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepnet.data.arguments import truth
from stepnet.errors import StepError

from .cell import check_factory, positive_size


class HeadsCell(nn.Module):
    """A cell whose state has a matrix for each head, from keys to values.

    x is [n, input_size], y is [n, hidden_size], the outputs of the heads side by side. Queries and keys have
    key_size features and values hidden_size, all heads together; `query`, `key` and `value` give them from x.

    Raises:
        StepError: a size is no positive whole number, or does not divide by the heads.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int = 1,
        key_size: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size = positive_size(self, "input_size", input_size)
        self.hidden_size = hidden_size = positive_size(self, "hidden_size", hidden_size)
        self.heads = heads = positive_size(self, "heads", heads)
        self.key_size = positive_size(self, "key_size", hidden_size if key_size is None else key_size)
        self.bias = truth(f"{type(self).__name__} 'bias'", bias)
        check_factory(self, device, dtype)
        for name in ("hidden_size", "key_size"):
            size = getattr(self, name)
            if size % heads:
                raise StepError(
                    f"{type(self).__name__} '{name}' must divide by its heads",
                    got=f"{size} for {heads} heads",
                    remedy=f"{name}={(size // heads + 1) * heads}, or other heads",
                )
        self.query = nn.Linear(input_size, self.key_size, bias, device, dtype)
        self.key = nn.Linear(input_size, self.key_size, bias, device, dtype)
        self.value = nn.Linear(input_size, hidden_size, bias, device, dtype)
        self.add_parameters(device=device, dtype=dtype)

    def add_parameters(self, **like: Any) -> None:
        """Make what a cell has besides; called once."""

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for linear in self.modules():
            if isinstance(linear, nn.Linear):
                linear.reset_parameters()

    def initial_state(self, n: int) -> Tensor:
        """The matrix of each head, [n, heads, keys, values], before anything was written: zeros."""
        return self.zeros(n, self.key_size // self.heads, self.hidden_size // self.heads)

    def by_head(self, rows: Tensor) -> Tensor:
        """[n, features] as [n, heads, features of a head]."""
        return rows.unflatten(-1, (self.heads, -1))

    def zeros(self, n: int, *sizes: int) -> Tensor:
        """[n, heads, *sizes] zeros beside the parameters."""
        return self.value.weight.new_zeros(n, self.heads, *sizes)

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        shown += f", heads={self.heads}" if self.heads > 1 else ""
        shown += f", key_size={self.key_size}" if self.key_size != self.hidden_size else ""
        return shown + ("" if self.bias else ", bias=False")


def outer(keys: Tensor, values: Tensor) -> Tensor:
    """[..., K] and [..., V] to [..., K, V]."""
    return keys.unsqueeze(-1) * values.unsqueeze(-2)


def lookup(matrices: Tensor, keys: Tensor) -> Tensor:
    """What matrices [..., K, V] hold at [..., K]: [..., V].

    >>> lookup(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 1.0]))
    tensor([3., 4.])
    """
    return (keys.unsqueeze(-1) * matrices).sum(-2)
