"""Frames and the RNN op in what torch compiles or exports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepnet
from covering import few
from stepnet import Memory, RecurrentOp, Scope, TensorArray, layers
from stepnet.tape import Tape
from torch_since import torch_since

BACKEND = "eager"  # what torch follows is the same whatever runs the scans

CELL = nn.Parameter(torch.randn(2, 2))


class Framed(nn.Module):
    """A scan, and a loop variable that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.weight = nn.Linear(2, 2), CELL

    def forward(self, x: Tensor, h: Tensor) -> Any:
        steps, states = TensorArray(unstack_from=torch.relu(self.before(x))), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == steps.size())
            states.write(s, torch.tanh(states.read(s - 1, h) @ self.weight + steps.read(s)))
            loop.update(s, s + 1)
        return states.stack() * 2


class Grown(nn.Module):
    """A loop variable that grows."""

    def forward(self, x: Tensor, h: Tensor) -> Any:
        steps, loop = TensorArray(unstack_from=x), stepnet.create_whileloop([torch.tensor(0), h])
        with loop.frame() as (s, h):
            loop.break_if(s == steps.size())
            loop.update(s, s + 1)
            loop.update(h, torch.cat([h / h.shape[0], steps.read(s)]))
        return loop.results[1]


class Scoped(nn.Module):
    """The RNN op."""

    def forward(self, x: Tensor, h: Tensor) -> Any:
        def net(step: Scope) -> None:
            step["h"] = torch.tanh(step["pre"] @ step["w"] + step["x"])

        scope = Scope({"x": x, "boot": h, "w": CELL})
        RecurrentOp(net, ["x"], ["h"], [Memory("h", pre_name="pre", init="boot")]).run(scope)
        return scope["h"]


class Taped(nn.Module):
    """A topology that runs a frame without a batch."""

    def __init__(self) -> None:
        super().__init__()
        with Tape() as tape:
            steps, sums = TensorArray(unstack_from=layers.data("x", layers.Dense(2))), TensorArray()
            n = steps.size()
            loop = stepnet.create_whileloop([torch.tensor(0)])
            with loop.frame() as (s,):
                loop.break_if(s == n)
                sums.write(s, torch.tanh(sums.read(s - 1, torch.zeros(2)) @ CELL + steps.read(s)))
                loop.update(s, s + 1)
            self.topology = tape.topology(sums.stack())

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return self.topology(x=x[:, 0])[0]


def gradients(y: Tensor, x: Tensor, h: Tensor) -> Any:
    return torch.autograd.grad(y.pow(2).sum(), (x, h, CELL), allow_unused=True)


@pytest.mark.exhaustive  # in a graph: tests/graph
@torch_since("2.13", "Dynamo warns of what it leaves to Python")
@pytest.mark.parametrize("kind", few([Framed, Grown, Scoped], [Framed]))
def test_compiled_by_torch(kind):
    torch._dynamo.reset()
    module = kind()
    compiled = torch.compile(module, backend="eager")
    for count in (3, 5):
        x, h = torch.randn(count, 3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
        y, expected = compiled(x, h), module(x, h)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradients(y, x, h), gradients(expected, x, h))


@pytest.mark.exhaustive  # in a program: tests/graph
@torch_since("2.13", "it follows Python strictly, or fixes the number of steps")
@pytest.mark.parametrize("kind", few([Framed, Grown, Scoped, Taped], [Framed]))
def test_exported_by_torch(kind):
    any_length = kind is Framed  # a scan over rows is one operator, others are the steps of the example
    steps = 4 if any_length else 2
    module, x, h = kind(), torch.randn(steps, 3, 2), torch.ones(3, 2)
    sizes = ({0: torch.export.Dim("steps", min=2, max=64)}, None) if any_length else None
    program = torch.export.export(module, (x, h), dynamic_shapes=sizes).module()
    torch.testing.assert_close(program(x, h), module(x, h))
    x = torch.randn(7 if any_length else 2, 3, 2)
    torch.testing.assert_close(program(x, h), module(x, h))
