"""Steps in which torch gives a tensor or its copy, by how it lies in memory, beside a loop by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outcomes import gradients, same
from stepnet import LoDTensor, explain, recurrent
from stepnet.errors import SlowPathWarning

WEIGHT = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WEIGHT = WEIGHT.t().requires_grad_()  # a leaf that does not lie in one piece


def cut_off(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        w = x.contiguous()
    h = torch.tanh(w * x + h)
    return h, h


def a_state_cut_off(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    with torch.set_grad_enabled(False):
        w = h.to(memory_format=torch.contiguous_format, copy=False).contiguous()
    h = torch.tanh(w + x)
    return w, h


def a_result_cut_off(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    z = x.sin()
    with torch.no_grad():
        w = z.contiguous()
    return w, torch.tanh(w * h)


def a_weight_cut_off(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        w = WEIGHT.contiguous()
    h = torch.tanh(x @ w + h)
    return h, h


def written(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    z.contiguous().mul_(3)
    h = torch.tanh(z + h)
    return h, h


NOISE = torch.Generator()


def drawn_like_rows(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(x + torch.empty_like(h).uniform_(generator=NOISE))
    return h, h


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.contiguous()
        return out if out is not x else out * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def told_apart(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(Passed.apply(x.cos()) + h)
    return h, h


def in_any_memory(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """None of it depends on that."""
    with torch.no_grad():
        cut, itself = (x * 2).contiguous(), (x.to(x.dtype), h.type_as(x), x.resolve_conj(), h.real)
    new = torch.empty_like(x)
    new[:, 1:], new[:, :1] = h[:, :2].contiguous(), x.reshape(-1, 3)[:, :1]
    h = torch.tanh(itself[0] * itself[1] + itself[2] * itself[3] * cut.t().contiguous().t() + new)
    return h, h


STEPS = (cut_off, a_state_cut_off, a_result_cut_off, a_weight_cut_off, written, told_apart, drawn_like_rows)
LYING: dict[str, Callable[[Tensor], Tensor]] = {
    "in one piece": lambda x: x,
    "turned": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "a step in one piece": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "one row": lambda x: x[:1].clone(),
}


def by_hand(step: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for t in range(x.shape[1]):
        y, h = step(x[:, t], h)
        rows.append(y)
    return torch.stack(rows, 1), h


def ours(step: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        return recurrent(step, x, h, axis=1, backend="eager" if step is in_any_memory else "auto")


@pytest.mark.parametrize("step", [*STEPS, in_any_memory], ids=lambda step: step.__name__)
def test_a_tensor_or_its_copy(step: Any) -> None:
    draw = torch.Generator().manual_seed(2)
    numbers = torch.randn(4, 3, 3, generator=draw, dtype=torch.float64)
    for lying in LYING.values():
        found = []
        for run in (ours, by_hand):
            x = lying(numbers.clone()).detach().requires_grad_()
            h = lying(numbers.clone())[:, 0].detach().requires_grad_()
            NOISE.manual_seed(4)
            results = run(step, x, h)
            told = [t.requires_grad for t in results]
            found.append(([*results, *gradients(results, [x, h, WEIGHT])], told))
        assert found[0][1] == found[1][1]
        same(found[0][0], found[1][0])


def test_such_a_step_says_what_to_write() -> None:
    x = LoDTensor.from_lengths(torch.randn(5, 3, requires_grad=True), [[2, 3]])
    [refusal] = explain(cut_off, x, torch.zeros(2, 3)).refusals
    assert "depends on how its rows or weights lie in memory" in refusal.reason
    assert ".clone() or .detach() in the place of .contiguous()" in str(refusal)


def test_truth_values_and_whole_numbers_are_compared_as_they_are() -> None:
    def counts(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        on, n = state
        with torch.no_grad():
            on = on | (x.sum(-1) > 0)
        return x * on[:, None], (on, n + on)

    state = torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    assert not explain(counts, LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]]), state).refusals
