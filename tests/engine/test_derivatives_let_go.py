"""The call that makes the plan of a derivative keeps nothing alive once its results are gone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet
from stepnet import LoDTensor, recurrent
from stepnet.engine import plans
from stepnet.executors import registry
from stepnet.executors.torch_ops.executor import TORCH_OPS

W = torch.linspace(-1, 1, 4).reshape(2, 2).requires_grad_()
GAIN = [1.0]
STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "products": lambda x, h: torch.tanh(x @ W + h * GAIN[0]),
    "sums": lambda x, h: torch.sigmoid(x + h + W[0] + x @ W + h @ W) * GAIN[0],
    "picks": lambda x, h: torch.tanh(x @ W + h.sort(1).values * GAIN[0]),
    "written into": lambda x, h: (x @ W + h).mul_(GAIN[0]).sin_(),
    "sums along rows": lambda x, h: torch.where(x > h, x @ W, h).cumsum(1).sin() * GAIN[0],
}


def second(step: Callable[[Tensor, Tensor], Tensor], x: Tensor, h: Tensor, *, ragged: bool) -> None:
    def both(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = step(x, h)
        return h, h

    rows = (LoDTensor.from_lengths(x, [[3, 0, 2]]), h) if ragged else (x[:, None], h[:1])
    _, last = recurrent(both, *rows)
    first = torch.autograd.grad(last.sin().sum(), [x, h, W], create_graph=True)
    torch.autograd.grad(torch.stack([g.sin().sum() for g in first]).sum(), [x, h, W])


def left(step: Callable[[Tensor, Tensor], Tensor], *, ragged: bool) -> list[str]:
    x, h = torch.ones(5, 2, requires_grad=True) * 2, torch.ones(3, 2, requires_grad=True) * 2
    alive = {"x": weakref.ref(x), "h": weakref.ref(h)}
    second(step, x, h, ragged=ragged)
    del x, h
    return [name for name, ref in alive.items() if ref() is not None]


@pytest.mark.parametrize("backend", ["auto", "c", "eager", "timed"])
@pytest.mark.parametrize("name", STEPS)
def test_at_its_first_call(name: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where a number that the step reads is another one, whose plan is made then."""
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))  # where no plan lies
    plans.forget()
    if backend == "timed":  # torch ops beside the plain loop
        monkeypatch.setitem(registry._tried, registry.AUTO, (TORCH_OPS,))
    stepnet.set_backend("auto" if backend == "timed" else backend)
    gc.disable()
    try:
        for gain in (1.0, 0.5, 0.25):
            GAIN[0] = gain
            for ragged in (True, False):
                assert left(STEPS[name], ragged=ragged) == []
    finally:
        GAIN[0] = 1.0
        gc.enable()
        stepnet.set_backend("auto")
        plans.forget()
