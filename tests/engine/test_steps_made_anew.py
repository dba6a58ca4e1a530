"""A step that is made anew at each call, as one inside of `forward` is, is warm as one that stays: what it
closes over is told each time, and nothing of it is kept alive."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepnet import LoDTensor, recurrent
from stepnet.engine import warm_calls
from threads import at_once
from torch_since import TOLD

D, F = torch.float64, 3


class Layer(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.cell, self.other = (nn.Linear(F, F, dtype=D) for _ in range(2))
        self.scale: Any = 0.5

    def forward(self, x: LoDTensor, memory: Tensor, backend: Any = "eager") -> LoDTensor:
        cell, scale = self.cell, self.scale

        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(cell(h) * scale + x + self.other(memory))
            return h, h

        return recurrent(step, x, x.values.new_zeros(3, F), backend=backend)[0]


def inputs() -> tuple[LoDTensor, Tensor]:
    return LoDTensor.from_lengths(torch.randn(7, F, dtype=D), [[2, 4, 1]]), torch.randn(F, dtype=D)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was walked."""
    reach, names = warm_calls.reach, list[str]()

    def walked(step: Any, *given: Any) -> Any:
        names.append(step.__name__)  # which does not keep it alive
        return reach(step, *given)

    monkeypatch.setattr(warm_calls, "reach", walked)
    return names


@TOLD
@pytest.mark.parametrize("train", [True, False])
def test_it_is_walked_a_few_times_only(walks: list[str], train: bool) -> None:
    layers, (x, memory) = [Layer(1), Layer(2)], inputs()  # of one code
    for k in range(12):
        y = x
        with torch.set_grad_enabled(train):
            for layer in layers:
                y = layer(y, memory)
        if train:
            y.values.sum().backward()
        if k == 6:
            walks.clear()
    assert not walks


@TOLD
def test_steps_that_stay_are_warm_in_turns_though_one_of_their_code_is_gone(walks: list[str]) -> None:
    def made(scale: float) -> Any:
        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(h * scale + x)
            return h, h

        return step

    x, _ = inputs()
    h0 = torch.zeros(3, F, dtype=D)
    recurrent(made(0.1), x, h0, backend="eager")
    steps = [made(0.2), made(0.3)]
    for k in range(20):
        if k == 14:
            walks.clear()
        for step in steps:
            y, wanted = (recurrent(step, x, h0, backend=by)[0].values for by in ("eager", "naive"))
            torch.testing.assert_close(y, wanted)
    assert not walks


def same(layer: Layer, x: LoDTensor, memory: Tensor) -> None:
    found = []
    for backend in ("eager", "naive"):
        m = memory.clone().requires_grad_(memory.requires_grad)
        y = layer(x, m, backend).values
        needs = [p for p in (*layer.parameters(), m) if p.requires_grad]
        found.append([y, *torch.autograd.grad(y.cos().sum(), needs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@TOLD
def test_what_it_closes_over_may_change() -> None:
    layers, order = [Layer(1), Layer(2)], random.Random(3)

    def swap(layer: Layer) -> None:
        layer.cell, layer.other = layer.other, layer.cell

    def anew(layer: Layer) -> None:
        layer.cell = nn.Linear(F, F, dtype=D)

    changes = [
        lambda layer: setattr(layer, "scale", order.choice([0.5, 2.0, torch.ones(F, dtype=D), layer.scale])),
        lambda layer: layer.cell.weight.data.neg_(),
        lambda layer: layer.other.requires_grad_(order.random() < 0.5),
        swap,
        anew,
    ]
    for _ in range(60):
        layer = order.choice(layers)
        if order.random() < 0.3:
            order.choice(changes)(layer)
        x, memory = inputs()
        same(layer, x, memory.requires_grad_(order.random() < 0.5))


@TOLD
def test_nothing_of_it_is_kept_alive() -> None:
    layer, (x, memory) = Layer(), inputs()
    for _ in range(6):
        layer(x, memory).values.sum().backward()
    gone = [weakref.ref(part) for part in (layer, layer.cell, memory)]
    del layer, memory
    gc.collect()
    assert [part() for part in gone] == [None] * 3


@TOLD
def test_threads_make_their_own() -> None:
    layer, given = Layer(), [inputs() for _ in range(4)]
    wanted = [layer(x, memory, "naive").values for x, memory in given]

    def work(k: int) -> None:
        for _ in range(20):
            x, memory = given[k]
            torch.testing.assert_close(layer(x, memory).values, wanted[k])

    at_once(work)


@TOLD
def test_so_is_one_that_closes_over_nothing_or_has_defaults(walks: list[str]) -> None:
    x, _ = inputs()
    h0, factor = torch.zeros(3, F, dtype=D), [0.5]

    def first(by: Any) -> Tensor:
        return recurrent(lambda x, h: (h, torch.tanh(h * SCALE[0] + x)), x, h0, backend=by)[0].values

    def second(by: Any) -> Tensor:
        def step(x: Tensor, h: Tensor, factor: float = factor[0]) -> tuple[Tensor, Tensor]:
            h = torch.tanh(h * factor + x)
            return h, h

        return recurrent(step, x, h0, backend=by)[0].values

    for call, changed in ((first, SCALE), (second, factor)):
        for k in range(24):
            if k in (8, 20):
                walks.clear()
            torch.testing.assert_close(call("eager"), call("naive"))
            if k == 12:
                changed[0] = 0.25
            assert k not in (11, 23) or not walks, walks


SCALE = [0.5]
