"""Ops of sizes and operands that few steps have: the numbers of the plain loop."""

from __future__ import annotations

import pytest
import torch

from outcomes import as_the_plain_loop

OPTIMISED = False
DTYPE = torch.float64
W = torch.linspace(-1, 2, 9, dtype=DTYPE).reshape(3, 3)


def of_one_number(x, h):
    return h * (h[:, :1].argmin(-1, keepdim=True) + 2)


def of_a_weight(x, h):
    return h * (W.argmax() + 1)


def nan_in_places(x, h):
    return torch.where(x > 0, h, torch.nan).nan_to_num(0.5)


def all_of_them(x, h):
    h = torch.tanh(x + h @ W)
    made = of_one_number(x, h)
    return (made, of_a_weight(x, h), nan_in_places(x, h)), 0.5 * made


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_as_the_plain_loop(backend):
    x, h = torch.linspace(-2, 2, 60, dtype=DTYPE).reshape(5, 4, 3).sin(), torch.ones(4, 3, dtype=DTYPE)
    as_the_plain_loop(all_of_them, x.requires_grad_(), h.requires_grad_(), backend)
