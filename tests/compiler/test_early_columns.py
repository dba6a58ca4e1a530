"""Products of parts side by side, of which some wait for no state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain
from stepnet.compiler.passes import early_columns

F64 = torch.float64
X, H = 5, 3
LENGTHS = [4, 0, 5, 1]
MIXED = ["xh", "hx", "xqh", "xhq", "hgx", "xhg", "qhgx"]
OTHERS = ["hxg", "hg"]


class Joined(torch.nn.Module):
    """Multiplies parts side by side, of which `order` says what they are: the input, its square, states."""

    def __init__(self, order: str, turned: bool) -> None:
        super().__init__()
        columns = sum({"x": X, "q": X, "h": H, "g": H}[part] for part in order)
        self.w = torch.nn.Parameter(torch.randn((columns, H) if turned else (H, columns), dtype=F64))
        self.b = torch.nn.Parameter(torch.randn(H, dtype=F64))
        self.order, self.turned = order, turned

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, g = state
        parts = {"x": x, "q": x * x, "h": h, "g": g}
        row = torch.cat([parts[part] for part in self.order], 1)
        h = torch.tanh(row @ (self.w if self.turned else self.w.t()) + self.b)
        return h * g, (h, 0.5 * g + h)


@pytest.fixture(params=few([1, 1 << 18], [1]))
def least(request, monkeypatch) -> int:
    monkeypatch.setattr(early_columns, "LARGE", request.param)
    return request.param


def given(wanted: bool) -> tuple[LoDTensor, tuple[Tensor, ...]]:
    x = LoDTensor.from_lengths(torch.randn(10, X, dtype=F64), [LENGTHS])
    return wanting(x) if wanted else x, wanting((torch.randn(4, H, dtype=F64), torch.randn(4, H, dtype=F64)))


@pytest.mark.parametrize("backend", ["c", "eager"])
@pytest.mark.parametrize("turned", few([False, True], [False]))
@pytest.mark.parametrize("order", few([*MIXED, *OTHERS], ["xh", "xhq", "hxg"]))
def test_parts_together_mean_what_they_mean_apart(order, turned, backend, least):
    step = Joined(order, turned)
    for wanted in (False, True):
        x, state = given(wanted)
        for _ in range(2):
            as_the_plain_loop(step, x, state, backend)


@pytest.mark.parametrize("order", few(MIXED, ["xh"]))
def test_the_loop_multiplies_what_waits_for_the_state(order, monkeypatch):
    monkeypatch.setattr(early_columns, "LARGE", 1)
    told = explain(Joined(order, False), *given(True))
    late = sum(H for part in order if part in "hg")
    (forward,) = told.find("matmul", direction="forward", kind="scan")
    assert forward.contracts == late
    (backward,) = told.find("matmul", direction="backward", kind="scan")
    assert backward.shape == (late,)


@pytest.mark.parametrize("order", few(OTHERS, ["hxg"]))
def test_parts_that_lie_between_states_or_are_few_stay_with_them(order, monkeypatch):
    monkeypatch.setattr(early_columns, "LARGE", 1)
    step = Joined(order, False)
    told = explain(step, *given(False))
    (product,) = told.find("matmul", direction="forward", kind="scan")
    assert product.contracts == step.w.shape[1]


def test_two_sums_of_a_narrow_type_are_not_rounded_apart(monkeypatch):
    monkeypatch.setattr(early_columns, "LARGE", 1)
    step = Joined("xh", False).bfloat16()
    x = LoDTensor.from_lengths(torch.randn(10, X), [LENGTHS]).to(torch.bfloat16)
    told = explain(step, x, (torch.zeros(4, H).bfloat16(), torch.zeros(4, H).bfloat16()))
    (product,) = told.find("matmul", direction="forward", kind="scan")
    assert product.contracts == X + H
