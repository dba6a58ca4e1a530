"""Calls with static= or steps= are warm as others are: after some alike none makes the record of its loop,
and each gives what the plain loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepnet import LoDTensor, api, recurrent
from tables import holds
from torch_since import TOLD

D, B, F = torch.float64, 3, 4


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = (nn.Linear(F, F, dtype=D) for _ in range(2))

    def forward(self, x: Any, h: Tensor, memory: Any = None) -> tuple[Tensor, Tensor]:
        z = self.back(h) if x is None else self.into(x) + self.back(h)
        if isinstance(memory, Tensor):
            z = z + memory
        elif memory is not None:  # the rows of each sequence, padded
            z = z + (memory.rows * memory.mask[..., None]).sum(1)
        h = torch.tanh(z)
        return h, h


def dense() -> dict[str, Any]:
    return {"x": torch.randn(5, B, F, dtype=D), "static": torch.randn(B, F, dtype=D)}


def ragged() -> dict[str, Any]:
    x = LoDTensor.from_lengths(torch.randn(6, F, dtype=D), [[3, 1, 2]])
    return {"x": x, "static": torch.randn(B, F, dtype=D)}


def memories() -> dict[str, Any]:
    memory = LoDTensor.from_lengths(torch.randn(6, F, dtype=D), [[1, 3, 2]])
    return {"x": torch.randn(5, B, F, dtype=D), "static": memory}


def steps() -> dict[str, Any]:
    return {"x": None, "steps": 5}


def steps_of_each() -> dict[str, Any]:
    return {"x": None, "steps": [3, 1, 2]}


def both() -> dict[str, Any]:
    return {"x": None, "steps": 4, "static": torch.randn(B, F, dtype=D)}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    kind.__name__: kind for kind in (dense, ragged, memories, steps, steps_of_each, both)
}
WARM = [kind for kind in KINDS if kind != "memories"]


def ran(cell: Cell, given: dict[str, Any], h0: Tensor, backend: Any) -> list[Tensor]:
    y, h = recurrent(cell, given["x"], h0, backend=backend, **{k: v for k, v in given.items() if k != "x"})
    y = y.values if isinstance(y, LoDTensor) else y
    used = (*cell.back.parameters(), h0, *(cell.into.parameters() if given["x"] is not None else ()))
    wanted = [t for t in used if t.requires_grad]
    return [y, h, *(torch.autograd.grad(y.sin().sum() + h.sum(), wanted) if y.requires_grad else [])]


def same(cell: Cell, given: dict[str, Any], h0: Tensor) -> None:
    for one, other in zip(*(ran(cell, given, h0, by) for by in ("eager", "naive")), strict=True):
        torch.testing.assert_close(one, other)


def test_run_change_run() -> None:
    def law(kind: Callable[[], dict[str, Any]]) -> None:
        cell, h0 = Cell(), torch.randn(B, F, dtype=D, requires_grad=True)
        for _ in range(4):
            same(cell, kind(), h0)
        cell.back.weight.data.mul_(2)
        same(cell, kind(), h0)
        cell.back = nn.Linear(F, F, dtype=D)
        same(cell, kind(), h0)
        cell.back.requires_grad_(False)
        given = kind()
        for _ in range(2):
            same(cell, given, h0)
        with torch.no_grad():
            same(cell, given, h0)
        if isinstance(given.get("static"), Tensor):
            same(cell, given | {"static": given["static"][:, :1]}, h0)
            same(cell, given | {"static": given["static"].clone().requires_grad_()}, h0)
        same(cell, kind(), h0.detach())

    holds(law, {name: (kind,) for name, kind in KINDS.items()})


@TOLD
@pytest.mark.parametrize("kind", WARM)
@pytest.mark.parametrize("train", [True, False])
def test_none_makes_a_record(kind: str, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, h0 = Cell(), torch.randn(B, F, dtype=D)
    with torch.set_grad_enabled(train):
        for _ in range(6):
            ran(cell, KINDS[kind](), h0, "eager")
        monkeypatch.setattr(api, "_recurrent", None)
        ran(cell, KINDS[kind](), h0, "eager")
