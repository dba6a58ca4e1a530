"""Results are no views to autograd, as those of the plain loop are none: torch loses a hook on a view that is
written to where no gradients are recorded, and ends the process where one is registered after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import stepnet
from outcomes import tensors
from stepnet import LoDTensor
from stepnet.executors.base import Backend

DOUBLE, COMPLEX = torch.float64, torch.complex128
WEIGHT = torch.randn(3, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0), requires_grad=True)
FACTOR = torch.tensor([0.5 + 0.1j, 0.2j, -0.3], dtype=COMPLEX, requires_grad=True)


def plain(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    new = torch.tanh(x @ WEIGHT + h)
    return new, new


def apart(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (x * 1, x[:, :1] * 0 + WEIGHT[1, 1]), torch.tanh(h @ WEIGHT + x)


def ignores_x(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (h, h.detach() * 2), h


def rotates(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    new = h * FACTOR + x
    return (new, new.real * 2), new


def numbers(*shape: int) -> Tensor:
    values = torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=DOUBLE)
    return values.cos().view(shape).clone().requires_grad_()


def dense(axis: int) -> Callable[[Any, Backend], Any]:
    shape = [(4, 2, 3), (2, 4, 3), (2, 3, 4)][axis]

    def run(step: Any, backend: Backend) -> Any:
        kind = COMPLEX if step is rotates else DOUBLE
        x, h = numbers(*shape).to(kind), numbers(2, 3).to(kind)
        return stepnet.recurrent(step, x, h, axis=axis, backend=backend)

    return run


def ragged(step: Any, backend: Backend) -> Any:
    kind = COMPLEX if step is rotates else DOUBLE
    x = LoDTensor.from_sequences([numbers(n, 3).to(kind) for n in (2, 0, 4)])
    return stepnet.recurrent(step, x, numbers(3, 3).to(kind), backend=backend)


def with_tangents(step: Any, backend: Backend) -> Any:
    with forward_ad.dual_level():
        x, h = numbers(4, 2, 3), numbers(2, 3)
        return stepnet.recurrent(step, forward_ad.make_dual(x, torch.ones_like(x)), h, backend=backend)


WAYS = {"axis 0": dense(0), "axis 1": dense(1), "axis 2": dense(2), "ragged": ragged, "dual": with_tangents}


STEPS = [(step, way) for step in (plain, apart, ignores_x) for way in WAYS]
STEPS += [(rotates, "axis 0"), (rotates, "ragged")]


@pytest.mark.parametrize("backend", ["eager", "c", "auto"])
@pytest.mark.parametrize(("step", "way"), STEPS)
def test_results_are_no_views(step: Any, way: str, backend: Backend) -> None:
    for _ in range(6):  # by names at first, by places then
        for found in tensors(WAYS[way](step, backend)):
            assert not (found.requires_grad and found._is_view()), found.grad_fn


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("hook_first", [True, False])
@pytest.mark.parametrize("step", [plain, apart])
def test_hooks_stay_where_a_result_is_written_to(step: Any, hook_first: bool, backend: Backend) -> None:
    def gradients(backend: Backend) -> list[Tensor]:
        x, h = numbers(4, 2, 3), numbers(2, 3)
        y, _ = stepnet.recurrent(step, x, h, backend=backend)
        first = y[0] if isinstance(y, tuple) else y
        if hook_first:
            first.register_hook(lambda g: g * 3)
        if step is not plain:  # whose gradient reads it
            with torch.no_grad():
                first.copy_(first.flip(-1))
        if not hook_first:
            first.register_hook(lambda g: g * 3)
        first.sum().backward()
        assert x.grad is not None
        return [x.grad]

    for _ in range(6):
        torch.testing.assert_close(gradients(backend), gradients("naive"))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_states_of_modules_are_no_views(kind: str, bidirectional: bool) -> None:
    module = getattr(stepnet.nn, kind)(3, 5, bidirectional=bidirectional)
    for _ in range(6):
        assert not any(t._is_view() for t in tensors(module(torch.randn(4, 2, 3))))


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("step", [plain, apart, ignores_x])
def test_results_of_a_reentrant_checkpoint_may_be_written_to(step: Any, backend: Backend) -> None:
    def run(x: Tensor, h: Tensor) -> Any:
        (y, last) = stepnet.recurrent(step, x, h, backend=backend)
        return (*y, last) if isinstance(y, tuple) else (y, last)

    for _ in range(6):
        for found in checkpoint(run, numbers(4, 2, 3), numbers(2, 3), use_reentrant=True):
            found.mul_(2)


def squares(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    new = torch.tanh(x @ WEIGHT + h)
    return (new, new), new  # one table for all, which the gradient reads


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_what_is_written_to_a_result_does_not_reach_gradients(backend: Backend) -> None:
    def gradient(backend: Backend, write: bool) -> Tensor:
        x, h = numbers(4, 2, 3), numbers(2, 3)
        (first, second), _ = stepnet.recurrent(squares, x, h, backend=backend)
        if write:
            with torch.no_grad():
                first.zero_()
                second.zero_()
        (got,) = torch.autograd.grad((first.sum(), second.sum()), [x])
        return got

    for _ in range(6):
        torch.testing.assert_close(gradient(backend, True), gradient("naive", False))
