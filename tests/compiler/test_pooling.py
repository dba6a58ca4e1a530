"""Pools, norms of channels, borders and larger copies of a row, by generated C: as the plain loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepnet import LoDTensor, explain, recurrent
from stepnet.errors import StepError
from stepnet.executors.base import Backend

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
    normed = F.instance_norm(grid).flatten(1)
    h = (
        wide
        + normed
        + far.repeat(1, 1, 1, 1).flatten(1)
        + near.repeat(1, 1, 1, 2)[..., :3].repeat(1, 1, 2, 1)[:, :, :2].flatten(1)
    )
    return h, torch.tanh(h * 0.3 + x)


def outcome(step: Step, backend: Backend) -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(5, 12, dtype=torch.float64, generator=draw).requires_grad_()
    h = torch.randn(3, 12, dtype=torch.float64, generator=draw).requires_grad_()
    y, final = recurrent(step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=backend)
    total = (y.values * torch.linspace(0.5, 1.5, 12)).sum() + final.square().sum()
    return [y.values, final, *torch.autograd.grad(total, [x, h])]


@pytest.mark.parametrize("step", [means, maxima, of_nothing, beside])
def test_as_the_plain_loop(step):
    torch.testing.assert_close(outcome(step, "c"), outcome(step, "naive"), rtol=1e-9, atol=1e-11)


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


def test_rounded_up_windows_are_left_to_torch():
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.avg_pool1d(h[:, None], 2, 2, 0, True)[:, 0], h + x

    x, h = torch.randn(2, 1, 7), torch.randn(1, 7)
    y, _ = recurrent(step, x, h)
    torch.testing.assert_close(y[1], F.avg_pool1d(h + x[0], 2, 2, 0, True))
    assert "generated C" in str(explain(step, x, h))
