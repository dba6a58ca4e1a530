"""Recurrences whose weights are subclasses of Tensor that run operators themselves, as quantized ones are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

import stepnet
from stepnet import recurrent
from stepnet.errors import StepError


class Rounded(Tensor):
    """Eight bits of a matrix, which knows `linear` alone."""

    @staticmethod
    def __new__(cls, small: Tensor, scale: Tensor) -> Rounded:
        return torch.Tensor._make_wrapper_subclass(cls, small.shape, dtype=scale.dtype)

    def __init__(self, small: Tensor, scale: Tensor) -> None:
        self.small, self.scale = small, scale

    def __tensor_flatten__(self) -> Any:
        return ["small", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Rounded:
        return Rounded(inner["small"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.alias.default, aten.clone.default):
            return Rounded(func(args[0].small), func(args[0].scale))
        if func is aten.t.default:
            return args[0].small.to(args[0].scale.dtype).t() * args[0].scale
        raise NotImplementedError(f"{func} of Rounded")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        small = torch.randint(-127, 128, (4, 4), dtype=torch.int8)
        self.linear.weight = nn.Parameter(Rounded(small, torch.tensor(1 / 127)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.linear(h) + x)
            return h, h

        return recurrent(step, x + 1, x.new_zeros(2, 4))[0] * 2


@pytest.mark.filterwarnings("ignore")
def test_the_graph_ends_before_them() -> None:
    stepnet.set_backend("auto")
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    for steps in (5, 3, 7):
        x = torch.randn(steps, 2, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="reads Rounded"), torch.no_grad():
        torch.compile(model, backend="aot_eager", fullgraph=True)(torch.randn(5, 2, 4))
    with pytest.raises(StepError, match="reads Rounded"):
        export(model, (torch.randn(5, 2, 4),))
