"""Derivatives of all kinds of recurrences in graphs: right, or an error, and never none in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, func, nn
from torch.autograd import forward_ad
from torch.export import Dim, export

import stepnet
from covering import few
from stepnet import LoDTensor, Recurrent, cells, sequence_softmax
from stepnet.graph.recurrence import Recurrence

OFFSETS = torch.tensor([0, 2, 2, 5])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = Recurrent(cells.GRU(3, 4))

    def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        y, h = self.rnn(LoDTensor(rows, [offsets]))
        return sequence_softmax(y).values, h


Call = Callable[[Tensor, Tensor], Sequence[Tensor]]


def loss(call: Call, rows: Tensor) -> Tensor:
    y, h = call(rows, OFFSETS)
    return y.sin().sum() + h.exp().sum()


def tangents(call: Call, rows: Tensor) -> Any:
    with forward_ad.dual_level():
        results = call(forward_ad.make_dual(rows, torch.ones_like(rows)), OFFSETS)
        return [forward_ad.unpack_dual(t).tangent for t in results]


def forward_over_reverse(call: Call, rows: Tensor) -> Any:
    with forward_ad.dual_level():
        rows = forward_ad.make_dual(rows.requires_grad_(), torch.ones_like(rows))
        (grad,) = torch.autograd.grad(loss(call, rows), rows)
        return forward_ad.unpack_dual(grad).tangent


def batched(call: Call, rows: Tensor) -> Any:
    _, h = call(rows.requires_grad_(), OFFSETS)
    each = torch.eye(h.numel(), dtype=h.dtype).view(-1, *h.shape)
    return torch.autograd.grad(h, rows, each, is_grads_batched=True)


KINDS: dict[str, Callable[[Call, Tensor], Any]] = {
    "tangents": tangents,
    "forward over reverse": forward_over_reverse,
    "batched": batched,
    "grad": lambda call, rows: func.grad(lambda rows: loss(call, rows))(rows),
    "jvp": lambda call, rows: func.jvp(lambda rows: call(rows, OFFSETS), (rows,), (rows + 1,)),
    "hessian": lambda call, rows: func.hessian(lambda rows: loss(call, rows))(rows),
}


@cache
def exported() -> tuple[Model, Any]:
    torch.manual_seed(0)
    model, rows = Model().double(), torch.randn(5, 3, dtype=torch.float64)
    program = export(model, (rows, OFFSETS), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    return model, program.module()


@pytest.mark.parametrize("kind", few(KINDS, ["jvp", "batched"]))
def test_of_a_program(kind: str) -> None:
    (model, program), rows = exported(), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(KINDS[kind](program, rows.clone()), KINDS[kind](model, rows.clone()))


@torch.no_grad()
def test_a_program_goes_by_a_plan(monkeypatch: Any) -> None:
    """Its step calls torch's operators by what pybind11 made of them, of which the walk has to know."""
    (model, program), rows = exported(), torch.randn(5, 3, dtype=torch.float64)
    for _ in range(2):
        program(rows, OFFSETS)
    monkeypatch.setattr(Recurrence, "run", None)
    torch.testing.assert_close(program(rows, OFFSETS), model(rows, OFFSETS))


@pytest.mark.parametrize("backend", few(["eager", "aot_eager"], ["eager"]))
def test_of_a_compiled_model_that_has_a_plan(backend: str) -> None:
    stepnet.set_backend("auto")  # generated C sees addresses, and no tangents
    torch.manual_seed(0)
    model = Model().double().requires_grad_(False)
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    rows = torch.randn(5, 3, dtype=torch.float64)
    for _ in range(3):
        compiled(rows, OFFSETS)
    torch.testing.assert_close(tangents(compiled, rows), tangents(model, rows))
    if backend != "eager":
        torch.testing.assert_close(batched(compiled, rows.clone()), batched(model, rows.clone()))
