"""Steps that print where a number of theirs says so: compiled where they do not, as written where they do."""

from __future__ import annotations

import warnings

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
    step = Told()
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
