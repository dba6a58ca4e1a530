"""Every cell of the zoo, in training by generated C: the numbers of the plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from covering import few
from stepnet import LoDTensor, recurrent
from stepnet.data.tree import flatten

from . import algorithms, fields, gated, matrix

ZOO = {**gated.ZOO, **matrix.ZOO, **algorithms.ZOO, **fields.ZOO}
LENGTHS = [3, 0, 1, 4]
# Of each family some; every kind of state, of loops in the step and of linear algebra is among them.
FEW = [
    "RGLRU", "CoRNN", "PhasedLSTM", "Clockwork", "LIF", "CharLevel",
    "MixtureOfExperts", "ConvLSTM", "NeuralGPU", "RWKV6", "Mamba2", "DeltaNet", "FastWeights", "LRU",
    "UnitaryRNN", "WindowAttention", "SquareRootFilter", "RecursiveLeastSquares", "Sinkhorn", "SortedMixture",
    "DCGRU", "NodesFirst", "InteractingModels", "Codebook", "FourierOperator",
    "Beams", "RingBuffer", "Quantised", "Counters", "SplineFlow", "NTM",
]  # fmt: skip


def made(name: str) -> tuple[torch.nn.Module, Tensor, tuple[Tensor, ...]]:
    kind = ZOO[name]
    torch.manual_seed(0)
    cell = kind.make().double()
    x, states = kind.inputs(LENGTHS, torch.float64)
    if kind.floats == "complex":
        states = tuple(s.detach().to(torch.complex128).requires_grad_() for s in states)
    if kind.floats == "count":
        states = (*states[:-1], torch.zeros_like(states[-1], dtype=torch.uint8))
    return cell, x, states


def outcome(name: str, backend: str) -> tuple[list[Tensor], list[Tensor | None]]:
    """Results, and the gradients of x, the states and the weights."""
    cell, x, states = made(name)
    given = states if len(states) > 1 else states[0]
    y, finals = recurrent(cell, LoDTensor.from_lengths(x, [LENGTHS]), given, backend=backend)
    leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]]
    results = [*leaves, *flatten(finals)[0]]
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for t in results:
        if t.requires_grad:
            weight = torch.randn(t.shape, generator=generator, dtype=torch.float64)
            loss = loss + ((t.abs().square() if t.is_complex() else t) * weight).sum()
    wanted = [t for t in (x, *states, *cell.parameters()) if t.requires_grad]
    return [t.detach() for t in results], list(torch.autograd.grad(loss, wanted, allow_unused=True))


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("name", few(ZOO, FEW))
def test_a_cell_trains_as_in_the_plain_loop(name):
    ours = outcome(name, "c")
    plain = outcome(name, "naive")
    for a, b in zip(ours[0], plain[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    for a, b in zip(ours[1], plain[1], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
