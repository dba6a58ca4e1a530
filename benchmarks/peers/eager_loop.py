"""A loop over the steps in torch, as one writes it; over padded steps where the input is ragged.

Nothing masks the padding, which spares the loop some work: y and gradients are right without (the final state
would not be).
"""

from __future__ import annotations

from benchmarks.harness import Contender
from benchmarks.work import Setting, plain_loop

from .way import Way, as_contenders


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    return as_contenders(ways(setting), training)


def ways(setting: Setting) -> dict[str, Way]:
    """`loop`."""
    cell = setting.cell
    x = setting.x.clone().requires_grad_()
    return {
        "loop": Way(
            setting,
            lambda: plain_loop(cell, x, cell.initial_state(setting.size.B)),
            x,
            setting.weights,
            setting.seeds,
            setting.to_rows,
        )
    }
