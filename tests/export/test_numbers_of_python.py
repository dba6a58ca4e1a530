"""Numbers of Python's that follow from sizes or tensors, where steps refer to them: those of each call."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from file_formats import FORMATS
from stepnet import recurrent, while_loop
from stepnet.errors import IRError
from torch_since import torch_since

since = torch_since("2.13", "its export fixes sizes that are computed with")


class Held:
    def __init__(self, number):
        self.number = number

    def __call__(self, x, h):
        return h * self.number, x + h


def scaled(number, x, h):
    return h * number, x + h


def steps(x, step):
    return recurrent(step, x, x[0], backend="naive")


def turns(x):
    n, rate = x.shape[0] // 2, 1 / x.shape[0]
    first = torch.tensor(0), x[0]
    return while_loop(lambda i, h: i < n, lambda i, h: (i + 1, h + x[i] * rate), first)[1:]


FOLLOWS = {
    "a quotient": lambda x: steps(x, functools.partial(scaled, 1 / x.shape[0])),
    "a root": lambda x: steps(x, lambda a, h, root=x.shape[1] ** 0.5: (h / root, a + h)),
    "a slice": lambda x: steps(x, lambda a, h, s=slice(0, x.shape[0] // 2): (h + x[s].sum(0), a + h)),
    "an index": lambda x: steps(x, lambda a, h, k=x.shape[0] // 2: (h + x[k], a + h)),
    "of a tensor": lambda x: (steps(x, Held(2.0))[0] * x.mean().item(), x[: (x > 0).sum().item() % 2 + 1].sum(0)),
    "turns": turns,
}  # fmt: skip


class Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@since
@pytest.mark.parametrize("what", FOLLOWS)
@pytest.mark.parametrize("format", FORMATS)
def test_it_is_that_of_each_call(format, what, tmp_path):
    package, run, name = FORMATS[format]
    package.save(Module(FOLLOWS[what]), tmp_path / name, torch.randn(5, 2, 4))
    x = torch.randn(8, 3, 4)
    for theirs, ours in zip(run(tmp_path / name, [x.numpy()]), FOLLOWS[what](x), strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-5, atol=1e-5)


REFUSED = {
    "reads a size that is left open": lambda x: steps(x, Held(1 / x.shape[0])),
    "any number of steps": lambda x: steps(x, functools.partial(scaled, x.shape[0] > 3)),
    "draws random numbers": lambda x: steps(x + torch.poisson(HALF), Held(2.0)),
}
HALF = torch.full((4,), 0.5)


@since
@pytest.mark.parametrize("why", REFUSED)
def test_what_would_be_the_examples_is_refused(why, tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match=why):
        package.save(Module(REFUSED[why]), tmp_path / name, torch.randn(5, 2, 4))
