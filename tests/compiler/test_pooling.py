"""Pools, norms of channels, borders and larger copies of a row, by generated C: as the plain loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covering import few
from outcomes import as_the_plain_loop
from stepnet import LoDTensor, explain, recurrent
from stepnet.compiler.rewritten.pooling import POOLING
from stepnet.errors import StepError

LENGTHS = [2, 0, 3]
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def means(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Overlapping, apart, with borders that count or do not, of two dimensions, as many as asked for."""
    line, grid = h[:, None], h.view(-1, 2, 2, 3)
    h = (
        F.avg_pool1d(line, 3, 1, 1)[:, 0]
        + F.avg_pool1d(line, 5, 2, 2, count_include_pad=False).repeat(1, 1, 3)[:, 0, :12]
    )
    h = h + F.avg_pool2d(grid, (2, 3), 1, (1, 1), False, False)[:, :, :3, :2].flatten(1)
    h = h + F.avg_pool2d(grid, 2, 1, divisor_override=3).flatten(1).repeat(1, 3)
    h = h + F.adaptive_avg_pool1d(line, 5)[:, 0].repeat(1, 3)[:, :12]
    h = (
        h
        + F.adaptive_avg_pool2d(grid, (None, 2)).flatten(1).repeat(1, 2)[:, :12]
        + nn.AvgPool1d(2)(h).repeat(1, 2)
    )
    return h, torch.tanh(h * 0.3 + x)


