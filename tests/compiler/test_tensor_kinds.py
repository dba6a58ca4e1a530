"""Tensors of classes that users make: one with a name alone is compiled, other rules are the plain loop's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from own_parameters import Doubled, Turned
from run_change_run import D, run_change_run
from stepnet import recurrent
from stepnet.errors import Unsupported


class Named(nn.Parameter):
    """Says what it is in, and no more."""

    unit = 0.5

    def __repr__(self):
        return "Named"

    @property
    def gain(self):
        return self.unit * 2


class Kept(torch.Tensor):
    """Of which all that is computed is one, too."""


def weight(kind):
    return torch.eye(D).as_subclass(kind) if kind is Kept else kind(torch.eye(D))


def step_of(w):
    def step(x, h):
        h = torch.tanh(F.linear(x, w) + h @ w.t())
        return h, h

    return step


def test_a_class_that_adds_only_names_is_compiled():
    class Other(Named):
        pass

    w = weight(Named)

    def step(x, h):
        h = torch.tanh(F.linear(x, w) * w.unit + h * w.gain + w.own)
        return h, h

    w.own = 0.25

    def change(_):
        w.own += 0.5
        w.__class__ = Other if type(w) is Named else Named
        Other.unit = -2.0

    run_change_run(lambda: step, change)


def test_a_method_that_a_class_gets_later_is_called(monkeypatch):
    class Plain(nn.Parameter):
        pass

    w = weight(Plain)
    step, x = step_of(w), torch.randn(4, 2, D)

    def given(backend):
        return recurrent(step, x, torch.ones(2, D), backend=backend)[0]

    for _ in range(3):
        torch.testing.assert_close(given("eager"), given("naive"))
    monkeypatch.setattr(Plain, "t", Turned.t, raising=False)
    with pytest.raises(Unsupported, match="it reads a Plain, a tensor class with dispatch rules of its own"):
        given("eager")
    monkeypatch.undo()
    torch.testing.assert_close(given("eager"), given("naive"))


@pytest.mark.parametrize("kind", [Doubled, Turned, Kept])
def test_a_class_with_rules_is_run_by_them(kind):
    step, x = step_of(weight(kind)), torch.randn(4, 2, D)
    with pytest.raises(Unsupported, match=f"it reads a {kind.__name__}, a tensor class with dispatch rules"):
        recurrent(step, x, torch.ones(2, D), backend="eager")


def test_its_gradient_is_that_of_a_parameter():
    found = []
    for kind, backend in ((Named, "eager"), (nn.Parameter, "naive")):
        w = weight(kind)
        recurrent(step_of(w), torch.ones(4, 2, D), torch.ones(2, D), backend=backend)[0].sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
