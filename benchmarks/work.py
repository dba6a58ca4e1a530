"""What recurrences are measured on: cells, sizes, inputs, and the values that all contenders must have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepnet import cells


class Size(NamedTuple):
    """Steps, sequences, and features of both the input and the state."""

    T: int
    B: int
    H: int

    def __str__(self) -> str:
        return f"{self.T},{self.B},{self.H}"


SIZES = (
    Size(100, 32, 64),
    Size(500, 32, 64),
    Size(200, 1, 128),
    Size(1000, 8, 128),
    Size(100, 32, 256),
    Size(50, 128, 512),
)
SMALL = (Size(12, 5, 16),)


class WindowLSTM(nn.Module):
    """A cell that no library has: products of what x and h say (multiplicative integration, Wu et al., 2016),
    one gate for keeping and writing, and an output gate that is open near zero and shut on both sides."""

    def __init__(self, features: int) -> None:
        super().__init__()
        bound = features**-0.5
        self.weight_ih = nn.Parameter(torch.empty(3 * features, features).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(3 * features, features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(3 * features).uniform_(-bound, bound))
        self.alpha = nn.Parameter(torch.ones(3 * features))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        a, b = F.linear(x, self.weight_ih), F.linear(h, self.weight_hh)
        f, g, o = (self.alpha * a * b + a + b + self.bias).chunk(3, -1)
        c = torch.sigmoid(f) * c + (1 - torch.sigmoid(f)) * torch.tanh(g)
        h = torch.exp(-o * o) * torch.tanh(c)
        return h, (h, c)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        """(h, c) of n sequences: zeros."""
        zeros = self.weight_hh.new_zeros(n, self.weight_hh.shape[1])
        return zeros, zeros.clone()


def _layer_norm_lstm(features: int) -> nn.Module:
    """With a gain of 1 this cell is chaotic before it is trained: after 100 steps float32 and float64 have no
    digits in common, in any of the contenders."""
    cell = cells.LayerNormLSTM(features, features)
    nn.init.constant_(cell.norm_hh.weight, 0.3)
    return cell


@dataclass(frozen=True)
class Work:
    """A cell to run, by the name of its topic. `make(H)` gives it for H features in and out."""

    name: str
    title: str
    make: Callable[[int], Any]


WORKS = {
    work.name: work
    for work in (
        Work("lstm", "LSTM", lambda H: cells.LSTM(H, H)),
        Work("gru", "GRU", lambda H: cells.GRU(H, H)),
        Work("layer_norm_lstm", "layer-norm LSTM", _layer_norm_lstm),
        Work("peephole_lstm", "peephole LSTM", lambda H: cells.PeepholeLSTM(H, H)),
        Work("slstm", "sLSTM", lambda H: cells.SLSTM(H, H)),
        Work("min_gru", "minGRU", lambda H: cells.MinGRU(H, H)),
        Work("window_lstm", "a cell that no library has", WindowLSTM),
    )
}


class Setting:
    """A work on a size, dense or ragged: the cell with its weights, the input, and the expected values.

    Ragged lengths are uniform in [T/10, T] from a fixed seed; what needs padding is padded to the longest.
    """

    def __init__(self, work: Work, size: Size, ragged: bool) -> None:
        self.work, self.size, self.ragged = work, size, ragged
        T, B, H = size
        draw = torch.Generator().manual_seed(T * B + H)
        if ragged:
            self.lengths = torch.randint(max(T // 10, 1), T + 1, (B,), generator=draw)
        else:
            self.lengths = torch.full((B,), T)
        self.steps = int(self.lengths.max())
        self.rows = int(self.lengths.sum())
        self.valid = torch.arange(self.steps)[:, None] < self.lengths
        # time first, zero where there is no row; the gradients of y, so scaled that weights get about 1
        self.x = torch.randn(self.steps, B, H, generator=draw) * self.valid[:, :, None]
        self.seeds = torch.randn(self.x.shape, generator=draw) * self.valid[:, :, None] / self.rows**0.5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(H)
            self.cell = work.make(H)
        self.weights: dict[str, Tensor] = dict(self.cell.named_parameters())

    @property
    def name(self) -> str:
        return f"{self.size} {'ragged' if self.ragged else 'dense'}"

    def to_rows(self, padded: Tensor) -> Tensor:
        """The rows that exist, sequence after sequence, of a tensor [T, B, ...]."""
        return padded.transpose(0, 1)[self.valid.T]

    def flops(self, training: bool) -> int:
        """What the matmuls of the rows that exist need; nothing is counted for padding or pointwise work.

        Training has two more products for each one forward: the gradients of its two operands.
        """
        weights = sum(weight.numel() for weight in self.weights.values() if weight.dim() == 2)
        return 2 * self.rows * weights * (3 if training else 1)

    @cached_property
    def expected(self) -> dict[str, Tensor]:
        """y and all gradients by a plain loop in float64, over padded steps: padding never reaches a row."""
        cell = copy.deepcopy(self.cell).double()
        x = self.x.double().requires_grad_()
        y = plain_loop(cell, x, cell.initial_state(self.size.B))
        grads = torch.autograd.grad(y, [x, *cell.parameters()], self.seeds.double())
        of_weights = dict(zip(self.weights, grads[1:], strict=True))
        return named(self.to_rows(y.detach()), self.to_rows(grads[0]), of_weights)

    def relative(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values over the largest expected one of their name, so that one tolerance fits all of them."""
        largest = {name: float(value.abs().max()) for name, value in self.expected.items()}
        return {name: value.double() / largest[name] for name, value in values.items()}

    def target(self, training: bool) -> dict[str, Tensor]:
        """What the `relative` values of a contender must be."""
        return self.relative(self.expected if training else {"y": self.expected["y"]})


def named(y: Tensor, grad_x: Tensor, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """y and gradients by the names that all contenders give them."""
    return {"y": y, "gradient of x": grad_x} | {f"gradient of {name}": grad for name, grad in grads.items()}


def plain_loop(step: Any, x: Tensor, state: Any) -> Tensor:
    """y of a step over x [T, B, ...], as one writes it in a few lines."""
    ys = []
    for x_t in x.unbind():
        y, state = step(x_t, state)
        ys.append(y)
    return torch.stack(ys)
