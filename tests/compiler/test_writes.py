"""Writes into parts of what a step made are recorded as new values, whatever is read afterwards."""

from __future__ import annotations

import pytest
import torch

from covering import few
from outcomes import as_the_plain_loop
from stepnet.compiler.trace import torch_tracers as torchs

PLANS_ON_DISK = False  # what records them is looked at

D = 4


def by_parts(x, h):
    y = x.new_empty(x.shape)
    y[:, :2] = h[:, 2:]
    y[:, 2:] = h[:, :2].sin()
    return y * x, y


def numbers_in_parts(x, h):
    y = torch.zeros_like(x)
    y[:, 1:3] = x[:, 1:3] * h[:, 1:3]
    y[:, 0] = 3.0
    y[:, 3:].fill_(2.0)
    return y, y + h


def a_view_before_and_after(x, h):
    y = x * 2
    part = y[:, 1:]
    part *= h[:, 1:]
    before = part.exp()
    y += 1
    return torch.cat([part + before, h[:, :1]], 1), y


def views_of_views(x, h):
    y = (x * h).view(-1, 2, 2)
    y[:, 0, 1] += x[:, 0]
    y.transpose(1, 2)[:, 0] *= 2
    y.permute(0, 2, 1)[:, 1].mul_(x[:, :2])
    return y.reshape(-1, D), y.flatten(1) + h


def every_second(x, h):
    y = h.clone()
    y[:, ::2] = x[:, 1::2]
    return y, y * x


def more_and_fewer_axes(x, h):
    y = x * h
    y.unsqueeze(1)[:, 0, :2] -= 1
    y.unsqueeze(-1).squeeze(-1).add_(h)
    return y, h


def without_gradient(x, h):
    with torch.no_grad():
        y = x * 2
        y[:, 0] = 0
        same = y.detach()
        same[:, 1] += 1
    return y * h, h + same


def a_view_of_what_is_written_whole(x, h):
    y = x * h
    part = y[:, :2]
    y.mul_(3)
    return torch.cat([part, part + h[:, 2:]], 1), y


def from_one_part_to_another(x, h):
    y = h * 1
    y[:, 0] = x[:, 0]
    y[:, 0] *= h[:, 1]
    y[:, 1] = y[:, 0]
    return y, y


def masks_numbers_and_zeros(x, h):
    y = h * 1
    y[:, 1:].masked_fill_(x[:, 1:] > 0, 0.5)
    y[:, [0, 2]] = x[:, [1, 3]]
    y[:, 3:].zero_()
    return y, y


def one_after_the_other(x, h):
    y = torch.empty_like(x)
    for i in range(D):
        y[:, i] = h[:, i] * x[:, D - 1 - i]
    return y, y


def a_view_of_a_piece(x, h):
    with torch.no_grad():
        a, b = (x * 3).split(2, 1)
        first = a[:, :1]
        a.mul_(2)
        b[:, 1].sub_(1)
    return torch.cat([b, a], 1) * first, h


STEPS = [
    by_parts, numbers_in_parts, a_view_before_and_after, views_of_views, every_second, more_and_fewer_axes,
    without_gradient, a_view_of_what_is_written_whole, from_one_part_to_another, masks_numbers_and_zeros,
    one_after_the_other, a_view_of_a_piece,
]  # fmt: skip


@pytest.mark.parametrize("step", few(STEPS, STEPS[::3]), ids=lambda step: step.__name__)
def test_recorded_and_as_the_plain_loop(step, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("torch's tracer is asked")

    monkeypatch.setattr(torchs, "by_torch", refused)
    x, h = (torch.randn(*n, D, dtype=torch.float64, requires_grad=True) for n in ((5, 3), (3,)))
    as_the_plain_loop(step, x, h, "eager")
