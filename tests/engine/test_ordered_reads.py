"""Steps that read an OrderedDict, as modules under a parametrization do, are walked no more once nothing
changes; a later call finds each change."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from run_change_run import D, ran, rows, run_change_run
from stepnet.engine.walked_steps import unchanged_step
from tables import holds
from torch_since import TOLD


class Parts(nn.Module):
    """What it does follows from the order of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: Any = OrderedDict(a=torch.randn(D, D), b=0.5, c=-0.5)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        for part in self.parts.values():
            h = torch.tanh(h @ part if isinstance(part, Tensor) else h + part)
        h = h * getattr(self.parts, "scale", 1.0) + x
        return h, h


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner: Any = parametrizations.weight_norm(nn.Linear(D, D))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.inner(h) + x)
        return h, h


def put_first(step: Any) -> None:
    step.parts.move_to_end("c", last=False)


def weights(step: Any) -> Any:
    return step.inner.parametrizations.weight


OF_PARTS: dict[str, Any] = {
    "the last": lambda s: s.parts.move_to_end("a"),
    "the first": put_first,
    "a number": lambda s: s.parts.update(b=0.25),
    "a tensor": lambda s: s.parts.update(a=torch.randn(D, D)),
    "one more": lambda s: s.parts.update(d=0.1),
    "one less": lambda s: s.parts.pop("c", None),
    "the same again, at the end": lambda s: s.parts.__setitem__("b", s.parts.pop("b")),
    "an attribute": lambda s: setattr(s.parts, "scale", 2.0),
    "another": lambda s: setattr(s, "parts", OrderedDict(reversed(s.parts.items()))),
}
OF_NORMED: dict[str, Any] = {
    "a parameter written to": lambda s: weights(s).original1.data.mul_(2),
    "another parameter": lambda s: setattr(weights(s), "original0", nn.Parameter(torch.rand(D, 1) + 1)),
    "a module": lambda s: setattr(s, "inner", parametrizations.weight_norm(nn.Linear(D, D))),
    "one parametrization more": lambda s: parametrize.register_parametrization(s.inner, "bias", nn.Tanh()),
    "none": lambda s: (
        parametrize.is_parametrized(s.inner) and parametrize.remove_parametrizations(s.inner, "weight")
    ),
    "a hook": lambda s: s.inner.register_forward_hook(lambda m, given, out: out * 2),
}
CHANGES = {
    f"{make.__name__}: {name}": (make, change)
    for make, changes in ((Parts, OF_PARTS), (Normed, OF_NORMED))
    for name, change in changes.items()
}


def test_run_change_run():
    holds(run_change_run, CHANGES)


@TOLD
@pytest.mark.parametrize("make", [Parts, Normed])
def test_it_is_walked_no_more(make: Any) -> None:
    step, x = make(), rows()
    for _ in range(4):
        ran(step, x, "eager")
    assert unchanged_step(step) is not None
    (put_first if make is Parts else OF_NORMED["another parameter"])(step)
    assert unchanged_step(step) is None
