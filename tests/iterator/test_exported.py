"""TensorIterators in programs of torch.export."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import stepnet
from stepnet import BackEdge, InputPort, OutputPort
from stepnet.graph import CAN_CAPTURE

PORTS = [InputPort("x", "x", axis=0), InputPort("h", "h"), OutputPort("y", 0, axis=0), OutputPort("last", 1)]


class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear = self.linear = torch.nn.Linear(3, 3)

        def body(x, h):
            h = torch.tanh(linear(x.squeeze(0)) + h)
            return h.unsqueeze(0), h

        self.loop = stepnet.TensorIterator(body, PORTS, [BackEdge(1, "h")])

    def forward(self, x, h):
        return self.loop(x, h).tuple()


def test_any_number_of_rows_and_a_fixed_one_of_steps():
    model, given = Sums(), (torch.randn(4, 2, 3), torch.zeros(2, 3))
    rows = Dim("rows")
    program = torch.export.export(model, given, dynamic_shapes=({1: rows}, {0: rows}), strict=False)
    other = torch.randn(4, 5, 3), torch.zeros(5, 3)
    for found, wanted in zip(program.module()(*other), model(*other), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(not CAN_CAPTURE, reason="this torch has other errors of sizes that are open")
def test_a_number_of_steps_that_is_left_open_is_refused():
    model, given = Sums(), (torch.randn(4, 2, 3), torch.zeros(2, 3))
    with pytest.raises(stepnet.errors.LoopError, match="number of steps is left open"):
        torch.export.export(model, given, dynamic_shapes=({0: Dim.DYNAMIC}, {}), strict=False)
