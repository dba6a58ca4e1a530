"""Torch's recurrent cells, written out: its own functions ask for sizes as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _lstm(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]:
    h, c = hx
    i, f, g, o = (F.linear(h, w_hh, b_hh) + F.linear(input, w_ih, b_ih)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    r, z, n = F.linear(input, w_ih, b_ih).chunk(3, 1)
    own_r, own_z, own_n = F.linear(hx, w_hh, b_hh).chunk(3, 1)
    r, z = (own_r + r).sigmoid(), (own_z + z).sigmoid()
    n = (n + own_n * r).tanh()
    return (hx - n) * z + n


def _simple(act: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
    ) -> Tensor:
        return act(F.linear(hx, w_hh, b_hh) + F.linear(input, w_ih, b_ih))

    return cell


def _lstm_layers(
    input: Any, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any, train: Any,
    bidirectional: Any, batch_first: Any = False,
) -> Any:  # fmt: skip
    """Layers over a few steps. Without gradients torch runs them by a kernel whose trace no rule knows."""
    if not isinstance(batch_first, bool) or not isinstance(hx, Sequence) or isinstance(params, Tensor):
        return NotImplemented  # packed sequences
    h, c = hx
    ways = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(params) != num_layers * ways * each or (dropout and train) or input.dim() != 3:
        return NotImplemented  # projections
    steps = input.shape[1 if batch_first else 0]
    if type(steps) is not int or not 0 < steps <= _MOST_STEPS:
        return NotImplemented
    rows = list(input.unbind(1 if batch_first else 0))
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(num_layers):
        sides: list[list[Tensor]] = []
        for way in range(ways):
            at = layer * ways + way
            weights = params[at * each : (at + 1) * each]
            state = h[at], c[at]
            side: list[Tensor] = []
            for x in reversed(rows) if way else rows:
                state = _lstm(x, state, *weights)
                side.append(state[0])
            last.append(state)
            sides.append(side[::-1] if way else side)
        rows = [torch.cat(parts, -1) for parts in zip(*sides, strict=True)] if ways > 1 else sides[0]
    outputs = torch.stack(rows, 1 if batch_first else 0)
    return outputs, torch.stack([h for h, _ in last]), torch.stack([c for _, c in last])


_MOST_STEPS = 32  # that are written one after the other

TORCH_CELLS: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _simple(torch.tanh),
    torch.rnn_relu_cell: _simple(torch.relu),
}

TORCH_LAYERS: dict[Any, Callable[..., Any]] = {torch.lstm: _lstm_layers}
