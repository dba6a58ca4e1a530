"""What a frame is remembered by: plain tensors only. One that was recorded on others, such as those of an
export, must not stand for what comes after."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import stepnet
from covering import few
from stepnet import TensorArray, layers
from stepnet.front import program
from stepnet.tape import Tape
from torch_since import torch_since

BACKEND = "eager"  # what is remembered is the same whatever runs the scans

ONE = torch.ones(1, 2)


class Marked(Tensor):
    """A subclass, whose results are of it too."""


def framed(x: Tensor, h: Tensor) -> Tensor:
    """A frame that asks what its counter is, and for sizes of which nothing is known."""
    steps, outs = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        rows = h[h[:, 0] >= s * h[0, 0]]
        outs.write(s, steps.read(s) + ONE.expand(rows.shape[0], 2).sum())
        loop.update(s, s + 1)
    return outs.stack()


def counted(x: Tensor, h: Tensor) -> Tensor:
    """The same without what needs numbers of data."""
    steps, outs = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        outs.write(s, torch.tanh(outs.read(s - 1, torch.zeros(2)) + steps.read(s)))
        loop.update(s, s + 1)
    return outs.stack()


class Topology(nn.Module):
    """A function of sequences as a tape has it: frames in topologies share what is remembered."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        with Tape() as tape:
            made = function(layers.data("x", layers.Dense(2)), layers.data("h", layers.Dense(2)))
        self.topology = tape.topology([made])

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return self.topology(x=x, h=h)[0][0]


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return self.function(x, h)


def faked(module: nn.Module, x: Tensor, h: Tensor) -> None:
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with fake:
        module(fake.from_tensor(x), fake.from_tensor(h))


def exported(module: nn.Module, x: Tensor, h: Tensor) -> None:
    torch.export.export(module, (x, h))


def marked(module: nn.Module, x: Tensor, h: Tensor) -> None:
    module(x.as_subclass(Marked), h.as_subclass(Marked))


def remembered() -> Iterator[Any]:
    """All that stands for values in what is remembered."""
    nodes: list[Any] = list(program._roots.values())
    while nodes:
        node = nodes.pop()
        nodes += node.next.values()
        yield from node.examples


@torch_since("2.13", "it follows Python strictly, or fixes the number of steps")
@pytest.mark.parametrize("first", few([faked, exported, marked], [faked, exported]))
@pytest.mark.parametrize("kind", [Called, Topology])
@pytest.mark.parametrize("of", [counted, framed])
def test_what_is_not_plain_is_not_remembered(of, kind, first):
    program._roots.clear()
    x, h = torch.randn(3, 2), torch.tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]])
    module, plain = kind(of), kind(counted)
    with contextlib.suppress(Exception):  # whether it can run on those is not the question
        first(module, x, h)
    for again, function in ((plain, counted), (kind(framed), framed), (module, of)):
        torch.testing.assert_close(again(x, h), by_hand(function, x, h))
    assert not [e for e in remembered() if isinstance(e, Tensor) and type(e) is not Tensor]
    assert not [e for e in remembered() if isinstance(e, torch.SymInt)]


def by_hand(function: Callable[..., Any], x: Tensor, h: Tensor) -> Tensor:
    out, before = [], torch.zeros(2)
    for s in range(3):
        if function is counted:
            before = torch.tanh(before + x[s])
        else:
            before = x[s] + ONE.expand(h[h[:, 0] >= s * h[0, 0]].shape[0], 2).sum()
        out.append(before)
    return torch.stack(out)
