"""A loop over the steps in torch, with a step that torch.compile compiled: once, for any number of steps."""

from __future__ import annotations

import torch

from benchmarks.harness import Contender
from benchmarks.work import Setting, plain_loop

from .way import Way, as_contenders


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    return as_contenders(ways(setting), training)


def ways(setting: Setting, backend: str = "inductor") -> dict[str, Way]:
    """`compiled step`."""
    torch.compiler.reset()
    cell = setting.cell
    step = torch.compile(lambda x, state: cell(x, state), fullgraph=True, dynamic=False, backend=backend)
    x = setting.x.clone().requires_grad_()
    return {
        "compiled step": Way(
            setting,
            lambda: plain_loop(step, x, cell.initial_state(setting.size.B)),
            x,
            setting.weights,
            setting.seeds,
            setting.to_rows,
        )
    }
