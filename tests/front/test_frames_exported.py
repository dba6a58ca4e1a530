"""Frames in programs of torch.export: saved, loaded, and told of what has no form there."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from stepnet import TensorArray
from stepnet.errors import StepError
from torch_since import torch_since

BUILDS = False

pytestmark = torch_since("2.13", "it follows Python strictly, or fixes the number of steps")


def no_grad_in_the_loop(model, v):
    with torch.no_grad():
        twice = v * 2
    return v + twice


def no_grad_of_a_weight(model, v):
    with torch.no_grad():
        twice = model.cell.bias * 2
    return v + twice


def both(model, v):
    return no_grad_in_the_loop(model, no_grad_of_a_weight(model, no_grad_in_the_loop(model, v)))


def gradients_inside(model, v):
    with torch.no_grad():
        kept = v * 2
        with torch.enable_grad():
            v = v + model.cell.bias * 3
    return v + kept


LINES = {
    "plain": lambda model, v: v,
    "no_grad in the loop": no_grad_in_the_loop,
    "no_grad of a weight": no_grad_of_a_weight,
    "both": both,
    "gradients inside": gradients_inside,
}


class Framed(nn.Module):
    def __init__(self, line=LINES["plain"], start=lambda: torch.tensor(0)):
        super().__init__()
        self.cell, self.line, self.start = nn.Linear(7, 4), line, start

    def forward(self, x, h0):
        steps, states, sums = TensorArray(unstack_from=x), TensorArray(), TensorArray()
        loop = stepnet.create_whileloop([self.start()])
        with loop.frame() as (s,):
            loop.break_if(s == steps.size())
            v = torch.tanh(self.cell(torch.cat([steps.read(s), states.read(s - 1, h0)], -1)))
            states.write(s, self.line(self, v))
            sums.write(s, v.sum(-1))
            loop.update(s, s + 1)
        return states.stack(), sums.stack()


def exported(model):
    sizes = ({0: torch.export.Dim("steps", min=2, max=64)}, None)
    given = torch.randn(4, 2, 3), torch.zeros(2, 4)
    return torch.export.export(model, given, dynamic_shapes=sizes, strict=False)


def gradients(model, *given):
    return torch.autograd.grad(sum(y.sin().sum() for y in model(*given)), list(model.parameters()))


@pytest.mark.parametrize("line", few(LINES, ["both", "gradients inside"]))
@pytest.mark.parametrize("before", [False, True])
def test_saved_and_loaded(line, before):
    model, given = Framed(LINES[line]), (torch.randn(7, 2, 3), torch.randn(2, 4))
    if before:
        model(*given)
    file = io.BytesIO()
    torch.export.save(exported(model), file)
    file.seek(0)
    program = torch.export.load(file).module()
    torch.testing.assert_close(program(*given), model(*given))
    torch.testing.assert_close(gradients(program, *given), gradients(model, *given), rtol=1e-4, atol=1e-5)


def under_autocast(model, v):
    with torch.autocast("cpu", torch.bfloat16):
        return v + model.cell(torch.cat([v, v[:, :3]], -1)).float()


def test_autocast_in_a_frame_is_in_the_program():
    model, given = Framed(under_autocast), (torch.randn(7, 2, 3), torch.randn(2, 4))
    program = exported(model).module()
    text = str([n.args for n in program.graph.nodes if n.target is torch.ops.stepnet.run.default])
    assert "autocast" in text
    assert "bfloat16" in text
    torch.testing.assert_close(program(*given), model(*given), rtol=0.03, atol=0.03)
    torch.testing.assert_close(gradients(program, *given), gradients(model, *given), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "model",
    [
        Framed(start=lambda: torch.zeros((), dtype=torch.int64)),
        Framed(start=lambda: torch.ones(1).long() - 1),
    ],
    ids=["of torch.zeros", "computed"],
)
def test_what_has_no_form_there_says_so(model):
    with pytest.raises(StepError, match=r"a number that is not known here \(test_frames_exported\.py"):
        exported(model)
    model(torch.randn(4, 2, 3), torch.zeros(2, 4))


@pytest.mark.parametrize("start", [lambda: torch.zeros((), dtype=torch.int64), lambda: torch.tensor(0)])
def test_without_data_the_count_is_asked_for(start):
    model = Framed(start=start)
    with torch.device("meta"), pytest.raises(StepError, match="a number that is not known here"):
        model(torch.randn(4, 2, 3, device="cpu"), torch.zeros(2, 4, device="cpu"))
    model(torch.randn(4, 2, 3), torch.zeros(2, 4))


class ReadsRows(nn.Module):
    """The frame reads a tensor whose size stays open, beside what it steps over."""

    def forward(self, rows, x):
        steps, out = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == steps.size())
            before = out.read(s - 1, torch.zeros(x.shape[1], 4))
            out.write(s, torch.tanh(before + steps.read(s) * (rows * s).mean()))
            loop.update(s, s + 1)
        return out.stack()


def test_a_frame_reads_what_has_an_open_size():
    open_sizes = {0: torch.export.Dim.AUTO}, {1: torch.export.Dim.AUTO}
    given = torch.randn(7, 4), torch.randn(5, 2, 4)
    program = torch.export.export(ReadsRows(), given, dynamic_shapes=open_sizes, strict=False).module()
    for rows, batch in ((7, 2), (3, 4)):
        given = torch.randn(rows, 4), torch.randn(5, batch, 4)
        torch.testing.assert_close(program(*given), ReadsRows()(*given))