def maxima(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Of ties the first gets the gradient."""
    line, grid = (h * (h.detach().abs() > 0.7))[:, None], h.view(-1, 2, 2, 3)
    h = F.max_pool1d(line, 3, 1, 1)[:, 0] + nn.MaxPool2d((2, 1), 1)(grid).repeat(1, 1, 2, 1).flatten(1)
    h = h + F.max_pool1d(line, 2, 1, dilation=2)[:, 0].repeat(1, 2)[:, :12]
    return h, torch.tanh(h * 0.3 + x)


def maxima_apart(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Windows that share no element, with a rest, with borders, one for all, and of two dimensions."""
    line, grid = (h * (h.detach().abs() > 0.7))[:, None], h.view(-1, 2, 2, 3)
    h = F.max_pool1d(line, 5)[:, 0].repeat(1, 6) + F.max_pool1d(line, 12)[:, 0]
    h = (
        h
        + F.max_pool1d(line, 5, 5, 2)[:, 0].repeat(1, 4)
        + F.max_pool1d(line, 5, ceil_mode=True).repeat(1, 1, 4)[:, 0]
    )
    h = (
        h
        + nn.MaxPool2d((2, 1))(grid).repeat(1, 1, 2, 1).flatten(1)
        + F.max_pool2d(grid, 2, 2, 1).flatten(1).repeat(1, 2)[:, :12]
    )
    return h, torch.tanh(h * 0.3 + x)


def of_nothing(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Windows of minus infinity alone, some of them at a border, whose gradient is of their first element."""
    low = x + torch.where(x < 0.3, -torch.inf, 0.0)
    line = F.max_pool1d(low[:, None], 3, 2, 1)[:, 0].repeat(1, 2)
    grid = F.max_pool2d(low.view(-1, 1, 3, 4), 3, 1, 1).flatten(1)
    return line + grid, torch.tanh(h + x)


def beside(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Mirrored and repeated borders, copies of each element, and the norm of each channel."""
    grid, line = h.view(-1, 2, 2, 3), h[:, None]
    far = F.pad(grid, (2, 1, 1, 0), mode="reflect")[:, :, 1:, 3:6]
    near = F.pad(grid, (1, 2, 0, 3), mode="replicate")[:, :, 3:, :2]
    wide = F.interpolate(line, scale_factor=2)[:, 0, 5:17] + F.interpolate(grid, (4, 3))[:, :, 1:3].flatten(1)
    wide = (
        wide + F.interpolate(line, 12, mode="linear")[:, 0] + F.interpolate(line, scale_factor=1.5)[:, 0, 6:]
    )
    sizes = ("bilinear", (3, 2), True), ("bicubic", (2, 5), False), ("nearest-exact", (3, 2), None)
    for mode, size, corners in sizes:
        wide = (
            wide + F.interpolate(grid, size, mode=mode, align_corners=corners).flatten(1).repeat(1, 2)[:, :12]
        )
    normed = F.instance_norm(grid).flatten(1)
    h = (
        wide
        + normed
        + far.repeat(1, 1, 1, 1).flatten(1)
        + near.repeat(1, 1, 1, 2)[..., :3].repeat(1, 1, 2, 1)[:, :, :2].flatten(1)
    )
    return h, torch.tanh(h * 0.3 + x)


def largest(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Of as many windows as asked for, which overlap."""
    line, grid = (h * (h.detach().abs() > 0.7))[:, None], h.view(-1, 2, 2, 3)
    wide = nn.AdaptiveMaxPool2d((None, 2))(grid).flatten(1).repeat(1, 2)[:, :12]
    return wide + F.adaptive_max_pool1d(line, 5)[:, 0].repeat(1, 3)[:, :12], torch.tanh(h * 0.3 + x)


def rounded_up(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One more window, which ends where there is nothing."""
    line, grid = h[:, None], h.view(-1, 1, 3, 4)
    some = F.avg_pool1d(line, 5, 3, 0, True)[:, 0] + F.max_pool1d(line, 5, 3, 0, ceil_mode=True)[:, 0]
    more = F.avg_pool2d(grid, 2, 2, 0, True, False) + F.max_pool2d(grid, 2, 2, ceil_mode=True)
    h = some.repeat(1, 3)[:, :12] + more.flatten(1).repeat(1, 3)
    return h, torch.tanh(h * 0.3 + x)


@pytest.mark.parametrize(
    "step", few([means, maxima, maxima_apart, of_nothing, beside, largest, rounded_up], [means, maxima_apart])
)
def test_as_the_plain_loop(step):
    x, h = (torch.randn(n, 12, dtype=torch.float64, requires_grad=True) for n in (5, 3))
    as_the_plain_loop(step, LoDTensor.from_lengths(x, [LENGTHS]), h, atol=1e-11)


def test_windows_apart_take_as_many_calls_whatever_their_size():
    def of(size: int) -> int:
        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return F.max_pool1d(h[:, None], size)[:, 0], torch.tanh(h + x)

        told = explain(step, torch.randn(5, 3, 12), torch.randn(3, 12, requires_grad=True), backend="eager")
        return sum(len(region.ops) for region in told.regions)

    assert of(3) == of(6)


def test_infinities_stay_in_their_windows():
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.avg_pool1d(h[:, None], 3, 1, 1)[:, 0], h + x

    h = torch.tensor([[1.0, 2.0, torch.inf, 4.0, 5.0, 6.0, torch.nan]])
    y, _ = recurrent(step, torch.zeros(1, 1, 7), h, backend="c")
    torch.testing.assert_close(y[0], F.avg_pool1d(h, 3, 1, 1), equal_nan=True)


def test_what_does_not_fit_is_told_by_torch():
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.avg_pool1d(h[:, None], 3, 1, 2)[:, 0], h + x

    with pytest.raises(StepError, match="pad should be at most half"):
        recurrent(step, torch.zeros(1, 1, 7), torch.zeros(1, 7))


KINDS = [f"{kind}_pool{dims}d" for kind in ("avg", "max", "adaptive_max") for dims in (1, 2, 3)]


@pytest.mark.parametrize("name", KINDS)
def test_windows_of_all_kinds(name: str) -> None:
    """Values and gradients of torch, with ties, infinities and NaN; what is not written out is torch's."""
    function = getattr(F, name)
    ours, dims = POOLING[function], int(name[-2])
    draw, taken = random.Random(name), 0
    for _ in range(60):
        x = torch.randn(2, 2, *(draw.choice([2, 3, 5, 7]) for _ in range(dims)), dtype=torch.float64)
        args: list[Any] = [draw.randint(1, 3), draw.choice([None, 1, 2, 3]), draw.choice([0, 0, 1, 2])]
        if name.startswith("adaptive"):
            args = [[draw.choice([1, 2, 3, 5]) for _ in range(dims)]]
        elif name.startswith("avg"):
            args += [draw.choice([True, False]), draw.choice([True, False])]
        else:
            args += [draw.choice([1, 1, 2]), draw.choice([True, False])]
        if "max" in name:
            special = draw.choice([0.0, -torch.inf, torch.nan])
            x = torch.where(torch.rand(x.shape) < 0.3, special, x.round())
        x.requires_grad_()
        found = ours(x, *args)
        if found is NotImplemented:
            continue
        wanted, taken = function(x, *args), taken + 1
        torch.testing.assert_close(found, wanted, equal_nan=True)
        seed = torch.randn_like(wanted)
        a, b = (torch.autograd.grad(result, x, seed)[0] for result in (found, wanted))
        torch.testing.assert_close(a, b, equal_nan=True)
    assert taken > 15


def test_slopes_that_are_drawn():
    """One for each element below zero, between the two given; their mean where nothing is drawn."""

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.rrelu(x, 0.2, 0.4, training=True) + 0 * h, h + F.rrelu(x, 0.2, 0.4)

    x, h = torch.randn(4, 3, 500).requires_grad_(), torch.zeros(3, 500)
    y, last = recurrent(step, x, h, backend="c")
    torch.testing.assert_close(last, F.leaky_relu(x, 0.3).sum(0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)
    slopes = gradient[x < 0]
    assert 0.2 <= slopes.min() < 0.21
    assert 0.39 < slopes.max() <= 0.4
    assert (gradient[x > 0] == 1).all()
    assert len(slopes.unique()) > len(slopes) // 2
