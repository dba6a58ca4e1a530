"""Tensors of classes that users make: a trace takes them for tensors, so those with rules of their own are
refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covering import few
from file_formats import FORMATS
from own_parameters import Doubled, Turned
from stepnet import nn as snn
from stepnet import recurrent
from stepnet.errors import IRError

BACKEND = "naive"
KINDS = few(list(FORMATS), ["onnx"])


class Named(nn.Parameter):
    unit = "mV"


class Beside(nn.Module):
    """Its weight is read beside a recurrence, or by the step; or it is a weight of `stepnet.nn`."""

    def __init__(self, kind, place):
        super().__init__()
        w, self.place, self.rnn = kind(torch.randn(3, 3)), place, snn.RNN(3, 3)
        if place == "of a layer":
            self.rnn.weight_ih_l0 = w
        elif place == "no parameter":
            self.held = [w]
        else:
            self.held = nn.ParameterList([w])

    def step(self, x, h):
        w = self.held[0]
        h = torch.tanh(F.linear(x, w) + h @ w.t())
        return h, h

    def forward(self, x):
        if self.place == "of a layer":
            return self.rnn(x)[0]
        if self.place == "beside":
            w = self.held[0]
            return self.rnn(F.linear(x, w) @ w.t())[0]
        return recurrent(self.step, x, torch.zeros(x.shape[1], 3), backend=BACKEND)[0]


PLACES = ["beside", "in a step", "no parameter", "of a layer"]


@pytest.mark.parametrize("format", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_name_alone_is_written(format, place, tmp_path):
    kind, run, name = FORMATS[format]
    module = Beside(Named, place).eval()
    kind.save(module, tmp_path / name, torch.randn(3, 2, 3))
    x = torch.randn(5, 4, 3)
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(torch.from_numpy(run(tmp_path / name, [x.numpy()])[0]), expected)


@pytest.mark.parametrize("format", KINDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("own", [Doubled, Turned])
def test_rules_of_its_own_are_refused(format, place, own, tmp_path):
    kind, _, name = FORMATS[format]
    module = Beside(own, place).eval()
    with pytest.raises(
        IRError, match=f"meets a {own.__name__}, a tensor class with rules of its own"
    ) as told:
        kind.save(module, tmp_path / name, torch.randn(3, 2, 3))
    assert "module Beside cannot be written" in str(told.value)
    assert not (tmp_path / name).exists()
