"""`torch.export` of recurrences whose steps read sizes: of others, of their rows, of what they divide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from stepnet import LoDTensor, recurrent
from stepnet.errors import StepError

ANY = Dim.AUTO


def test_a_size_that_is_left_open_is_told() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, memory: Tensor) -> Any:
            n = memory.shape[0]
            return recurrent(lambda x, h: (x + h, x + n), x, x[0])

    with pytest.raises(StepError, match="a size that the program leaves open"):
        export(Model(), (torch.randn(4, 2, 3), torch.randn(5, 3)), dynamic_shapes=({0: ANY}, {0: ANY}))


def test_a_step_of_a_number_of_rows_is_told() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> Any:
            return recurrent(lambda x, h: ((x + h).view(2, 3),) * 2, x, h)

    with pytest.raises(StepError, match="does not run on any number of rows"):
        export(Model(), (torch.randn(4, 2, 3), torch.randn(2, 3)))


@pytest.mark.parametrize("asks", [lambda m: m[1].sum(0), lambda m: m.select_sequences([1]).values.sum(0)])
def test_what_dynamo_does_not_follow_is_told_of_the_step(asks: Any) -> None:
    memory = LoDTensor.from_lengths(torch.randn(3, 3), [[1, 2]])

    class Model(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> Any:
            def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
                return (x + h + asks(memory),) * 2

            return recurrent(step, x, h)

    with pytest.raises(StepError, match=r"'step' cannot be part .*: Dynamo does not follow it"):
        export(Model(), (torch.randn(4, 2, 3), torch.randn(2, 3)))


def test_what_torch_asserts_of_sizes_that_a_step_divides() -> None:
    weight = torch.randn(3, 8)

    def step(x: Tensor, h: Tensor) -> Any:
        rows, size = (heads := x @ weight).shape
        h = torch.tanh(h + heads.reshape(rows, 2, size // 2).flatten(1))
        return h, h

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return recurrent(step, x, x.new_zeros(x.shape[1], 8))[0]

    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(export(Model(), (x,)).module()(x), Model()(x))
