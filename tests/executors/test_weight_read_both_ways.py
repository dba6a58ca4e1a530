"""A small weight that is multiplied row by row, and read number by number beside that."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor

OPTIMISED = False


@pytest.mark.parametrize("spelled", ["a view", "the weight"])
def test_a_weight_of_nodes(spelled):
    torch.manual_seed(0)
    weight = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)

    def step(x, h):
        nodes = weight.t() if spelled == "a view" else weight
        z = torch.cat([x, h], -1)
        mixed = (z.transpose(1, 2) @ nodes).transpose(1, 2)
        h = torch.tanh(mixed[..., 1:] + nodes.sum(0)[:, None] * torch.sin(nodes[:, :3]))
        return (nodes.expand(x.shape[0], 6, 6) @ h).flatten(1), h

    x = LoDTensor.from_lengths(torch.randn(9, 6, 1, dtype=torch.float64), [[3, 0, 5, 1]])
    as_the_plain_loop(step, *wanting((x, torch.zeros(4, 6, 3, dtype=torch.float64))))
