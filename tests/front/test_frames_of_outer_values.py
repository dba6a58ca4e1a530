"""In a frame: recurrences over values from outside run once, as the frame is written, whatever runs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet import Memory, RecurrentOp, Scope

OPTIMISED = False
CELL, X, H = nn.GRUCell(3, 4), torch.randn(5, 2, 3), torch.randn(2, 4)


def by_scopes() -> torch.Tensor:
    def stepnet_of_a_cell(step: Scope) -> None:
        step["h"] = CELL(step["x"], step["before"])

    scope = Scope({"x": X, "h0": H})
    RecurrentOp(stepnet_of_a_cell, ["x"], ["h"], [Memory("h", "before", init="h0")]).run(
        scope, keep_scopes=False
    )
    return scope["h"][-1]


WAYS = {
    "recurrent": lambda: stepnet.recurrent(CELL, X, H)[1],
    "a module": lambda: stepnet.Recurrent(CELL)(X, H)[1],
    "RecurrentOp": by_scopes,
}


@pytest.mark.parametrize("backend", ["c", "eager", "naive"])
def test_a_recurrence_of_outer_values(backend):
    stepnet.set_backend(backend)
    for name, way in WAYS.items():
        for _ in range(2):  # known, it takes another way
            loop = stepnet.create_whileloop([torch.tensor(0), torch.zeros(2, 4)])
            with loop.frame() as (s, h):
                loop.break_if(s == 3)
                loop.update(h, h * 0.5 + way())
                loop.update(s, s + 1)
            torch.testing.assert_close(loop.results[1], 1.75 * way(), msg=name)
