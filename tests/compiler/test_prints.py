"""Steps that print where a number of theirs says so: compiled where they do not, as written where they do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain, recurrent
from stepnet.compiler.reads.reach import reach

D = torch.float64


class Told(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.verbose = torch.nn.RNNCell(3, 2, dtype=D), False

    def forward(self, x, h, debug=None):
        h = self.cell(x, h)
        if self.verbose:
            print(tuple(h.shape))
        if debug is not None:
            breakpoint()
        return h, h


def test_a_step_that_prints_nothing_is_known_by_what_it_reads():
    step: Any = Told()
    x, h = wanting(
        (LoDTensor.from_lengths(torch.randn(5, 3, dtype=D), [[2, 0, 3]]), torch.randn(3, 2, dtype=D))
    )
    assert reach(step).open is None
    assert explain(step, x, h, backend="eager").executor == "eager"
    as_the_plain_loop(step, x, h, "eager")


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_once_it_prints_it_prints_at_each_step(backend, capsys):
    step, x, h = Told(), torch.randn(4, 2, 3, dtype=D), torch.zeros(2, 2, dtype=D)
    quiet, _ = recurrent(step, x, h, backend=backend)
    assert not capsys.readouterr().out
    for verbose in (True, True, False):
        step.verbose = verbose
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y, _ = recurrent(step, x, h, backend=backend)
        assert capsys.readouterr().out == "(2, 2)\n" * 4 * verbose
        torch.testing.assert_close(y, quiet)


def test_what_stands_in_its_place_is_looked_into(monkeypatch):
    said = []
    monkeypatch.setattr("builtins.print", lambda *what: said.append(what))
    step, x, h = Told(), torch.randn(4, 2, 3, dtype=D), torch.zeros(2, 2, dtype=D)
    assert reach(step).open is not None
    step.verbose = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recurrent(step, x, h)
    assert len(said) == 4


class Says(torch.autograd.Function):
    """Prints in backward; where `loud` says so, at the time."""

    loud = True

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, *grads):
        if Says.loud:
            print("backward")
        return 2 * grads[0]


def hooked(x, h):
    h = torch.tanh(x + h)
    h.register_hook(lambda g: print("backward"))
    return h, h


def applied(x, h):
    h = Says.apply(x + h)
    return h, h


@pytest.mark.parametrize("step", [hooked, applied])
def test_what_prints_in_backward_prints_at_each_step(step, capsys, monkeypatch):
    """It was printed as the gradient was traced, and never again."""
    for loud in (True, False, True):
        monkeypatch.setattr(Says, "loud", loud)
        x, h = wanting((torch.randn(4, 2, 3, dtype=D), torch.zeros(2, 3, dtype=D)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y, _ = recurrent(step, x, h)
        y.sum().backward()
        assert capsys.readouterr().out == "backward\n" * 4 * (loud or step is hooked)
