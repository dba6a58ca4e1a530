"""The steps of `ir_models` once more, in torch and with the same weights: stepnet writes IR from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stepnet
from stepnet import cells


def _set(parameter: Tensor, *values: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.cat([torch.from_numpy(v).flatten() for v in values]).reshape(parameter.shape))


def _lstm(drawn: Sequence[np.ndarray]) -> nn.Module:
    n = drawn[0].shape[1]
    return _with_gates(cells.LSTM(n, n), drawn)


def _peephole_lstm(drawn: Sequence[np.ndarray]) -> nn.Module:
    n = drawn[0].shape[1]
    cell = _with_gates(cells.PeepholeLSTM(n, n), drawn)
    _set(cell.weight_c, *drawn[3:])
    return cell


def _with_gates(cell: Any, drawn: Sequence[np.ndarray]) -> Any:
    _set(cell.weight_ih, drawn[0])
    _set(cell.weight_hh, drawn[1])
    _set(cell.bias_ih, drawn[2])
    nn.init.zeros_(cell.bias_hh)
    return cell


def _layer_norm_lstm(drawn: Sequence[np.ndarray]) -> nn.Module:
    n = drawn[0].shape[1]
    cell = cells.LayerNormLSTM(n, n)
    for name, values in zip(("weight_ih", "norm_ih.bias", "weight_hh", "norm_hh.bias", "norm_c.bias"), drawn,
                            strict=True):  # fmt: skip
        _set(cell.get_parameter(name), values)
    nn.init.constant_(cell.norm_hh.weight, 0.3)
    return cell


class _AttentionGRU(nn.Module):
    """Its state is (h, memory); the memory does not change."""

    def __init__(self, drawn: Sequence[np.ndarray]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.from_numpy(value) for value in drawn])

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, memory = state
        of_memory, of_h, score, w, r, b = self.weights
        n = h.shape[1]
        scores = (torch.tanh(memory @ of_memory + (h @ of_h).unsqueeze(1)) * score).sum(-1)
        context = (torch.softmax(scores, 1).unsqueeze(1) @ memory).squeeze(1)
        x_z, x_r, x_n = (torch.cat([x, context], 1) @ w.T + b[: 3 * n]).chunk(3, 1)
        h_z, h_r, h_n = (h @ r.T).chunk(3, 1)
        z = torch.sigmoid(x_z + h_z)
        new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * (h_n + b[3 * n :]))
        h = (1 - z) * new + z * h
        return h, (h, memory)


TWINS: dict[str, Callable[[Sequence[np.ndarray]], nn.Module]] = {
    "LSTM": _lstm,
    "peephole LSTM": _peephole_lstm,
    "layer-norm LSTM": _layer_norm_lstm,
    "attention GRU": _AttentionGRU,
}


class Twin(nn.Module):
    """A step over x [B, T, n] from initial states: all rows of y, and the last h."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, Tensor]:
        y, last = stepnet.recurrent(self.step, x, states, axis=1)
        return y, last[0]
