"""Frames that are scans, saved: they turn as often, and read defaults where they do, at other lengths too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from covering import few
from file_formats import FORMATS, Applied
from saved_modules import Beside
from stepnet import TensorArray, create_whileloop, while_loop
from stepnet.errors import IRError
from torch_since import torch_since

BACKEND = "naive"


class Turns(nn.Module):
    """From `first` to an end before the length, or to the second place; by twos, or threes, or ones."""

    def __init__(self, first: int, by: int, before: int, last: bool = False):
        super().__init__()
        self.first, self.by, self.before, self.last = first, by, before, last

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        rows, end = TensorArray(unstack_from=x), x.shape[0] - self.before
        loop = create_whileloop([torch.tensor(self.first), h])
        with loop.frame() as (s, v):
            loop.break_if(s > end if self.last else s >= end)
            loop.update(v, torch.tanh(v + rows.read(s)))
            loop.update(s, s + self.by)
        return loop.results


class Defaults(nn.Module):
    """What is read at places that not every length has."""

    def __init__(self, first: int, by: int, turns: int | None):
        super().__init__()
        self.first, self.by, self.turns = first, by, turns

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        rows, y = TensorArray(unstack_from=x), TensorArray()
        loop = create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == (x.shape[0] if self.turns is None else self.turns))
            y.write(s, torch.tanh(y.read(s - 1, h) + rows.read(s * self.by + self.first, h)))
            loop.update(s, s + 1)
        return y.stack()


class Counting(nn.Module):
    """A loop inside gives its count, which nobody reads, before what is read."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        rows, y = TensorArray(unstack_from=x), TensorArray()
        loop = create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == x.shape[0])
            inner = while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v * 0.5 + h), (0, rows.read(s)))
            y.write(s, inner[1])
            loop.update(s, s + 1)
        return y.stack()


class Down(nn.Module):
    """Vectors, from the last place to the first, of what was written the turn before."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        rows, y = TensorArray(unstack_from=x[:, 0]), TensorArray()
        loop = create_whileloop([torch.tensor(x.shape[0]) - 1])
        with loop.frame() as (s,):
            loop.break_if(s < 0)
            y.write(s, torch.tanh(self.w @ y.read(s + 1, h[0]) + rows.read(s)))
            loop.update(s, s - 1)
        return y.stack()


def three_turns(x: Tensor) -> Tensor:
    rows, y = TensorArray(unstack_from=x), TensorArray()
    loop = create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        y.write(s, torch.tanh(rows.read(s)))
        loop.update(s, s + 1)
    return y.stack()


TURNS = [Turns(1, 2, 0), Turns(0, 2, 1), Turns(0, 3, 1, last=True)]
DEFAULTS = [
    Defaults(3, 0, None),
    Defaults(1, 1, None),
    Defaults(-2, 1, None),
    Defaults(0, 1, 3),
    Defaults(3, -1, 2),
]


@torch_since("2.10", "reads with a default are refused, a size of theirs is told")
@pytest.mark.parametrize("name", few([*FORMATS], ["openvino"]))
def test_at_other_lengths(name, tmp_path):
    format, _, file = FORMATS[name]
    model, h = Beside([*TURNS, *DEFAULTS, Counting(), Down()]).eval(), torch.randn(3, 2)
    format.save(model, tmp_path / file, (torch.randn(5, 3, 2), h))
    read = format.load(tmp_path / file)
    for steps in (1, 2, 3, 4, 6, 7):
        x = torch.randn(steps, 3, 2)
        expected = [t for found in model(x, h) for t in (found if isinstance(found, tuple) else (found,))]
        torch.testing.assert_close(list(read(x, h)), expected)


@pytest.mark.parametrize("name", few([*FORMATS], ["onnx"]))
def test_no_steps(name, tmp_path):
    format, _, file = FORMATS[name]
    model, h = Beside(TURNS).eval(), torch.randn(3, 2)
    format.save(model, tmp_path / file, (torch.randn(5, 3, 2), h))
    x = torch.randn(0, 3, 2)
    expected = [t for found in model(x, h) for t in found]
    torch.testing.assert_close(list(format.load(tmp_path / file)(x, h)), expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("cut", [three_turns, lambda x: x.narrow(0, 1, 2) * 2])
def test_more_steps_than_there_are_rows_fail(name, cut, tmp_path):
    """A runtime slices what there is."""
    format, run, file = FORMATS[name]
    format.save(Applied(cut).eval(), tmp_path / file, (torch.rand(5, 3, 2),))
    read, x = format.load(tmp_path / file), torch.rand(6, 3, 2)
    for rows in (x, x[:3]):
        torch.testing.assert_close(read(rows)[0], cut(rows))
        torch.testing.assert_close(torch.as_tensor(run(tmp_path / file, [rows.numpy()])[0]), cut(rows))
    for rows in (x[:2], x[:1]):
        with pytest.raises(IRError):
            read(rows)
        with pytest.raises(Exception, match=r"(?i)split"):
            run(tmp_path / file, [rows.numpy()])


def test_a_frame_inside_that_reads_an_array_of_outside_is_no_condition(tmp_path):
    def run(x):
        rows = TensorArray(unstack_from=x)
        outer = create_whileloop([torch.tensor(0), x[0]])
        with outer.frame() as (s, h):
            outer.break_if(s == 2)
            inner = create_whileloop([torch.tensor(0), h])
            with inner.frame() as (t, v):
                inner.break_if(t == rows.size())
                inner.update(v, torch.tanh(v + rows.read(t)))
                inner.update(t, t + 1)
            outer.update(h, inner.results[1])
            outer.update(s, s + 1)
        return outer.results[1]

    format, _, file = FORMATS["openvino"]
    with pytest.raises(IRError, match="a loop inside reads or writes arrays"):
        format.save(Applied(run).eval(), tmp_path / file, (torch.randn(5, 3, 2),))
