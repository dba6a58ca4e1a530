"""Tensors by the names their user gave them, and lines by their text."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from stepnet.cells import GRU
from stepnet.front.step import as_step
from stepnet.report import explain
from stepnet.report.names import SourceLines, tensor_names

table = torch.ones(2, 2)


class Holder:
    def __init__(self):
        self.weight = torch.ones(2)
        self.parts = {"a": [torch.ones(3)]}

    def step(self, x, h):
        return x * self.weight, h * self.parts["a"][0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x, h):
        return self.cell(x, h) * self.scale, h


def uses_table(x, h):
    return x @ table, h


def closure():
    w = torch.ones(2)
    inner = nn.Linear(2, 2)

    def step(x, h):
        def more():
            return inner(x) * w

        return more(), h

    return step, [w, inner.bias], ["w", "inner.bias"]


def with_default(x, h, gain=torch.ones(2)):  # noqa: B008
    return x * gain, h


def cases():
    holder, model, cell = Holder(), Model(), nn.GRUCell(2, 2)
    bound = functools.partial(lambda x, h, w: (x * w, h), w=torch.ones(2))
    found = {
        "global": (uses_table, [table], ["table"]),
        "closure": closure(),
        "default": (with_default, [with_default.__defaults__[0]], ["gain"]),
        "method": (holder.step, [holder.weight, holder.parts["a"][0]], ["weight", "parts['a'][0]"]),
        "module": (model, [model.cell.bias_hh, model.scale], ["cell.bias_hh", "scale"]),
        "torch cell": (as_step(cell), [cell.weight_hh], ["weight_hh"]),
        "partial": (bound, [bound.keywords["w"]], ["w"]),
        "unknown": (uses_table, [torch.ones(1), torch.ones(2)], ["tensor 1", "tensor 2"]),
    }
    return [pytest.param(*case, id=name) for name, case in found.items()]


@pytest.mark.parametrize(("step", "tensors", "expected"), cases())
def test_names_of_tensors(step, tensors, expected):
    assert tensor_names(step, tensors) == expected


def test_two_of_one_name_are_told_apart():
    def inner(w):
        return lambda x: x * w

    a, b = torch.ones(2), torch.ones(2)
    first, second = inner(a), inner(b)
    assert tensor_names(lambda x, h: (first(second(x)), h), [a, b]) == ["w", "w (2)"]


def test_a_cycle_of_objects_ends():
    holder = Holder()
    holder.self = holder
    assert tensor_names(holder.step, [holder.weight]) == ["weight"]


def test_text_of_lines(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("a = 1\n  b = 2\n")
    lines = SourceLines([str(path)])
    assert lines.at("mine.py:2") == "b = 2"
    assert [lines.at(line) for line in (None, "mine.py:9", "other.py:1", "mine.py")] == [None] * 4
    other = tmp_path / "more" / "mine.py"
    other.parent.mkdir()
    other.write_text("c = 3\n")
    assert SourceLines([str(path), str(other)]).at("mine.py:1") is None  # not known which


def test_lines_are_the_steps_own_not_those_of_the_call():
    def step(x, h):
        h = torch.tanh(x + h)
        return h, h

    told = explain(step, torch.zeros(3, 2, 4), torch.zeros(2, 4, requires_grad=True))
    found = {line.code for region in told.regions for line in region.lines}
    assert found <= {"h = torch.tanh(x + h)", "return h, h", None}
    assert "h = torch.tanh(x + h)" in found


def test_lines_of_the_machinery_are_no_lines_of_the_users():
    told = explain(nn.GRUCell(3, 4), torch.zeros(3, 2, 3))
    assert {op.line for op in told.find()} == {None}
    cell = explain(GRU(3, 4), torch.zeros(3, 2, 3))
    assert {op.line.split(":")[0] for op in cell.find() if op.line} == {"gru.py"}
