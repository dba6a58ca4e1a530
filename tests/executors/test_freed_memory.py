"""Memory that is freed between a recurrence and its backward: an error where it is read, no crash."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from forks import in_a_fork
from stepnet import LoDTensor, cells
from stepnet.errors import StepError

OPTIMISED = False
FREED = ("x", "state", "weight", "y")


def read_in_backward(backend: Any, ragged: bool) -> list[str]:
    """Those of FREED of which backward tells."""
    torch.manual_seed(0)
    told = []
    for freed in FREED:
        cell = cells.GRU(3, 4)
        rows = torch.randn((6, 3) if ragged else (4, 2, 3), requires_grad=True)
        state = torch.randn(2, 4, requires_grad=True)
        x = LoDTensor(rows, [[0, 4, 6]]) if ragged else rows
        y, _ = stepnet.recurrent(cell, x, state, backend=backend)
        y = y.values if isinstance(y, LoDTensor) else y
        {"x": rows, "state": state, "weight": cell.weight_hh, "y": y}[freed].untyped_storage().resize_(0)
        try:
            torch.autograd.grad([y], [rows], [torch.ones(y.shape)])
        except StepError as error:
            told += [freed] if "was freed before the loop ran" in error.where else []
    return told


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize("backend", ["eager", "c"])
def test_backward_tells_of_memory_that_was_freed(backend, ragged):
    assert in_a_fork(read_in_backward, backend, ragged) == [*FREED]
