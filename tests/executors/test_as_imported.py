"""What a user put in the place of torch's own functions never tells generated C where memory is."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch import Tensor

from covering import few
from stepnet import LoDTensor, cells, recurrent

OPTIMISED = False
PLACES = {
    "contiguous": (Tensor, lambda self, **_: self),
    "contiguous of another size": (Tensor, lambda self, **_: self.new_zeros(1)),
    "is_contiguous": (Tensor, lambda self, **_: True),
    "data_ptr": (Tensor, lambda self: 16),
    "stride": (Tensor, lambda self, *dim: 10**6 if dim else (10**6,) * self.dim()),
    "zeros": (torch, lambda *_, **__: torch.ones(1)),
    "argsort": (np, lambda *_, **__: np.array([10**7])),
}


def runs():
    """Of a cell of its own: by a backend, dense and ragged."""
    cell = cells.GRU(4, 5)
    x = torch.randn(6, 3, 4).transpose(0, 1)  # not contiguous, as the rows
    rows = LoDTensor.from_lengths(torch.randn(4, 9).t(), [[4, 0, 5]])
    state = torch.zeros(6, 5), torch.zeros(5, 3).t()

    @torch.no_grad()
    def run(backend):
        y, h = recurrent(cell, x, state[0], backend=backend)
        ragged, last = recurrent(cell, rows, state[1], backend=backend)
        return y, h, ragged.values, last

    return run


@pytest.fixture
def in_place_of(monkeypatch):
    @contextlib.contextmanager
    def patched(place):
        owner, wrong = PLACES[place]
        with monkeypatch.context() as patch:
            patch.setattr(owner, place.split()[0], wrong)
            yield

    return patched


@pytest.mark.parametrize("place", few(PLACES, ["contiguous of another size", "argsort"]))
def test_a_first_call_beside_a_function_of_torch_that_says_what_is_not_so(place, in_place_of):
    run = runs()
    expected = run("naive")
    with in_place_of(place):
        found = run("c")
    torch.testing.assert_close(found, expected)


def test_calls_beside_functions_of_torch_that_say_what_is_not_so(in_place_of):
    run = runs()
    expected = run("c")
    for place in PLACES:
        with in_place_of(place):
            found = run("c")
        torch.testing.assert_close(found, expected, msg=lambda m, place=place: f"{place}: {m}")
