"""Attributes of the step's own objects that are called as those are which a tensor tells of itself by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outcomes import as_the_plain_loop
from stepnet.compiler.reads.reach import reach


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grad_fn, self.stride, self.layout = ["a", "b"], 2, nn.Linear(3, 3)
        self.layers = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        for name in self.grad_fn:
            x = self.layers[name](x)
        h = torch.tanh(self.layout(x) * self.stride + h)
        return h, h


class OfRows(Layers):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.stride, h * x.stride(0)


class Bound(Layers):
    def forward(self: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self = x if self.training else self
        return x, h * self.stride(0)


class Chosen(Layers):
    def forward(self, x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        return x, h * (self if h is x else x).stride(0)


class Inside(Layers):
    def forward(self, x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        return (lambda self: self.stride(0))(x) * x * self.stride, h


class Lies:
    def lies(self: Any) -> Any:
        return self.stride(0)


def no_method(self: Any, h: Tensor) -> tuple[Tensor, Tensor]:
    return self * self.stride(0), h


def test_what_code_asks_of_self_alone_is_asked_of_no_tensor() -> None:
    step = Layers().double()
    assert reach(step).open is None
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    as_the_plain_loop(step, x, torch.zeros(2, 3, dtype=torch.float64), "eager")


@pytest.mark.parametrize(
    "step", [OfRows(), Bound(), Chosen(), Inside(), no_method], ids=lambda s: str(type(s))
)
def test_what_may_be_asked_of_a_tensor(step: Any) -> None:
    assert "may ask a tensor for more than its values" in (reach(step).open or "")


def test_a_method_that_tensors_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "lies", Lies.lies, raising=False)

    def step(x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        return x * x.lies(), h

    assert "may ask a tensor for more than its values" in (reach(step).open or "")
