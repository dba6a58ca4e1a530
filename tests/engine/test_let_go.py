"""A call whose step has no plan keeps nothing of the user's alive until garbage is collected."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

import stepnet


class Held:
    gain = 2.0


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_what_a_refused_step_reads_dies_with_its_last_reference() -> None:
    held = Held()
    alive, by_name = weakref.ref(held), weakref.WeakValueDictionary(a=held)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        found = alive()
        h = x * (0.5 if found is None else found.gain) + len(by_name) + h
        return h, h

    x = torch.ones(3, 2, 1)
    rows = weakref.ref(x)
    gc.disable()
    try:
        for _ in range(3):
            stepnet.recurrent(step, x, torch.zeros(2, 1))
        del held, x
        assert (alive(), rows()) == (None, None)
        assert stepnet.recurrent(step, torch.ones(3, 2, 1), torch.zeros(2, 1))[1].tolist() == [[1.5], [1.5]]
    finally:
        gc.enable()
