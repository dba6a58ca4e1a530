"""What every cell shares: its sizes, its weights as torch.nn names them, and how they are drawn."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepnet.data.arguments import brief, size, truth
from stepnet.errors import StepError


class Cell(nn.Module):
    """A step with its parameters: `forward(x, state) -> (y, new_state)` and `initial_state(n)`.

    x is [n, input_size], y is [n, hidden_size]: a row for each sequence still running. Parameters are
    named, shaped and drawn as those of torch.nn's cells, uniform within 1 / sqrt(hidden_size); the gates
    of a cell are blocks of hidden_size rows in its weights, in the order that the cell's page gives.

    Args:
        input_size: features of x.
        hidden_size: features of y and of each state.
        bias: whether the gates have biases.
        device: of the parameters.
        dtype: of the parameters.

    Attributes:
        gates: how many blocks of rows the weights have.
        recurrent: whether weight_hh and bias_hh exist.
        biased: whether biases of the gates are what `bias` asks for.

    Raises:
        StepError: a size is no positive whole number.

    >>> class Leaky(Cell):
    ...     gates = 1
    ...     def forward(self, x, h):
    ...         h = 0.9 * h + 0.1 * torch.tanh(self.both_products(x, h, None))
    ...         return h, h
    >>> cell = Leaky(3, 4)
    >>> cell.weight_hh.shape, cell(torch.zeros(2, 3), torch.zeros(2, 4))[0].shape
    (torch.Size([4, 4]), torch.Size([2, 4]))
    """

    gates: ClassVar[int]
    recurrent: ClassVar[bool] = True
    biased: ClassVar[bool] = True

    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias_ih: nn.Parameter | None
    bias_hh: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size = positive_size(self, "input_size", input_size)
        self.hidden_size = hidden_size = positive_size(self, "hidden_size", hidden_size)
        self.bias = truth(f"{type(self).__name__} 'bias'", bias)
        check_factory(self, device, dtype)
        rows = self.gates * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size, device=device, dtype=dtype))
        if self.recurrent:
            self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh")[: 2 if self.recurrent else 1]:
            values = torch.empty(rows, device=device, dtype=dtype) if bias and self.biased else None
            self.register_parameter(name, None if values is None else nn.Parameter(values))
        self.reset_parameters()
        self.add_parameters(device=device, dtype=dtype)

    def add_parameters(self, **like: Any) -> None:
        """Make what a cell has besides; called once."""

    def reset_parameters(self) -> None:
        """Draw all parameters anew; without weight_hh as those of torch.nn.Linear."""
        draw(self.parameters(recurse=False), self.hidden_size if self.recurrent else self.input_size)

    def initial_state(self, n: int) -> Any:
        """The state of n sequences before their first step."""
        raise NotImplementedError

    def both_products(self, x: Tensor, h: Tensor, mask: Tensor | None) -> Tensor:
        """The gates before their activations: W_ih x + b_ih + W_hh h + b_hh, h times a dropout mask."""
        return F.linear(x, self.weight_ih, self.bias_ih) + F.linear(
            seen(h, mask), self.weight_hh, self.bias_hh
        )

    def zeros(self, n: int) -> Tensor:
        """[n, hidden_size] zeros beside the parameters."""
        weight = self._parameters.get("weight_ih")  # found so in a tenth of the time, if it is still there
        return (self.weight_ih if weight is None else weight).new_zeros(n, self.hidden_size)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


def positive_size(module: nn.Module, name: str, value: Any) -> int:
    """A size that a layer can be built with, or an error that names it."""
    return size(f"{type(module).__name__} '{name}'", value)


def check_factory(module: nn.Module, device: Any, dtype: Any) -> None:
    """Refuse what parameters cannot be made on, or of."""
    name = type(module).__name__
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise StepError(
            f"{name} 'dtype' must be a floating point torch.dtype",
            got=brief(dtype),
            expected="torch.float32, say, or None for torch's default",
        )
    try:
        if device is not None:
            torch.device(device if not isinstance(device, bool) else "bool")
    except (TypeError, ValueError, RuntimeError) as error:
        raise StepError(
            f"{name} 'device' is no device", got=brief(device), expected="a torch.device, its name, or None"
        ) from error


def draw(parameters: Any, fan: int) -> None:
    """Fill each parameter uniformly within 1 / sqrt(fan), as torch.nn does."""
    bound = 1.0 / math.sqrt(fan)
    for values in parameters:
        nn.init.uniform_(values, -bound, bound)


def seen(h: Tensor, mask: Tensor | None) -> Tensor:
    """h as the recurrent weights see it: times a dropout mask, where there is one."""
    return h if mask is None else h * mask
