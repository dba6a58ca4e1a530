"""Every cell of the zoo, in training by generated C: the numbers of the plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from covering import few
from outcomes import outcome, same
from stepnet import LoDTensor, recurrent

from . import (
    agents,
    algorithms,
    dynamics,
    fields,
    gated,
    joined,
    lately,
    layered,
    linear,
    matrix,
    modules,
    recent,
    shapes,
    spelled,
    stores,
    systems,
    written,
)

ZOO = {
    **gated.ZOO, **matrix.ZOO, **algorithms.ZOO, **fields.ZOO, **linear.ZOO, **lately.ZOO, **stores.ZOO,
    **spelled.ZOO, **agents.ZOO, **systems.ZOO, **layered.ZOO, **modules.ZOO,
    **dynamics.ZOO, **shapes.ZOO, **recent.ZOO, **written.ZOO, **joined.ZOO,
}  # fmt: skip
LENGTHS = [3, 0, 1, 4]
# Of each family some; every kind of state, of loops in the step and of linear algebra is among them. Fourier
# transforms have tests of their own.
FEW = [
    "LIF", "CharLevel", "MixtureOfExperts", "ConvLSTM", "DeltaNet", "LRU", "SquareRootFilter", "Beams",
    "Counters", "NTM",
]  # fmt: skip


def made(name: str) -> tuple[torch.nn.Module, LoDTensor, Any]:
    kind = ZOO[name]
    torch.manual_seed(0)
    cell = kind.make().double()
    x, states = kind.inputs(LENGTHS, torch.float64)
    if kind.floats == "complex":
        states = tuple(s.detach().to(torch.complex128).requires_grad_() for s in states)
    if kind.floats == "count":
        states = (*states[:-1], torch.zeros_like(states[-1], dtype=torch.uint8))
    held = kind.form(*states) if kind.form else states if len(states) > 1 else states[0]
    return cell, LoDTensor.from_lengths(x, [LENGTHS]), held


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("name", few(ZOO, ["ConvLSTM", "LRU", "RefractorySpikes"]))
def test_a_cell_trains_as_in_the_plain_loop(name):
    if ZOO[name].noise:  # drawn in another order than by the plain loop: what `run` checks, with the same one
        recurrent(*made(name), backend="c")
        return
    ours, plain = (outcome(*made(name), backend) for backend in ("c", "naive"))
    same(ours[0], plain[0])
    theirs = plain[1]
    if name == "DreamerFirst":  # a weight of a way that no step went has zeros, as docs/operators.md says
        both = zip(ours[1], theirs, strict=True)
        theirs = [a if b is None and a is not None and not a.any() else b for a, b in both]
    same(ours[1], theirs, rtol=1e-7, atol=1e-9)
