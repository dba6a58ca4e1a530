"""Loops inside loops in IR: a Loop around, which OpenVINO takes where it refuses a TensorIterator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import plain_loops, runners
from stepnet import LoDTensor, cells
from stepnet.data.tree import flatten
from stepnet.errors import IRError
from stepnet.openvino import load, save
from stepnet.saving.padded import PaddedLoD


def held(path, inputs, expected):
    for run in runners(path, load(path)):
        for a, b in zip(run(inputs), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Rows(nn.Module):
    """Each step runs a recurrence over its own rows: one of a cell, or torch's GRU."""

    def __init__(self, inner, reverse):
        super().__init__()
        self.inner, self.outer, self.reverse = inner(3, 4), cells.MinGRU(4, 4), reverse

    def step(self, x, h):
        if isinstance(self.inner, nn.GRU):
            return self.outer(self.inner(x.transpose(0, 1), h[None])[1][0], h)
        _, a = stepnet.recurrent(self.inner, x, h, axis=1)
        return self.outer(a, h)

    def forward(self, x, h):
        return stepnet.recurrent(self.step, x, h, axis=0, reverse=self.reverse)


@pytest.mark.filterwarnings("ignore:step 'step' runs by the plain loop")
@pytest.mark.parametrize(("inner", "reverse"), few([(cells.GRU, False), (nn.GRU, True)], [(nn.GRU, True)]))
def test_a_recurrence_in_a_step(tmp_path, inner, reverse):
    module = Rows(inner, reverse).eval()
    save(module, tmp_path / "m.xml", (torch.randn(3, 2, 4, 3), torch.zeros(2, 4)))
    for steps, batch in ((3, 2), (5, 4), (1, 1)):
        inputs = [torch.randn(steps, batch, 6, 3), torch.randn(batch, 4)]
        with torch.no_grad(), plain_loops():
            held(tmp_path / "m.xml", inputs, flatten(module(*inputs))[0])


def test_parts_of_an_axis_are_refused(tmp_path):
    cell = cells.GRU(3, 4)
    loop = stepnet.TensorIterator(
        lambda part, h: stepnet.recurrent(cell, part, h, axis=1)[1],
        [
            stepnet.InputPort("x", "part", axis=1, part_size=2, stride=2),
            stepnet.InputPort("h0", "h"),
            stepnet.OutputPort("h", 0),
        ],
        [stepnet.BackEdge(0, "h")],
    )

    class Parts(nn.Module):
        def forward(self, x, h):
            return loop(x, h)

    with pytest.raises(IRError, match=r"(?s)it cuts parts of an axis, and runs a loop inside\n.*remedy"):
        save(Parts(), tmp_path / "m.xml", (torch.randn(2, 6, 3), torch.zeros(2, 4)))


class Text(nn.Module):
    """Words make a sentence, from the state of the text that it is in; sentences make a text."""

    def __init__(self):
        super().__init__()
        self.inner = cells.GRU(3, 4)

    def step(self, words, h):
        y, new = stepnet.recurrent(self.inner, words, h)
        return (y, new), new + 0.1 * stepnet.sequence_pool(y, "max")

    def forward(self, x, h):
        (inner, top), h = stepnet.recurrent(self.step, x, h, level=0)
        return inner, top, h


@pytest.mark.parametrize("lengths", few([[[2, 3], [3, 1, 4, 2, 6]], [[1], [1]]], [[[2, 3], [3, 1, 4, 2, 6]]]))
def test_sequences_of_sequences(tmp_path, lengths):
    module = Text().eval()
    first = LoDTensor.from_lengths(torch.randn(7, 3), [[2, 1], [2, 4, 1]])
    save(module, tmp_path / "m.xml", (first, torch.randn(2, 4)))
    x, h = LoDTensor.from_lengths(torch.randn(sum(lengths[1]), 3), lengths), torch.randn(len(lengths[0]), 4)
    padded = PaddedLoD.of(x)
    with torch.no_grad(), plain_loops():
        expected = flatten(module(x, h))[0]
    expected = [PaddedLoD.of(b).grid if isinstance(b, LoDTensor) else b for b in expected]
    held(tmp_path / "m.xml", [padded.grid, h, *padded.lengths], expected)
