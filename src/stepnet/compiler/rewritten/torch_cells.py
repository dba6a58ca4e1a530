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


TORCH_CELLS: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _simple(torch.tanh),
    torch.rnn_relu_cell: _simple(torch.relu),
}
