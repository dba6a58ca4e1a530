"""stepnet: its modules, or `recurrent` over the cell; and an LSTM as a user writes it, in five lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import stepnet
from benchmarks.harness import Contender
from benchmarks.work import Setting
from stepnet import LoDTensor

from . import FIVE_LINES
from .way import Way, as_contenders


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    return as_contenders(ways(setting), training)


def ways(setting: Setting) -> dict[str, Way]:
    """`stepnet`, and for the LSTM `five lines`."""
    modules = {"lstm": stepnet.nn.LSTM, "gru": stepnet.nn.GRU}
    cell, H = setting.cell, setting.size.H
    if setting.work.name in modules:
        module = modules[setting.work.name](H, H)
        module.load_state_dict({f"{name}_l0": weight for name, weight in setting.weights.items()})
        weights = {name.removesuffix("_l0"): weight for name, weight in module.named_parameters()}
        found = {"stepnet": _way(setting, module, weights)}
    else:
        found = {"stepnet": _way(setting, lambda x: stepnet.recurrent(cell, x), setting.weights)}
    if setting.work.name == "lstm":
        step = five_lines(**setting.weights)

        def user(x: Any) -> Any:
            h, c = torch.zeros(2, setting.size.B, H)
            return stepnet.recurrent(step, x, (h, c))

        found[FIVE_LINES] = _way(setting, user, setting.weights)
    return found


def five_lines(weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Callable:
    """An LSTM of one's own."""

    def lstm(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, g, o = (x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, (h, c)

    return lstm


def _way(setting: Setting, run: Callable[[Any], Any], weights: Mapping[str, Tensor]) -> Way:
    if not setting.ragged:
        x = setting.x.clone().requires_grad_()
        return Way(setting, lambda: run(x)[0], x, weights, setting.seeds, setting.to_rows)
    x = setting.to_rows(setting.x).requires_grad_()
    lod = LoDTensor.from_lengths(x.detach(), [setting.lengths]).lod
    seeds = setting.to_rows(setting.seeds)
    return Way(setting, lambda: run(LoDTensor(x, lod))[0].values, x, weights, seeds, lambda rows: rows)
