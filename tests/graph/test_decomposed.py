"""Recurrences as torch's while_loop: their gradients are the model's, or an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, default_decompositions, export

from stepnet import recurrent
from stepnet.errors import StepError
from stepnet.graph import decompositions
from stepnet.graph.as_loop import _differentiable_once

from .models import assert_same_gradients, dense, state
from .test_export import CASES, exported

ANY = Dim.AUTO


class Recurred(nn.Module):
    def __init__(self, step: Callable[..., Any]) -> None:
        super().__init__()
        self.x, self.h, self.step = nn.Linear(3, 4), nn.Linear(4, 4), step

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return recurrent(lambda x, h: self.step(self, x, h), x, h)


def _undifferentiated(self: Any, x: Tensor, h: Tensor) -> Any:
    with torch.no_grad():
        kept = torch.sigmoid(self.h(h))
    h = torch.tanh(self.x(x)) + kept * h
    return (h, h.detach()), h


def _written_to(self: Any, x: Tensor, h: Tensor) -> Any:
    y = torch.zeros_like(h)
    y[:, 1:] = self.h(h)[:, :3]
    return y, torch.tanh(self.x(x) + y)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
@pytest.mark.parametrize("others", [dict, default_decompositions])
@pytest.mark.parametrize("step", [_undifferentiated, _written_to])
def test_gradients_of_what_is_decomposed(step: Any, others: Any) -> None:
    """As the model's, of no steps and of whatever needs one; those of gradients are torch's error."""
    model = Recurred(step).double()
    program = export(
        model,
        (torch.randn(4, 3, 3).double(), torch.randn(3, 4).double()),
        dynamic_shapes=({0: ANY, 1: ANY}, {0: ANY}),
    )
    module = program.run_decompositions({**others(), **decompositions()}).module()
    for steps, of_x, of_h in itertools.product((5, 1, 0), (False, True), (False, True)):
        if not steps and not of_h:
            continue  # no gradient anywhere
        args = [dense(steps, 2).detach().requires_grad_(of_x), state(2).detach().requires_grad_(of_h)]
        assert_same_gradients(model, module, args)
    x, h = dense(3, 2), state(2)
    (once,) = torch.autograd.grad(module(x, h)[1].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="_segment_reduce_backward is not implemented"):
        torch.autograd.grad(once.sum(), x)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
@pytest.mark.parametrize("case", ["dense", "layers", "memories"])
def test_gradients_of_models_that_are_decomposed(case: str) -> None:
    model, program = exported(case)
    module = program.run_decompositions(decompositions()).module()
    for args in CASES[case][2]:
        assert_same_gradients(model, module, args)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
def test_weights_that_are_read_outside_of_the_loop_too_under_autocast() -> None:
    class Shared(Recurred):
        def forward(self, x: Tensor, h: Tensor) -> Any:
            y, _ = super().forward(x, h)
            return self.h(y)

    model = Shared(lambda self, x, h: (torch.tanh(self.x(x) + self.h(h)), h))
    args = torch.randn(4, 3, 3), torch.randn(3, 4)
    module = export(model, args).run_decompositions(decompositions()).module()
    grads = list[Any]()
    for call in (model, module):
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(*args).float().square().sum()
        grads.append(torch.autograd.grad(loss, [*model.parameters()]))
    torch.testing.assert_close(*grads, rtol=0.05, atol=0.05)


def test_what_a_loop_carries_is_differentiated_once() -> None:
    w, carried = torch.randn(3, requires_grad=True), [torch.full((2,), -0.0), torch.tensor([1])]
    table, count = _differentiable_once(carried, [torch.tensor([float("nan")]), w, carried[1]])
    assert table.equal(carried[0])
    assert table.signbit().all()
    assert count is carried[1]
    (once,) = torch.autograd.grad(table.sum(), w, create_graph=True)
    assert once.equal(torch.zeros(3))
    with pytest.raises(RuntimeError, match="_segment_reduce_backward is not implemented"):
        torch.autograd.grad(once.sum(), w)


@pytest.mark.exhaustive
def test_a_step_that_writes_under_no_grad_is_not_decomposed() -> None:
    def step(self: Any, x: Tensor, h: Tensor) -> Any:
        y = self.x(x)
        with torch.no_grad():
            y.mul_(2)
        return y, h

    program = export(Recurred(step), (torch.randn(4, 2, 3), torch.zeros(2, 4)))
    with pytest.raises(StepError, match=r"(?s)cannot be written as torch's while_loop.*in place"):
        program.run_decompositions(decompositions())
