"""What a user put in the place of torch's own functions never tells generated C where memory is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

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


@pytest.mark.covering(1)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_function_of_torch_that_says_what_is_not_so(place, warm, monkeypatch):
    cell = cells.GRU(4, 5)
    x = torch.randn(6, 3, 4).transpose(0, 1)  # not contiguous, as the rows
    rows = LoDTensor.from_lengths(torch.randn(4, 9).t(), [[4, 0, 5]])
    state = torch.zeros(6, 5), torch.zeros(5, 3).t()

    def run(backend):
        with torch.no_grad():
            y, h = recurrent(cell, x, state[0], backend=backend)
            ragged, last = recurrent(cell, rows, state[1], backend=backend)
        return y, h, ragged.values, last

    expected = run("c" if warm else "naive")
    owner, wrong = PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, place.split()[0], wrong)
        found = run("c")
    torch.testing.assert_close(found, expected)
