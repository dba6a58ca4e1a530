"""torch.compile of the loop: it unrolls all steps, compiles for minutes, and again for another number."""

from __future__ import annotations

import torch

from benchmarks.harness import Contender
from benchmarks.work import Setting, plain_loop

from .way import Way, as_contenders


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    return as_contenders(ways(setting), training)


def ways(setting: Setting) -> dict[str, Way]:
    """`torch.compile`."""
    torch.compiler.reset()
    cell = setting.cell
    loop = torch.compile(plain_loop, fullgraph=True, dynamic=False)
    x = setting.x.clone().requires_grad_()
    return {
        "torch.compile": Way(
            setting,
            lambda: loop(cell, x, cell.initial_state(setting.size.B)),
            x,
            setting.weights,
            setting.seeds,
            setting.to_rows,
        )
    }
