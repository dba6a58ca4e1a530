"""What `torch.compile` asks before it runs a graph again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepnet import recurrent

from .models import assert_alike, ragged, state


def squashed(h: Tensor) -> Tensor:
    return torch.tanh(h)


class Model(nn.Module):
    """A step that calls a function of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: Any, h: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            h = squashed(self.cell(x, h))
            return h, h

        return recurrent(step, x, h)


@pytest.mark.exhaustive  # weights and steps that change: test_surroundings.py
@torch.no_grad()
def test_what_a_step_calls_is_guarded_and_what_runs_it_is_not(monkeypatch: Any) -> None:
    guards: list[str] = []

    def kept(entries: Sequence[Any]) -> list[bool]:
        guards[:] = [entry.orig_guard.name for entry in entries]
        return [True] * len(entries)

    model = Model().double()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, options={"guard_filter_fn": kept})
    args = ragged([2, 0, 3]), state(3)
    assert_alike(model, compiled, args)
    assert "G['squashed']" in guards
    ours = [name for name in guards if name.startswith("G['__import_stepnet")]
    assert not [name for name in ours if "torch" not in name and "'].operator." not in name]
    assert not [name for name in guards if "_pytree" in name or "recurrent'].__closure__" in name]

    monkeypatch.setitem(globals(), "squashed", torch.sin)
    assert_alike(model, compiled, args)
