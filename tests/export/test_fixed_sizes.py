"""Sizes that stay open beside fixed ones: numbers of steps of the module's own, lengths that Python asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from file_formats import FORMATS
from saved_modules import plain_loops
from stepnet import cells, recurrent
from stepnet.errors import IRError

BACKEND = "naive"


class Steps(nn.Module):
    """`of` the inputs, a recurrence over what it gives."""

    def __init__(self, of, features):
        super().__init__()
        self.of, self.cell = of, cells.GRU(features, 4)

    def forward(self, *inputs):
        x = self.of(*inputs)
        return recurrent(self.cell, x, x.new_zeros(x.shape[1], 4))[0]


def written(module, example, path):
    pytest.importorskip("onnx_ir")
    form, runtime, file = FORMATS["onnx"]
    with plain_loops():
        form.save(module, path / file, example)
    return form.load(path / file), lambda *inputs: runtime(path / file, [x.numpy() for x in inputs])


def is_written(module: Any, example: Any, other: Any, path: Any):
    read, run = written(module, example, path)
    with torch.no_grad(), plain_loops():
        (found,), expected = read(*other).tuple(), module(*other)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.from_numpy(run(*other)[0]), expected)
    return read.inputs[0].shape


@pytest.mark.parametrize("batch", [3, 5])
def test_as_many_steps_as_an_input_has_features_by_chance(batch, tmp_path):
    steps = Steps(lambda x: x.expand(5, *x.shape), 5)
    shape = is_written(steps, (torch.randn(batch, 5),), (torch.randn(2, 5),), tmp_path)
    assert shape == (-1, 5)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param((lambda x: torch.stack([x[i] for i in range(int(x.shape[0]))]),), id="one"),
        pytest.param((lambda x, y: torch.stack([x[i] for i in range(len(y))]) + y,) * 2, id="two together"),
    ],
)
def test_as_many_steps_as_an_input_has_rows(inputs, tmp_path):
    example = tuple(torch.randn(5, 3, 5) for _ in inputs)
    with pytest.raises(IRError, match=r"number of steps: it became 5(?s:.)*by it \(test_fix.*py:\d+\)"):
        written(Steps(inputs[0], 5), example, tmp_path)


class OfLength(nn.Module):
    """A step that asks its rows for their number, beside a dimension that could stay open, too."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(1, 4))

    def step(self, x, h):
        h = torch.tanh(x.mean(1) @ self.weight + self.bias.expand(len(x), -1) + h)
        return h, h

    def forward(self, x):
        return recurrent(self.step, x, torch.zeros(x.shape[1], 4))[0]


def test_a_step_that_asks_for_the_number_of_its_rows(tmp_path):
    shape = is_written(OfLength(), (torch.randn(5, 3, 6, 3),), (torch.randn(2, 4, 6, 3),), tmp_path)
    assert shape == (-1, -1, 6, 3)


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def step(self, x, h):
        h = torch.tanh(torch.einsum("bi,ij,bj->bj", x, self.weight, h) + h)
        return h, h.softmax(1)

    def forward(self, x, h):
        return recurrent(self.step, x, h)[0] + torch.einsum("tbi,ij,bj->tbj", x, self.weight, h)


def test_the_order_of_a_product_asks_for_no_size(tmp_path, monkeypatch):
    def contract_path(_, *operands, optimize):  # as opt_einsum does
        assert [int(size) for x in operands for size in x.shape]
        return ([(0, 1), (0, 1)],)

    flags = cast(Any, torch.backends.opt_einsum).m
    monkeypatch.setattr(flags, "is_available", lambda: True)
    monkeypatch.setattr(flags, "enabled", True)
    monkeypatch.setattr(flags, "_opt_einsum", SimpleNamespace(contract_path=contract_path))
    examples = [(torch.randn(t, b, 3), torch.randn(b, 4)) for t, b in ((5, 3), (2, 4))]
    assert is_written(Product(), examples[0], examples[1], tmp_path) == (-1, -1, 3)
    assert flags.enabled
